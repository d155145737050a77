"""The cost of a run on cloud functions: estimates before it, budgets during it, and its bill."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from seqgc.costs.prices import (
    INIT_LIMIT_S,
    START_S,
    Architecture,
    FunctionSetup,
    Prices,
    Traffic,
    Usage,
)
from seqgc.errors import BudgetError, ParameterError, require_int
from seqgc.ports import Arrival, Dispatch, Dispatched, Failure, Seen
from seqgc.runs import END, read_run_log

if TYPE_CHECKING:
    from seqgc.backends.lambda_ import Leases

_Address = tuple[int, int, int]  # round, worker, attempt

# A resident function's successor is invoked after this share of the function's time-out: usually,
# and at the earliest.
_USUAL_SHARE, _LEAST_SHARE = 13 / 15, 12 / 15


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedUse:
    """The cloud functions that a run plans to use: one task for each worker in each round.

    The weights of a job are published once, or in ``traffic.versions`` versions. A task is expected
    to run ``seconds_per_task``, for example the median of a profile. If this is None, only the
    time-out bounds a task. The ``warm_ups`` are invocations before the first round that compute
    nothing; each is expected to run as long as a task. The likely usage assumes that the
    environment of each worker starts once, in `START_S` seconds. The upper bound assumes that an
    environment starts for every invocation, and takes the longest time allowed.

    ``resident`` functions run until the run ends, and are paid for even while they are idle. A
    round lasts at most ``longest_round_s``, or the time-out if this is infinite.

    If batches are split into ``pieces`` that free workers fetch (`deal`), a job has ``pieces``
    tasks, and each worker first gets an empty task.
    """

    workers: int
    rounds: int
    jobs: int
    seconds_per_task: float | None
    function: FunctionSetup
    traffic: Traffic
    warm_ups: int = 0
    resident: bool = False
    longest_round_s: float = math.inf
    pieces: int = 0

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("rounds", 1), ("jobs", 1), ("warm_ups", 0)):
            object.__setattr__(self, name, require_int(name, getattr(self, name), least=least))
        if self.seconds_per_task is not None and self.seconds_per_task < 0:
            raise ParameterError("seconds", "must be >= 0", self.seconds_per_task)

    @property
    def tasks(self) -> int:
        """The number of tasks, without repeated attempts."""
        if self.pieces:
            return self.workers + self.jobs * self.pieces
        return self.workers * self.rounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The likely usage of a run, and an upper bound.

    ``likely`` is None if the duration of tasks is not known. The upper bound ``at_most`` assumes
    that every task whose end is not known starts an environment and runs to the function's
    time-out. ``unanswered`` is the number of tasks that were neither answered nor failed.
    """

    likely: Usage | None
    at_most: Usage
    unanswered: int = 0


def estimate_plan(plan: PlannedUse) -> Estimate:
    """Return the usage of a plan in which no task is repeated.

    Examples
    --------
    >>> plan = PlannedUse(
    ...     workers=2, rounds=3, jobs=3, seconds_per_task=0.5,
    ...     function=FunctionSetup(memory_mb=1024, timeout_s=10.0),
    ...     traffic=Traffic(where="inline", weights_bytes=0, result_bytes=8),
    ... )
    >>> estimate = estimate_plan(plan)
    >>> estimate.likely.requests, estimate.likely.gb_seconds, estimate.at_most.gb_seconds
    (6, 8.0, 120.0)
    """
    published = plan.traffic.publication().times(plan.jobs * plan.traffic.versions)
    if plan.resident:
        return _estimate_stays(plan, published)
    invocations = plan.tasks + plan.warm_ups
    worst = plan.function.invocation(plan.function.longest_s).times(invocations) + published
    worst += plan.traffic.task(fresh=True).times(plan.tasks)
    if plan.seconds_per_task is None:
        return Estimate(likely=None, at_most=worst)
    likely = plan.function.invocation(plan.seconds_per_task).times(invocations) + published
    likely += plan.traffic.task().times(plan.tasks) + plan.function.start().times(plan.workers)
    return Estimate(likely=likely, at_most=worst)


