"""Workers that are cloud functions, on AWS Lambda or in a local service."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from seqgc.errors import ParameterError
from seqgc.ports import Capability, Leases, require_capabilities
from seqgc.stores import (
    DirectoryStore,
    StoreChoice,
    open_s3,
    open_store,
    unique_name,
)
from seqgc.wire import StoreKind, StoreRef
from seqgc.worker import own_module
from seqgc.workers._base import WorkerSet
from seqgc.workers._forecast import Forecast, Reach, choose, forecast, require_fit
from seqgc.workers._memory import require_memory
from seqgc.workers._settings import FunctionSettings, LoadDelays

if TYPE_CHECKING:
    from boto3.session import Session

    from seqgc.backends.lambda_ import Address, Staying, Transport
    from seqgc.ports import Backend
    from seqgc.training import Crew, Model, TaskSizes, TrainingPlan, Work

_MOST_CONNECTIONS: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Functions:
    """The access of a master to its functions.

    ``session`` signs the requests and has the functions' region. ``version`` is the published
    version to invoke, or None, and ``pin`` is the data about this version that a run records.
    ``endpoint_url`` is the URL of the Invoke API, or None for AWS's API. ``mount`` is the folder
    where the master has mounted the functions' file system, or None. ``bucket`` is the functions'
    ``s3://bucket/prefix``, or empty.
    """

    name: str
    session: Session
    version: str | None = None
    pin: Mapping[str, str] = field(default_factory=dict)
    endpoint_url: str | None = None
    mount: Path | None = None
    bucket: str = ""

    def store_ref(self, kind: StoreKind, run_id: str) -> StoreRef:
        """Return the place from which functions read a run's weights, and to which they write."""
        locations = {"directory": run_id, "s3": f"{self.bucket}/{run_id}", "inline": ""}
        return StoreRef(kind=kind, location=locations[kind])


