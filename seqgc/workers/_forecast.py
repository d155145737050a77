"""The forecast of a run on cloud functions: its messages, its store and its cost."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from seqgc.costs import (
    Budget,
    Meter,
    PlannedUse,
    Prices,
    ServiceCost,
    Traffic,
    compare_services,
    estimate_plan,
    find_prices,
)
from seqgc.errors import ParameterError
from seqgc.rounds import num_rounds
from seqgc.runs import RunHeader
from seqgc.stores import StoreChoice, choose_store
from seqgc.wire import StoreKind
from seqgc.workers._settings import FunctionSettings

if TYPE_CHECKING:
    from seqgc.training import TaskSizes, TrainingPlan

_WAYS = "mount the functions' file system and give --mount, or run `seqgc deploy` again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The stores that functions can reach.

    ``deployed`` is True for functions on AWS, and ``s3`` is True if they have a route to S3.
    """

    deployed: bool
    s3: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The expected use of cloud functions by a run, its message sizes and its store."""

    use: PlannedUse
    sizes: TaskSizes
    store: StoreChoice
    settings: FunctionSettings

    @property
    def where(self) -> StoreKind:
        """The place where weights are stored, and results that are too large for a reply."""
        return self.store.kind

    @property
    def request_bytes(self) -> int:
        """The size of the largest task in a message, as JSON."""
        return self.sizes.request_bytes(self.where)

    @property
    def step_result_bytes(self) -> int:
        """The bytes of all results of a step: each task, or piece, returns a whole gradient."""
        return (self.use.pieces or self.use.workers) * self.sizes.result_bytes

    @property
    def request_fits(self) -> bool:
        """True if the largest task fits into a request to Lambda."""
        return self.request_bytes <= self.sizes.limit_bytes

    def check(self) -> None:
        """Raise `ParameterError` if a message of the run is too large for Lambda."""
        if not self.use.resident:
            require_fit(self.sizes, self.where)

    def compare(self, prices: Prices) -> list[ServiceCost]:
        """Return the likely cost of the run on several services; see `compare_services`.

        The list is empty if the time of a task is not known.
        """
        invoked, stays = (self._use(resident=resident) for resident in (False, True))
        return compare_services(invoked, stays, prices, architecture=self.settings.arch)

    def _use(self, *, resident: bool) -> PlannedUse:
        """Return the use of the run if functions stay, or if they are invoked for each task."""
        settings = self.settings.model_copy(update={"resident": resident})
        traffic = traffic_of(self.sizes, self.where, settings=settings)
        warm_ups = 0 if resident else self.use.workers * settings.warm_up
        function = settings.setup
        if resident:  # functions that stay need a file system's VPC, which excludes SnapStart
            function = replace(function, snapstart=False)
        return replace(
            self.use, resident=resident, traffic=traffic, warm_ups=warm_ups, function=function
        )

    def budget(self, max_usd: float) -> Budget:
        """Return an observer that stops the run before it can cost more than ``max_usd``.

        ``max_usd`` is in US dollars. If it is infinite, the observer only counts the cost, and
        AWS's price list is not requested (`seqgc.costs.find_prices`).

        Raises
        ------
        ParameterError
            If ``max_usd`` is too small for the warm-up and one round, or for resident functions
            that run to their time-out.
        """
        use, arch = self.use, self.settings.arch
        prices = find_prices(self.settings.region, ask=math.isfinite(max_usd)).prices
        least = prices.bill(estimate_plan(use.first_round).at_most, architecture=arch).usd
        if max_usd < least:
            tasks = "the warm-up and a round" if use.warm_ups else "a round"
            what = "resident functions" if use.resident else f"{tasks} of cold starts"
            bound = f"${least:.6f}, for {what} that run to the time-out"
            raise ParameterError("max_usd", f"must be at least {bound}", max_usd)
        return Budget(max_usd, meter=use.meter(), prices=prices, architecture=arch)


def forecast(plan: TrainingPlan, n: int, settings: FunctionSettings, *, reach: Reach) -> Forecast:
    """Return the forecast of a planned run on ``n`` functions.

    Raises
    ------
    ParameterError
        If the plan is for another number of workers, or the functions cannot reach the store.
    """
    run = plan.on(n)
    setting, jobs = run.setting, run.num_jobs
    header = RunHeader(
        event="run",
        schema=1,
        workers=n,
        jobs=jobs,
        rounds=num_rounds(setting.scheme, jobs),
        pieces=setting.scheme.num_pieces,
        sizes=asdict(run.sizes),
    )
    predicted = hindsight(header, settings, reach=reach, adapts=plan.adaptation is not None)
    longest_s = setting.rule.longest_s
    return replace(predicted, use=replace(predicted.use, longest_round_s=longest_s))


def hindsight(
    header: RunHeader, settings: FunctionSettings, *, reach: Reach, adapts: bool
) -> Forecast:
    """Return the forecast of a recorded run, from the first line of its log.

    No module that the run names is imported. ``adapts`` says whether the run chose its schemes
    itself, so that the log has only the sizes of the first scheme.

    Raises
    ------
    ParameterError
        If the log lacks the sizes of tasks, or the functions cannot reach the store.
    """
    from seqgc.training import TaskSizes

    try:
        sizes = TaskSizes(**header.sizes)
    except TypeError as error:
        rule = f"must have a log whose first line has the sizes of tasks ({error})"
        raise ParameterError("run", rule, sorted(header.sizes), "train again") from None
    n = header.workers
    store = choose(settings, None if adapts else sizes, workers=n, reach=reach)
    use = PlannedUse(
        workers=n,
        rounds=header.rounds,
        jobs=header.jobs,
        seconds_per_task=settings.expected_s,
        function=settings.setup,
        traffic=traffic_of(sizes, store.kind, settings=settings),
        warm_ups=0 if settings.resident else n * settings.warm_up,
        resident=settings.resident,
        pieces=header.pieces,
    )
    return Forecast(use=use, sizes=sizes, store=store, settings=settings)


def choose(
    settings: FunctionSettings, sizes: TaskSizes | None, *, workers: int, reach: Reach
) -> StoreChoice:
    """Return the store of a run on functions, with the reason for the choice.

    If the settings name a store, it is used. Otherwise `seqgc.stores.choose_store` chooses between
    messages (``inline``), the bucket if functions can reach S3, and the file system if the master
    has mounted it. Functions of this machine use a folder, which is at least as fast as messages
    (measured: equally fast for weights of 28 KB, twice as fast for 1 MB). ``sizes`` is None if the
    run chooses its schemes itself. Such a run needs a store for any size, so it uses the file
    system if it is mounted, else the bucket.

    Raises
    ------
    ParameterError
        If the functions cannot reach the store, or there is no store for any size.
    """
    if settings.store == "s3" and not reach.s3:
        rule, remedy = "must be auto, directory or inline with backend lambda-local", ""
        if reach.deployed:
            rule, remedy = "must be a store that the functions can reach; they have no S3", _WAYS
        raise ParameterError("function.store", rule, "s3", remedy)
    if settings.store != "auto":
        return StoreChoice(kind=settings.store, reason="as configured")
    if not reach.deployed:
        return StoreChoice(kind="directory", reason="a folder of this machine, in place of EFS")
    available: dict[StoreKind, bool] = {"directory": settings.mount is not None, "s3": reach.s3}
    stores = [kind for kind, is_available in available.items() if is_available]
    if sizes is None:
        if not stores:
            rule = "must be directory or s3 with --probe or --retune, because sizes are unknown"
            raise ParameterError("function.store", rule, "auto", _WAYS)
        reason = (
            "takes results of any size; the schemes, and therefore the sizes, are not known yet"
        )
        return StoreChoice(kind=stores[0], reason=reason)
    return choose_store(
        request_bytes=sizes.request_bytes("inline"),
        reply_bytes=sizes.reply_bytes,
        workers=workers,
        round_usd={kind: _round_usd(kind, settings, workers, sizes) for kind in stores},
        limit_bytes=sizes.limit_bytes,
        master_outside=settings.master_outside,
    )


def traffic_of(sizes: TaskSizes, where: StoreKind, *, settings: FunctionSettings) -> Traffic:
    """Return the bytes that a task moves in addition to its message, with this store."""
    # Resident functions send results of any size over their connection.
    in_reply = sizes.reply_fits or where == "inline" or settings.resident
    return Traffic(
        where=where,
        weights_bytes=0 if where == "inline" else sizes.weights_bytes,
        weights_files=sizes.weights_files,
        weights_jobs=sizes.mini_tasks,
        versions=sizes.versions,
        result_bytes=sizes.result_bytes,
        results_stored=not in_reply,
        master_outside=settings.master_outside,
    )


def require_fit(sizes: TaskSizes, where: StoreKind) -> None:
    """Raise `ParameterError` if the largest request or reply exceeds Lambda's limit.

    ``where`` is the store of the run.
    """
    limit, request_bytes = sizes.limit_bytes, sizes.request_bytes(where)
    bound = f"{limit} bytes that Lambda accepts"
    if request_bytes > limit:
        remedy = "keep weights in a store, or use smaller batches or more workers"
        raise ParameterError("request", f"must not exceed the {bound}", request_bytes, remedy)
    if where == "inline" and not sizes.reply_fits:
        rule = f"must be directory or s3 if a reply exceeds the {bound}"
        remedy = "set store = 'directory' (EFS) or 's3', or use a narrower payload"
        size = f"inline, for replies of {sizes.reply_bytes} bytes"
        raise ParameterError("function.store", rule, size, remedy)


def _round_usd(
    kind: StoreKind, settings: FunctionSettings, workers: int, sizes: TaskSizes
) -> float | None:
    """Return the price of the bytes that a round moves; None if the region has no prices."""
    try:
        prices = find_prices(settings.region, ask=False).prices
    except ParameterError:
        return None
    traffic = traffic_of(sizes, kind, settings=settings)
    meter = Meter(function=settings.setup, traffic=traffic)
    meter.move(tasks=workers, published=traffic.versions)
    return prices.bill(meter.likely, architecture=settings.arch).usd