def _estimate_stays(plan: PlannedUse, published: Usage) -> Estimate:
    """Return the usage of resident functions. A stay is one long invocation of such a function.

    The upper bound assumes that a successor is invoked after 12/15 of a stay, and that both
    functions run until the end of this stay.
    """
    function, n = plan.function, plan.workers

    def stays(lasts_s: float, start_s: float, share: float) -> Usage:
        count = max(1, math.ceil(lasts_s / (share * function.timeout_s)))
        both_s = count * (1 - share) * function.timeout_s if share < _USUAL_SHARE else 0.0
        return function.stays(lasts_s + count * start_s + both_s, count=count).times(n)

    longest_s = plan.longest_round_s
    if not math.isfinite(longest_s):  # only the time-out bounds it
        longest_s = function.timeout_s
    worst = stays(plan.rounds * longest_s, INIT_LIMIT_S, _LEAST_SHARE) + published
    worst += plan.traffic.task(fresh=True).times(plan.tasks)
    if plan.seconds_per_task is None:
        return Estimate(likely=None, at_most=worst)
    likely_s = plan.tasks / n * plan.seconds_per_task  # one task after the other
    likely = stays(likely_s, START_S, _USUAL_SHARE) + published
    return Estimate(likely=likely + plan.traffic.task().times(plan.tasks), at_most=worst)


def estimate_run(
    run: str | Path,
    *,
    function: FunctionSetup,
    traffic: Traffic | None = None,
    warm_ups: int = 0,
    resident: bool = False,
) -> Estimate:
    """Return the usage of a run, from the times in its ``events.jsonl``.

    The likely usage charges a task from its dispatch to its answer or failure, which includes the
    time of the network and the start of an environment. If a task was cancelled without an answer,
    it is charged until it was cancelled.

    The upper bound charges unanswered and failed tasks for a start and until the time-out, because
    a function continues after its connection has broken. Answered tasks are charged from the
    dispatch of their round, and every task for reading all its weights. The ``warm_ups``, which are
    invocations before the first round, are added because the log does not have them.

    Without ``traffic``, moved bytes are not charged. ``resident`` says that functions ran as long
    as the run.

    Raises
    ------
    ParameterError
        If ``run`` is not the folder of a run.
    """
    header, events = read_run_log(Path(run))

    def task(seconds: float, mini_tasks: int | None, *, fresh: bool = False) -> Usage:
        used = Usage() if resident else function.invocation(seconds)
        if traffic is None:
            return used
        return used + traffic.task(fresh=fresh, mini_tasks=mini_tasks)

    likely, at_most = Usage(), function.invocation(function.longest_s).times(warm_ups)
    jobs: set[int] = set()
    published = 0  # versions of the jobs' weights
    # The open tasks: their time of dispatch in seconds, and their number of mini-tasks.
    sent: dict[_Address, tuple[float, int | None]] = {}
    cancelled: dict[_Address, float] = {}
    unanswered = 0
    for event, _ in events:
        address = event.round, event.worker, event.attempt
        if event.event == END:
            for each, (sent_s, count) in sent.items():
                likely += task(cancelled.get(each, event.at_s) - sent_s, count)
                at_most += task(function.longest_s, count, fresh=True)
            unanswered += len(sent)
            sent, cancelled = {}, {}
            if resident:
                count = max(1, math.ceil(event.at_s / (_USUAL_SHARE * function.timeout_s)))
                n, stayed_s = header.workers, event.at_s + count * START_S
                likely += function.stays(stayed_s, count=count).times(n)
                over_s = function.longest_s + count * (INIT_LIMIT_S - START_S)
                at_most += function.stays(stayed_s + over_s, count=count + 1).times(n)
        elif event.event == "dispatch":
            several = traffic is not None and traffic.versions > 1
            published += len(event.jobs) if several else len(set(event.jobs) - jobs)
            jobs.update(event.jobs)
            workers = range(header.workers) if event.workers is None else event.workers
            sent |= {
                (event.round, worker, event.attempt): (event.at_s, count)
                for worker, count in zip(workers, event.counts(len(workers)), strict=True)
            }
        elif event.event == "cancel":
            over = {(event.round, worker) for worker in event.workers or ()}
            cancelled |= {each: event.at_s for each in sent if each[:2] in over}
        elif event.event in ("arrival", "failure") and address in sent:  # else a duplicate
            # The times in the log are the master's: the dispatch is logged before the first task of
            # the round leaves, and an answer a little late. `took_s` begins when this task left.
            sent_s, count = sent.pop(address)
            lasted_s = event.at_s - sent_s
            likely += task(lasted_s if event.took_s is None else event.took_s, count)
            failed = event.event == "failure"
            at_most += task(function.longest_s if failed else lasted_s, count, fresh=True)
    moved = Usage() if traffic is None else traffic.publication().times(published)
    return Estimate(likely=likely + moved, at_most=at_most + moved, unanswered=unanswered)


