"""The forecast of a run on functions: the bytes that it sends and the cost, before it starts."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from seqgc.costs import (
    Budget,
    FunctionSetup,
    PlannedUse,
    PriceModel,
    StayBudget,
    Traffic,
    find_prices,
)
from seqgc.errors import ParameterError
from seqgc.rounds import num_rounds
from seqgc.runs import RunHeader
from seqgc.schemes import Deal
from seqgc.stores import StoreChoice, choose_store
from seqgc.wire import StoreKind
from seqgc.workers._settings import FunctionSettings

if TYPE_CHECKING:
    from seqgc.training import TaskSizes, TrainingPlan

_WAYS = "mount the functions' file system and give --mount, or `seqgc deploy` once more"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The stores that functions can reach: on AWS a bucket, unless they have no route to S3."""

    deployed: bool
    s3: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The messages, the store and the use of a run on functions with these ``settings``."""

    use: PlannedUse
    sizes: TaskSizes
    store: StoreChoice
    settings: FunctionSettings

    @property
    def where(self) -> StoreKind:
        """The place of weights, and of results too large for a reply."""
        return self.store.kind

    @property
    def request_bytes(self) -> int:
        """The length of the largest task as JSON."""
        return self.sizes.request_bytes(self.where)

    @property
    def request_fits(self) -> bool:
        """True if the largest task fits into a message of Lambda."""
        return self.request_bytes <= self.sizes.limit_bytes

    def check(self) -> None:
        """Refuse, with `ParameterError`, a run whose messages would not be carried."""
        if not self.use.resident:
            require_fit(self.sizes, self.where)

    def budget(self, max_usd: float) -> Budget | StayBudget:
        """Return the run's budget in US dollars.

        It has to cover the warm-up and a round, or one stay of each function. Its prices are AWS's
        own where these can be had (`seqgc.costs.find_prices`). With an infinite amount it only
        counts, and AWS is not asked.
        """
        use = self.use
        model = PriceModel(
            find_prices(self.settings.region, ask=math.isfinite(max_usd)).prices,
            architecture=self.settings.arch,
            function=use.function,
            traffic=use.traffic,
        )
        if use.resident:
            least = use.workers * model.stays_usd(use.function.longest_s, count=1)
            least += model.job_usd + use.workers * model.moved_usd
            if max_usd < least:
                bound = f"${least:.6f}, for functions that stay as long as they may"
                raise ParameterError("max_usd", f"must be at least {bound}", max_usd)
            return StayBudget(max_usd, model=model)
        least = use.warm_ups * model.warm_up_usd + model.job_usd
        least += use.workers * model.worst_task_usd
        if max_usd < least:
            sent = "the warm-up and a round" if use.warm_ups else "a round"
            bound = f"${least:.6f}, for {sent} of cold starts that run to the time-out"
            raise ParameterError("max_usd", f"must be at least {bound}", max_usd)
        return Budget(max_usd, model=model, warm_ups=use.warm_ups)


def forecast(plan: TrainingPlan, n: int, settings: FunctionSettings, *, reach: Reach) -> Forecast:
    """Return what a run of ``n`` functions sends.

    Raises
    ------
    ParameterError
        If the plan is not for that many workers, or the store is out of the functions' reach.
    """
    run = plan.on(n)
    setting, jobs = run.setting, run.num_jobs
    header = RunHeader(
        event="run",
        schema=1,
        workers=n,
        jobs=jobs,
        rounds=num_rounds(setting.scheme, jobs),
        pieces=(setting.scheme.pieces or 0) if isinstance(setting.scheme, Deal) else 0,
        sizes=asdict(run.sizes),
    )
    predicted = hindsight(header, settings, reach=reach, adapts=plan.adaptation is not None)
    longest_s = setting.rule.longest_s
    return replace(predicted, use=replace(predicted.use, longest_round_s=longest_s))


def hindsight(
    header: RunHeader, settings: FunctionSettings, *, reach: Reach, adapts: bool
) -> Forecast:
    """Return what a run was going to send, by what its log says: nothing that it names is imported.

    Raises
    ------
    ParameterError
        If the log does not say it, or the store is out of the functions' reach.
    """
    from seqgc.training import TaskSizes

    try:
        sizes = TaskSizes(**header.sizes)
    except TypeError as error:
        rule = f"must have a log whose first line has the sizes of tasks ({error})"
        raise ParameterError("run", rule, sorted(header.sizes), "run it once more") from None
    n = header.workers
    store = choose(settings, None if adapts else sizes, workers=n, reach=reach)
    use = PlannedUse(
        workers=n,
        rounds=header.rounds,
        jobs=header.jobs,
        seconds_per_task=settings.expected_s,
        function=FunctionSetup(memory_mb=settings.memory_mb, timeout_s=settings.timeout_s),
        traffic=traffic_of(sizes, store.kind, settings=settings),
        warm_ups=0 if settings.resident else n * settings.warm_up,
        resident=settings.resident,
        pieces=header.pieces,
    )
    return Forecast(use=use, sizes=sizes, store=store, settings=settings)


def choose(
    settings: FunctionSettings, sizes: TaskSizes | None, *, workers: int, reach: Reach
) -> StoreChoice:
    """Return the store of a run of functions, and why it is that.

    What is not asked for is chosen by `seqgc.stores.choose_store`: of ``inline``, the bucket if the
    functions have a way there, and the file system if the master has it mounted. Functions of this
    machine share a folder of it, which is no slower than messages (measured: as quick for weights
    of 28 KB, twice as quick for 1 MB). Where sizes are not known (None), in a run that finds its
    schemes by itself, it is what takes any: the file system if it is mounted, else the bucket. One
    out of the functions' reach is refused.
    """
    if settings.store == "s3" and not reach.s3:
        rule, remedy = "must be auto, directory or inline with backend lambda-local", ""
        if reach.deployed:
            rule, remedy = "must be in the functions' reach, and these have no way to S3", _WAYS
        raise ParameterError("function.store", rule, "s3", remedy)
    if settings.store != "auto":
        return StoreChoice(kind=settings.store, reason="as asked for")
    if not reach.deployed:
        return StoreChoice(kind="directory", reason="a folder of this machine, in place of EFS")
    offered: dict[StoreKind, bool] = {"directory": settings.mount is not None, "s3": reach.s3}
    stores = [kind for kind, there in offered.items() if there]
    if sizes is None:
        if not stores:
            rule = "must be there where sizes are not known beforehand (--probe, --retune)"
            raise ParameterError("function.store", rule, "auto", _WAYS)
        reason = "takes any size: the schemes to come, and so sizes, are not known"
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
    """Return what a task moves by way of a store; resident functions answer by their connection."""
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
    """Refuse, with `ParameterError`, a run whose messages Lambda would not carry."""
    limit, request_bytes = sizes.limit_bytes, sizes.request_bytes(where)
    carried = f"{limit} bytes that Lambda carries"
    if request_bytes > limit:
        remedy = "weights in a store, smaller batches, or more workers"
        raise ParameterError("request", f"must not exceed the {carried}", request_bytes, remedy)
    if where == "inline" and not sizes.reply_fits:
        rule = f"must be a store where a reply exceeds the {carried}"
        remedy = "store = 'directory' (EFS) or 's3', or a narrower payload"
        size = f"inline, for replies of {sizes.reply_bytes} bytes"
        raise ParameterError("function.store", rule, size, remedy)


def _round_usd(
    kind: StoreKind, settings: FunctionSettings, workers: int, sizes: TaskSizes
) -> float | None:
    """Return what a round costs beside the functions' time; None if the region has no prices."""
    try:
        prices = find_prices(settings.region, ask=False).prices
    except ParameterError:
        return None
    traffic = traffic_of(sizes, kind, settings=settings)
    usage = traffic.publication().times(traffic.versions) + traffic.task().times(workers)
    return prices.bill(usage, architecture=settings.arch).usd
