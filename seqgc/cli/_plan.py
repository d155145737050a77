"""What a run is going to send, before anything is started or written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from seqgc.cli._config import RunConfig
from seqgc.cli._engine import as_deployed
from seqgc.cost import (
    Budget,
    FunctionSetup,
    Plan,
    PriceModel,
    Traffic,
    Where,
    read_prices,
)
from seqgc.errors import ParameterError
from seqgc.payloads import payload_format

if TYPE_CHECKING:
    from seqgc.cli._run import PreparedRun
    from seqgc.schemes import Scheme
    from seqgc.train import Model

__all__ = ["RunPlan", "budget_of", "plan_of", "require_fit", "require_priced"]

# What messages weigh: a little more than they do, so that what is said to fit fits.
_FRAME_BYTES: Final = 4096  # of a request or reply, beside what is in it
_POINT_BYTES: Final = 16  # an index and a coefficient
_PART_BYTES: Final = 400  # of a part beside its points: whose weights, and their digest
_MODEL_BYTES: Final = 100  # of a model's settings, beside its names
_FUNCTIONS: Final = ("lambda", "lambda-local")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """The sizes of a run; requests and replies in bytes as JSON, the largest there are.

    ``where`` weights are; ``weights_bytes`` are those of one job. ``fits`` says whether a reply
    takes a task's results; else they go through the store (``stored``), or nowhere. Before the
    first round every worker is invoked ``warm_up_rounds`` times.
    """

    workers: int
    rounds: int
    jobs: int
    where: Where
    weights_bytes: int
    weights_files: int
    result_bytes: int
    request_bytes: int
    reply_bytes: int
    limit_bytes: int
    warm_up_rounds: int = 0
    master_outside: bool = False

    @property
    def invocations(self) -> int:
        """How many tasks are sent, without repeated attempts."""
        return self.workers * self.rounds

    @property
    def warm_ups(self) -> int:
        """How many invocations there are before the first round."""
        return self.workers * self.warm_up_rounds

    @property
    def request_fits(self) -> bool:
        """Whether Lambda carries the largest task."""
        return self.request_bytes <= self.limit_bytes

    @property
    def reply_fits(self) -> bool:
        """Whether Lambda carries the largest task's results in a reply."""
        return self.reply_bytes <= self.limit_bytes

    @property
    def traffic(self) -> Traffic:
        """The bytes that a task moves."""
        return Traffic(
            where=self.where,
            weights_bytes=0 if self.where == "inline" else self.weights_bytes,
            weights_files=self.weights_files,
            result_bytes=self.result_bytes,
            results_stored=not self.reply_fits and self.where != "inline",
            master_outside=self.master_outside,
        )

    def cost_plan(self, function: FunctionSetup, *, seconds: float | None) -> Plan:
        """Return what `seqgc.cost.estimate_plan` takes."""
        return Plan(
            workers=self.workers,
            rounds=self.rounds,
            jobs=self.jobs,
            seconds_per_task=seconds,
            function=function,
            traffic=self.traffic,
            warm_ups=self.warm_ups,
        )


def plan_of(prepared: PreparedRun) -> RunPlan:
    """Return the sizes of a run of functions, whatever its backend is."""
    from seqgc.backends.lambda_ import MAX_BODY_BYTES
    from seqgc.wire import envelope_bytes

    config, scheme, models = prepared.config, prepared.scheme, prepared.models
    bundle = config.jobs_per_round
    bundles = [models[i : i + bundle] for i in range(0, len(models), bundle)]
    parameters = max(sum(_size(model) for model in each) for each in bundles)
    points = max(sum(model.batch_size for model in each) for each in bundles)
    mini_tasks, load = _heaviest(scheme, config.steps * len(bundles))
    payload = payload_format(config.payload or config.precision)
    weights = parameters * np.dtype(config.precision).itemsize
    results = mini_tasks * (parameters + bundle) * payload.bits // 8  # and a loss for each model
    where = _where(config)
    sent = int(np.ceil(load * points)) * _POINT_BYTES + mini_tasks * bundle * _PART_BYTES
    sent += sum(_MODEL_BYTES + len(m.name + m.module + m.data) for m in config.models)
    if where == "inline":
        sent += mini_tasks * weights
    return RunPlan(
        workers=scheme.n,
        rounds=prepared.num_rounds,
        jobs=config.steps * len(bundles),
        where=where,
        weights_bytes=weights,
        weights_files=bundle,
        result_bytes=results,
        request_bytes=envelope_bytes(sent + _FRAME_BYTES),
        reply_bytes=envelope_bytes(results + _FRAME_BYTES),
        limit_bytes=MAX_BODY_BYTES,
        warm_up_rounds=config.function.warm_up,
        master_outside=config.function.master_outside,
    )