@dataclass(frozen=True, slots=True)
class PriceModel:
    """The prices of tasks, publications and warm-ups of cloud functions, in US dollars.

    ``traffic`` describes the bytes that a task moves through the store.

    Examples
    --------
    >>> from seqgc.costs import read_prices
    >>> function = FunctionSetup(memory_mb=1024, timeout_s=10.0)
    >>> traffic = Traffic(where="inline", weights_bytes=0, result_bytes=8)
    >>> model = PriceModel(read_prices(), architecture="arm64", function=function, traffic=traffic)
    >>> model.task_usd(3.0) == 3 * 0.0000133334 + 0.20 / 1e6
    True
    """

    prices: Prices
    _: KW_ONLY
    architecture: Architecture
    function: FunctionSetup
    traffic: Traffic

    @property
    def worst_task_usd(self) -> float:
        """The highest price of a task, which starts an environment and runs to the time-out."""
        return self.task_usd(self.function.longest_s)

    @property
    def job_usd(self) -> float:
        """The price of publishing a job's weights."""
        return self._usd(self.traffic.publication())

    @property
    def warm_up_usd(self) -> float:
        """The highest price of an invocation before the first round."""
        return self._usd(self.function.invocation(self.function.longest_s))

    def task_usd(self, seconds: float) -> float:
        """Return the price of a task of this many seconds.

        The seconds include the start of an environment, if there was one. The task is assumed to
        read all its weights, as it does after a start.
        """
        return self._usd(self.function.invocation(seconds) + self.traffic.task(fresh=True))

    @property
    def moved_usd(self) -> float:
        """The price of the bytes that a task moves, without its time."""
        return self._usd(self.traffic.task(fresh=True))

    def stays_usd(self, seconds: float, *, count: int) -> float:
        """Return the price of ``count`` invocations of resident functions, ``seconds`` in total."""
        return self._usd(self.function.stays(seconds, count=count))

    def _usd(self, usage: Usage) -> float:
        return self.prices.bill(usage, architecture=self.architecture).usd


@dataclass(frozen=True, slots=True)
class Published:
    """A count of the weights that a run has published.

    Usually each job's weights are published once, and ``newest`` is the last job with published
    weights. It is None in a resumed run before its first task. If ``each_time``, weights are
    published again for each group of tasks that leave together (`Traffic.versions`). ``count`` is
    the number of publications by this process.
    """

    count: int = 0
    newest: int | None = -1
    each_time: bool = False

    def and_for(self, action: Dispatch) -> Published:
        """Return the count after the tasks of this action have left."""
        jobs = [m.job for tasks in action.assignment.values() for m in tasks]
        if not jobs:
            return self
        if self.each_time:
            return replace(self, count=self.count + len(set(jobs)))
        before = max(jobs) - 1 if self.newest is None else self.newest
        newest = max(before, *jobs)
        return Published(self.count + newest - before, newest)