class FunctionWorkers(WorkerSet):
    """Workers that are functions. They build the models from the names in the models' recipes."""

    def __init__(
        self, n: int, settings: FunctionSettings | None, *, delays: LoadDelays | None
    ) -> None:
        super().__init__(n, delays=delays)
        self._wanted: Final = FunctionSettings() if settings is None else settings

    @property
    @abstractmethod
    def settings(self) -> FunctionSettings:
        """The settings of the functions. A deployment replaces the configured values."""

    @property
    def listed(self) -> Sequence[str] | None:
        """The modules of the user that models may use, or None if all modules are allowed."""
        return None

    @property
    @abstractmethod
    def reach(self) -> Reach:
        """The stores that the functions can reach."""

    @property
    def address(self) -> Address:
        """The address at which resident functions connect to this machine.

        Raises `ParameterError` if functions cannot be resident.
        """
        rule = f"must be left out: functions of backend {self.provider!r} cannot be resident"
        raise ParameterError("function.resident", rule, True)

    @abstractmethod
    def _connect(self, work: Work) -> Functions:
        """Start the service of the functions if necessary, and return the access to it."""

    @property
    def can(self) -> frozenset[Capability]:
        return super().can if self.settings.resident else frozenset()

    def check(self, work: Work) -> None:
        require_capabilities(work.needs, can=self.can, of=self.provider)
        work.workload()  # called for its checks only
        self._check_modules(work.models)
        self._check_memory(work.models, work.sizes)
        choice = self._choice(work)
        if self.settings.resident:
            _ = self._staying  # called for its checks only
        else:
            require_fit(work.sizes, choice.kind)

    @contextmanager
    def open(self, work: Work) -> Iterator[Crew]:
        """Yield the functions as the workers of a run; empty its shared folder at the end."""
        from seqgc.training import Crew

        functions, choice = self._connect(work), self._choice(work)
        run_id = unique_name(work.name)
        ref = functions.store_ref(choice.kind, run_id)
        s3_client = partial(open_s3, functions.session)
        shared = open_store(ref, mount=functions.mount, s3_client=s3_client)
        transport = self._transport(functions)

        def start() -> Backend:
            from seqgc.backends import lambda_

            workload, settings = work.workload(), self.settings
            if settings.resident:
                return lambda_.ResidentBackend(
                    self.n,
                    transport,
                    workload=workload,
                    store=ref,
                    shared=shared,
                    messaging=self._messaging(work, run_id=run_id, delays=self._work_delays),
                    staying=replace(self._staying, leases=leases),
                )
            return lambda_.LambdaBackend(
                self.n,
                transport,
                workload=workload,
                store=ref,
                shared=shared,
                messaging=self._messaging(work, run_id=run_id),
                invoking=lambda_.Invoking(warm_up_rounds=settings.warm_up),
            )

        setup = self.settings.setup
        leases = Leases(longest_s=setup.longest_s) if self.settings.resident else None
        # Only a resident function can be told that a task is cancelled.
        grace_s = None if self.settings.resident else self.settings.timeout_s
        crew = Crew(
            start=start,
            store=shared,
            grace_s=grace_s,
            note=f"store: {choice}",
            leases=leases,
            pin=functions.pin,
        )
        with ExitStack() as stack:
            stack.callback(transport.close)
            if isinstance(shared, DirectoryStore):
                stack.callback(shared.sweep)  # the folder stays if a late answer is in it
            yield crew

    def _check_modules(self, models: Sequence[Model]) -> None:
        """Raise `ParameterError` if the functions do not have the code of a model."""
        for module in own_modules(models):
            if self.listed is not None and module not in self.listed:
                rule = "must use only modules that are deployed with the functions"
                remedy = f"seqgc deploy --include PATH --factories {module}"
                raise ParameterError("models", rule, module, remedy)

    def _check_memory(self, models: Sequence[Model], sizes: TaskSizes) -> None:
        memory_mb, mapped = self.settings.memory_mb, self._maps
        require_memory(models, sizes, workers=self.n, memory_mb=memory_mb, mapped=mapped)

    @abstractmethod
    def _maps(self, name: str) -> bool:
        """Return True if functions probably have a stored data set on their file system."""

    def forecast(self, plan: TrainingPlan) -> Forecast:
        run = plan.on(self.n)
        require_capabilities(run.needs, can=self.can, of=self.provider)
        self._check_modules(plan.models)
        predicted = forecast(plan, self.n, self.settings, reach=self.reach)
        self._check_memory(plan.models, predicted.sizes)
        if self.settings.resident:
            _ = self._staying  # called for its checks only
        return predicted

    # ---- resident functions ---------------------------------------------------------------------

    @property
    def _staying(self) -> Staying:
        from seqgc.backends.lambda_ import Staying

        start_s = None
        if (delays := self._delays) is not None:  # the n-th start has the delay of round n
            start_s = lambda worker, number: delays(number, worker, 0.0)  # noqa: E731
        return Staying(address=self.address, limit_s=self.settings.timeout_s, start_s=start_s)

    @property
    def _work_delays(self) -> LoadDelays | None:
        """The part of the injected delays that depends on the load, for resident functions.

        The part without load is the delay of a function's start, which is injected only once.
        """
        if (delays := self._delays) is None:
            return None
        return lambda round, worker, load: delays(round, worker, load) - delays(round, worker, 0.0)

    def _choice(self, work: Work) -> StoreChoice:
        sizes = work.sizes if work.fixed else None
        return choose(self.settings, sizes, workers=self.n, reach=self.reach)

    def _transport(self, functions: Functions) -> Transport:
        from seqgc.backends import lambda_

        default = "curl" if lambda_.CurlTransport.is_available() else "boto3"
        kind, session = self.settings.transport or default, functions.session
        region = session.region_name
        connections = max(_MOST_CONNECTIONS, 4 * self.n)
        limits = lambda_.Limits(timeout_s=self.settings.timeout_s, connections=connections)
        if kind == "boto3":
            return lambda_.Boto3Transport(
                functions.name,
                qualifier=functions.version,
                limits=limits,
                region=region,
                endpoint_url=functions.endpoint_url,
                session=session,
            )
        target = lambda_.Target.invoke_api(
            functions.name,
            region=region,
            qualifier=functions.version,
            endpoint_url=functions.endpoint_url,
        )
        signed = lambda_.CurlTransport if kind == "curl" else lambda_.HttpTransport
        return signed(target, limits=limits, credentials=session.get_credentials())


def own_modules(models: Sequence[Model]) -> list[str]:
    """Return the user's modules that functions need for these models, without duplicates."""
    recipes = [model.recipe for model in models if model.recipe is not None]
    paths = (path for recipe in recipes for path in (recipe.module, recipe.data, recipe.loss))
    modules = map(own_module, paths)
    return list(dict.fromkeys(module for module in modules if module is not None))