def budget_of(prepared: PreparedRun) -> Budget | None:
    """Return the run's budget, if it has one; one's own machines cost nothing.

    Raises
    ------
    ParameterError
        If the warm-up and a single round could pass it.
    """
    config = prepared.config
    if config.max_usd is None:
        return None
    if config.backend not in _FUNCTIONS:
        return Budget(config.max_usd, model=None)
    function, plan = as_deployed(config), plan_of(prepared)
    model = PriceModel(
        read_prices(function.region),
        architecture=function.arch,
        function=FunctionSetup(memory_mb=function.memory_mb, timeout_s=function.timeout_s),
        traffic=plan.traffic,
    )
    least = plan.warm_ups * model.warm_up_usd + model.job_usd
    least += plan.workers * model.task_usd(model.timeout_s)
    if config.max_usd < least:
        sent = "the warm-up and a round" if plan.warm_ups else "a round"
        rule = f"must be at least ${least:.6f}, for {sent} where all run to the time-out"
        raise ParameterError("max_usd", rule, config.max_usd)
    return Budget(config.max_usd, model=model, warm_ups=plan.warm_ups)


def require_priced(config: RunConfig) -> None:
    """Refuse a budget for what has no price that is known beforehand.

    Raises
    ------
    ParameterError
        Naming the budget, or the region.
    """
    if config.max_usd is None:
        return
    if config.probe is not None or config.retune is not None:
        rule = "must be left out with `probe` or `retune`: schemes not known yet have no price"
        raise ParameterError("max_usd", rule, config.max_usd)
    if config.backend in _FUNCTIONS:
        read_prices(as_deployed(config).region)


def require_fit(plan: RunPlan) -> None:
    """Refuse a run whose messages Lambda would not carry.

    Raises
    ------
    ParameterError
        Naming the size and the remedy.
    """
    limit = f"{plan.limit_bytes} bytes that Lambda carries"
    if not plan.request_fits:
        remedy = "weights in a store, smaller batches, or more workers"
        raise ParameterError("request", f"must not exceed the {limit}", plan.request_bytes, remedy)
    if plan.where == "inline" and not plan.reply_fits:
        rule = f"must be a store where a reply exceeds the {limit}"
        remedy = "store = 'directory' (EFS) or 's3', or a narrower payload"
        size = f"inline, for replies of {plan.reply_bytes} bytes"
        raise ParameterError("function.store", rule, size, remedy)


def _where(config: RunConfig) -> Where:
    function = config.function
    if function.store != "auto":
        return function.store
    return "s3" if config.backend == "lambda" and function.mount is None else "directory"


def _heaviest(scheme: Scheme, num_jobs: int) -> tuple[int, float]:
    """Return the most mini-tasks, and the most batches of data points, of any worker's round.

    All mini-tasks that a scheme ever sends at once it sends in round T if nobody straggles; what
    stragglers leave takes their place.
    """
    schedule = scheme.start(num_jobs)
    everyone = np.ones(scheme.n, dtype=np.bool_)
    while schedule.round < min(scheme.delay, schedule.num_rounds - 1):
        schedule.close_round(everyone)
    most = max(len(tasks) for tasks in schedule.assignment())
    fractions = scheme.chunk_fractions
    load = max(
        sum(float(fractions[np.asarray(task.chunks)].sum()) for task in tasks)
        for tasks in schedule.assignment()
    )
    return most, max(load, scheme.normalized_load)


def _size(model: Model) -> int:
    return sum(p.numel() for p in model.module.parameters() if p.requires_grad)