class Budget:
    """An observer that stops a run before it can cost more than ``max_usd`` US dollars.

    If ``max_usd`` is infinite, the observer only counts the cost.

    Tasks leave only if the budget covers the worst case, in which every unfinished task starts an
    environment (which is billed, at most `INIT_LIMIT_S`) and runs to the function's time-out. An
    answered task is charged from its departure to its answer. AWS cannot charge more than this,
    because the master also waits for the start. A failed task is charged like an unfinished task:
    perhaps only the connection broke, and the function continues. The amount for the warm-up is
    never released, because Lambda may start environments in advance, and the run cannot see this.

    ``spent_usd`` is an upper bound on the cost of the finished tasks and the warm-up. ``model``
    gives the price of a task; None means that tasks are free, as on the user's own machines. The
    ``warm_ups`` are invocations before the first round. Each is charged for a start and until the
    time-out.

    Raises
    ------
    ParameterError
        If ``max_usd`` is negative, or less than the warm-up can cost.

    Examples
    --------
    >>> Budget(0.5, model=None).committed_usd
    0.0
    """

    def __init__(self, max_usd: float, *, model: PriceModel | None, warm_ups: int = 0) -> None:
        if not max_usd >= 0:
            raise ParameterError("max_usd", "must be an amount in US dollars >= 0", max_usd)
        self._max_usd, self._model = max_usd, model
        self.spent_usd = 0.0 if model is None else warm_ups * model.warm_up_usd
        if self.spent_usd > max_usd:
            rule = f"must be at least ${self.spent_usd:.6f}, the highest cost of the warm-up"
            raise ParameterError("max_usd", rule, max_usd)
        # The departure, in seconds, of each task (round, worker, attempt); -inf before it leaves.
        self._open: dict[tuple[int, int, int], float] = {}
        self._published = Published(each_time=model is not None and model.traffic.versions > 1)

    @property
    def committed_usd(self) -> float:
        """The highest possible cost of all tasks so far, in US dollars.

        Each unfinished task is assumed to start an environment and run to the time-out.
        """
        if self._model is None:
            return 0.0
        return self.spent_usd + len(self._open) * self._model.worst_task_usd

    @property
    def memory(self) -> Mapping[str, float]:
        """The amounts that `recall` needs after a resume; unfinished tasks count in full."""
        committed_usd = self.committed_usd
        return {"committed_usd": committed_usd, "open_usd": committed_usd - self.spent_usd}

    def recall(self, memory: Mapping[str, float]) -> None:
        """Add the amounts in a saved `memory`: the cost of the run up to its interruption.

        Also add the cost of publishing the weights of the unfinished jobs again. Raises
        `BudgetError` if the total exceeds the budget.
        """
        self.spent_usd += memory["committed_usd"]
        self._published = replace(self._published, count=0, newest=None)
        if self._model is not None:
            self.spent_usd += self._model.traffic.weights_jobs * self._model.job_usd
        if self.spent_usd > self._max_usd:
            raise BudgetError(
                f"not resumed: with a new warm-up the run may have spent ${self.spent_usd:.6f} "
                f"of a budget of ${self._max_usd:.6f} (raise --max-usd)",
                round=0,
                spent_usd=self.spent_usd,
            )

    def __call__(self, seen: Seen) -> None:
        """Update the cost; raise `BudgetError` if the tasks of a dispatch could exceed the budget.

        ``seen`` is an event or action of the run.
        """
        if self._model is None:
            return
        match seen:
            case Dispatch():
                self._admit(seen, self._model)
            case Dispatched():
                for worker, left_at in zip(seen.workers, seen.left_at, strict=True):
                    self._open[seen.round, worker, seen.attempt] = left_at
            case Arrival() | Failure():
                self._settle(seen, self._model)

    def _admit(self, action: Dispatch, model: PriceModel) -> None:
        published = self._published.and_for(action)
        published_usd = (published.count - self._published.count) * model.job_usd
        worst = len(action.assignment) * model.worst_task_usd + published_usd
        committed = self.committed_usd
        if committed + worst > self._max_usd:
            unfinished = committed - self.spent_usd
            raise BudgetError(
                f"stopped before round {action.round}, which could cost ${worst:.6f}: of the "
                f"budget of ${self._max_usd:.6f}, ${self.spent_usd:.6f} is spent and "
                f"${unfinished:.6f} reserved for unfinished tasks; the run's checkpoints have the "
                "trained weights (raise --max-usd)",
                round=action.round,
                spent_usd=self.spent_usd,
            )
        self.spent_usd += published_usd
        self._published = published
        for worker in action.assignment:
            self._open[action.round, worker, action.attempt] = -math.inf

    def _settle(self, event: Arrival | Failure, model: PriceModel) -> None:
        left_at = self._open.pop((event.round, event.worker, event.attempt), None)
        if left_at is not None:  # otherwise the event is a duplicate
            failed = isinstance(event, Failure)
            self.spent_usd += model.worst_task_usd if failed else model.task_usd(event.at - left_at)


