"""Workers that are functions, wherever these run: how they are called, and what they share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from seqgc.stores import (
    DirectoryStore,
    StoreChoice,
    occupied,
    open_store,
    remove_forgotten,
    unique_name,
)
from seqgc.wire import StoreKind, StoreRef
from seqgc.workers._base import WorkerSet
from seqgc.workers._forecast import Forecast, Reach, choose, forecast, require_fit
from seqgc.workers._settings import FunctionSettings, LoadDelays

if TYPE_CHECKING:
    from boto3.session import Session

    from seqgc.backends.lambda_ import Transport
    from seqgc.ports import Backend
    from seqgc.training import Crew, TrainingPlan, Work

_MOST_CONNECTIONS: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Functions:
    """Functions as their master reaches them.

    ``session``, of their region, signs for it. ``endpoint_url`` is that of the Invoke API, unless
    it is AWS's own; ``url`` the function's, empty if it has none. ``mount`` is where the master has
    their file system, and ``bucket`` their ``s3://bucket/prefix``; empty if they have none.
    """

    name: str
    session: Session
    alias: str | None = None
    endpoint_url: str | None = None
    url: str = ""
    mount: Path | None = None
    bucket: str = ""

    def store_ref(self, kind: StoreKind, run_id: str) -> StoreRef:
        """Return where they find a run's weights, and put large answers."""
        locations = {"directory": run_id, "s3": f"{self.bucket}/{run_id}", "inline": ""}
        return StoreRef(kind=kind, location=locations[kind])


class FunctionWorkers(WorkerSet):
    """Workers that are functions: they rebuild the models by the names of their recipes."""

    def __init__(
        self, n: int, settings: FunctionSettings | None, *, delays: LoadDelays | None
    ) -> None:
        super().__init__(n, delays=delays)
        self._wanted: Final = FunctionSettings() if settings is None else settings

    @property
    @abstractmethod
    def settings(self) -> FunctionSettings:
        """The settings, as deployed where there is a deployment."""

    @property
    @abstractmethod
    def reach(self) -> Reach:
        """Which stores they have."""

    @abstractmethod
    def _connect(self, work: Work) -> Functions:
        """Make sure that they can be called, and return how; starts what must be started."""

    def check(self, work: Work) -> None:
        work.workload()  # made for its checks
        require_fit(work.sizes, self._choice(work).kind)

    @contextmanager
    def open(self, work: Work) -> Iterator[Crew]:
        """Clear what earlier runs left on a file system now, and this one's folder at the end."""
        from seqgc.training import Crew

        functions, choice = self._connect(work), self._choice(work)
        run_id = unique_name(work.name)
        ref = functions.store_ref(choice.kind, run_id)
        s3_client = partial(functions.session.client, "s3")
        shared = open_store(ref, mount=functions.mount, s3_client=s3_client)
        transport = self._transport(functions)

        def start() -> Backend:
            from seqgc.backends.lambda_ import Invoking, LambdaBackend

            return LambdaBackend(
                self.n,
                transport,
                workload=work.workload(),
                store=ref,
                shared=shared,
                messaging=self._messaging(work, run_id=run_id),
                invoking=Invoking(warm_up_rounds=self.settings.warm_up),
            )

        grace_s, note = self.settings.timeout_s, f"store: {choice}"
        crew = Crew(start=start, store=shared, grace_s=grace_s, note=note)
        with ExitStack() as stack:
            stack.callback(transport.close)
            if isinstance(shared, DirectoryStore) and functions.mount is not None:
                remove_forgotten(functions.mount)
                stack.callback(shared.sweep)  # unless a late answer lies there
                stack.enter_context(occupied(functions.mount, run_id))
            yield crew

    def forecast(self, plan: TrainingPlan) -> Forecast:
        return forecast(plan, self.n, self.settings, reach=self.reach)

    def _choice(self, work: Work) -> StoreChoice:
        sizes = work.sizes if work.fixed else None
        return choose(self.settings, sizes, workers=self.n, reach=self.reach)

    def _transport(self, functions: Functions) -> Transport:
        from seqgc.backends import lambda_

        kind, session = self.settings.transport, functions.session
        region = session.region_name
        connections = max(_MOST_CONNECTIONS, 4 * self.n)
        limits = lambda_.Limits(timeout_s=self.settings.timeout_s, connections=connections)
        if kind == "boto3":
            return lambda_.Boto3Transport(
                functions.name,
                qualifier=functions.alias,
                limits=limits,
                region=region,
                endpoint_url=functions.endpoint_url,
                session=session,
            )
        if kind == "http" and functions.url:
            target = lambda_.Target.function_url(functions.url, region=region)
        else:
            target = lambda_.Target.invoke_api(
                functions.name,
                region=region,
                qualifier=functions.alias,
                endpoint_url=functions.endpoint_url,
            )
        signed = lambda_.CurlTransport if kind == "curl" else lambda_.HttpTransport
        return signed(target, limits=limits, credentials=session.get_credentials())
