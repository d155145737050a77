"""What a run is going to send and what it may cost, before anything is started or written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from seqgc.cli._config import RunConfig
from seqgc.cli._engine import FUNCTIONS, as_deployed, chosen_store
from seqgc.cli._sizes import TaskSizes, parameters_of, task_sizes
from seqgc.cost import Budget, FunctionSetup, Plan, PriceModel, Traffic, Where, read_prices
from seqgc.errors import ParameterError
from seqgc.stores import StoreChoice

if TYPE_CHECKING:
    from seqgc.cli._run import PreparedRun

__all__ = ["RunPlan", "budget_of", "plan_of", "require_fit", "require_priced"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """How much a run sends, and by way of which store.

    Before the first round every worker is invoked ``warm_up_rounds`` times.
    """

    workers: int
    rounds: int
    jobs: int
    sizes: TaskSizes
    store: StoreChoice
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
    def where(self) -> Where:
        """Where weights are, and results that no reply takes."""
        return self.store.kind

    @property
    def request_bytes(self) -> int:
        """The length of the largest task as JSON."""
        return self.sizes.request_bytes(self.where)

    @property
    def request_fits(self) -> bool:
        """Whether Lambda carries the largest task."""
        return self.request_bytes <= self.sizes.limit_bytes

    @property
    def traffic(self) -> Traffic:
        """The bytes that a task moves."""
        return self.sizes.traffic(self.where, master_outside=self.master_outside)

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


def plan_of(prepared: PreparedRun, *, deployed: bool | None = None) -> RunPlan:
    """Return the sizes of a run of functions, whatever its backend is.

    Its store is that of functions which are ``deployed``, or run on this machine; unless given, as
    its backend says.
    """
    config, scheme = prepared.config, prepared.scheme
    parameters = [parameters_of(model.module) for model in prepared.models]
    sizes = task_sizes(config, scheme, parameters=parameters)
    return RunPlan(
        workers=scheme.n,
        rounds=prepared.num_rounds,
        jobs=prepared.num_rounds - scheme.delay,
        sizes=sizes,
        store=chosen_store(config, sizes=sizes, deployed=deployed),
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
    if config.backend not in FUNCTIONS:
        return Budget(config.max_usd, model=None)
    function, plan = as_deployed(config), plan_of(prepared)
    model = PriceModel(
        read_prices(function.region),
        architecture=function.arch,
        function=FunctionSetup(memory_mb=function.memory_mb, timeout_s=function.timeout_s),
        traffic=plan.traffic,
    )
    least = plan.warm_ups * model.warm_up_usd + model.job_usd
    least += plan.workers * model.task_usd(model.longest_s)
    if config.max_usd < least:
        sent = "the warm-up and a round" if plan.warm_ups else "a round"
        rule = f"must be at least ${least:.6f}, for {sent} of cold starts that run to the time-out"
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
    if config.backend in FUNCTIONS:
        read_prices(as_deployed(config).region)


def require_fit(plan: RunPlan) -> None:
    """Refuse a run whose messages Lambda would not carry.

    Raises
    ------
    ParameterError
        Naming the size and the remedy.
    """
    limit = f"{plan.sizes.limit_bytes} bytes that Lambda carries"
    if not plan.request_fits:
        remedy = "weights in a store, smaller batches, or more workers"
        raise ParameterError("request", f"must not exceed the {limit}", plan.request_bytes, remedy)
    if plan.where == "inline" and not plan.sizes.reply_fits:
        rule = f"must be a store where a reply exceeds the {limit}"
        remedy = "store = 'directory' (EFS) or 's3', or a narrower payload"
        size = f"inline, for replies of {plan.sizes.reply_bytes} bytes"
        raise ParameterError("function.store", rule, size, remedy)