class StayBudget:
    """An observer that stops a run on resident functions before it can cost over ``max_usd``.

    A resident function handles many tasks in one long invocation. It is paid for from its start to
    its end, even while it is idle. Its lease is the time from its start to its time-out. Until the
    end of a function is certain, the rest of its lease is reserved, because a function may continue
    after its connection has broken. A function is invoked, or a task sent, only if the budget
    suffices even when all functions run to their time-out. The bytes that a task moves through the
    store are charged when the task leaves. ``max_usd`` is in US dollars.

    Raises
    ------
    ParameterError
        If ``max_usd`` is negative.

    Examples
    --------
    >>> from seqgc.backends.lambda_ import Leases
    >>> from seqgc.costs import FunctionSetup, Traffic, read_prices
    >>> function = FunctionSetup(memory_mb=1024, timeout_s=890.0)
    >>> traffic = Traffic(where="inline", weights_bytes=0, result_bytes=8)
    >>> model = PriceModel(read_prices(), architecture="arm64", function=function, traffic=traffic)
    >>> leases = Leases(longest_s=function.longest_s)
    >>> budget = StayBudget(1.0, model=model)
    >>> budget.watch(leases)
    >>> leases.begin(0, at=0.0)
    >>> round(budget.committed_usd, 6)  # 900 s of 1 GB
    0.012
    """

    def __init__(self, max_usd: float, *, model: PriceModel) -> None:
        if not max_usd >= 0:
            raise ParameterError("max_usd", "must be an amount in US dollars >= 0", max_usd)
        self._max_usd, self._model = max_usd, model
        self._leases: Leases | None = None
        self._other_usd = 0.0  # moved bytes, and all costs before these leases
        self._published = Published(each_time=model.traffic.versions > 1)

    def watch(self, leases: Leases) -> None:
        """Charge these leases from now on. Charge the leases of an earlier call in full."""
        self._other_usd = self.committed_usd
        self._leases = leases
        leases.admit = self._admit_function

    @property
    def spent_usd(self) -> float:
        """The amount spent, in US dollars, excluding functions that may still run."""
        if (leases := self._leases) is None:
            return self._other_usd
        ended = leases.count - leases.open
        return self._other_usd + self._model.stays_usd(leases.ended_s, count=ended)

    @property
    def committed_usd(self) -> float:
        """The cost, in US dollars, if all functions run to their time-out."""
        if (leases := self._leases) is None:
            return self._other_usd
        return self.spent_usd + self._model.stays_usd(leases.open_s, count=leases.open)

    @property
    def memory(self) -> Mapping[str, float]:
        """The amounts that `recall` needs after a resume; leases without an end count in full."""
        committed_usd = self.committed_usd
        return {"committed_usd": committed_usd, "open_usd": committed_usd - self.spent_usd}

    def recall(self, memory: Mapping[str, float]) -> None:
        """Add the amounts in a saved `memory`: the cost of the run up to its interruption.

        Also add the cost of publishing the weights of the unfinished jobs again. Raises
        `BudgetError` if the total exceeds the budget.
        """
        self._other_usd += memory["committed_usd"]
        self._other_usd += self._model.traffic.weights_jobs * self._model.job_usd
        self._published = replace(self._published, count=0, newest=None)
        self._require(0.0, "not resumed", 0)

    def __call__(self, seen: Seen) -> None:
        """Charge the tasks of a dispatch; raise `BudgetError` if they could exceed the budget."""
        if not isinstance(seen, Dispatch):
            return
        published = self._published.and_for(seen)
        usd = (published.count - self._published.count) * self._model.job_usd
        usd += len(seen.assignment) * self._model.moved_usd
        self._require(usd, f"stopped before round {seen.round}", seen.round)
        self._other_usd += usd
        self._published = published

    def _admit_function(self) -> None:
        usd = self._model.stays_usd(self._model.function.longest_s, count=1)
        self._require(usd, "stopped before another resident function was invoked", 0)

    def _require(self, usd: float, what: str, round: int) -> None:
        spent_usd, committed_usd = self.spent_usd, self.committed_usd
        if committed_usd + usd > self._max_usd:
            raise BudgetError(
                f"{what}, which could cost ${usd:.6f}: of the budget of ${self._max_usd:.6f}, "
                f"${spent_usd:.6f} is spent and ${committed_usd - spent_usd:.6f} reserved for the "
                "functions that may still run; the run's checkpoints have the trained weights "
                "(raise --max-usd)",
                round=round,
                spent_usd=spent_usd,
            )
