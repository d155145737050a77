"""Spending of a run: estimated beforehand, counted while it runs, summed up afterwards."""

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

# The share of a resident function's time after which its successor is invoked.
_USUAL_SHARE, _LEAST_SHARE = 13 / 15, 12 / 15


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedUse:
    """The planned use of functions by a run: a task for each worker in each round.

    The weights of a job are published once, or in as many versions as the ``traffic`` says. A task
    is expected to run ``seconds_per_task``, for example the median of a profile. If this is None,
    only the time-out bounds a task. The ``warm_ups`` are invocations before the first round that
    compute nothing; they are expected to run as long as a task. The environment of each worker is
    expected to start once, in `START_S` seconds. At most, an environment starts for every
    invocation, and takes the longest time allowed.

    ``resident`` functions are invoked for as long as they may stay, and are paid for until the run
    ends, idle or not. A round lasts at most ``longest_round_s``; infinity stands for the time-out.

    If work is dealt, a job has ``pieces`` tasks, and each worker is first sent an empty task.
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
    """A likely usage, and an upper bound.

    ``likely`` is None if the duration of tasks is not known. For ``at_most``, every task without a
    known end starts an environment and runs to the function's time-out. ``unanswered`` is the
    number of a run's tasks that were neither answered nor failed.
    """

    likely: Usage | None
    at_most: Usage
    unanswered: int = 0


def estimate_plan(plan: PlannedUse) -> Estimate:
    """Return the usage of a plan, without repeated attempts.

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
    """Return the usage of functions that stay.

    At most, a successor is invoked after 12 fifteenths of a stay, while the function before it
    stays to its end.
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

    A task is charged from its dispatch to its answer or failure, which includes the network's time
    and a start of the environment. An unanswered task of a cancelled round is charged until the
    round was cancelled. For ``at_most``, unanswered and failed tasks are charged for a start and
    until the time-out, because a broken connection does not end a function. Answered tasks are
    charged from the dispatch of their round, and every task for all the weights that it needs. The
    ``warm_ups``, invocations before the first round that leave no event, are added. Without
    ``traffic``, bytes are not charged.

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
            # Times of the log are the loop's: they begin before the first task of the round left,
            # and end a little late. `took_s` counts from the departure of this task.
            sent_s, count = sent.pop(address)
            lasted_s = event.at_s - sent_s
            likely += task(lasted_s if event.took_s is None else event.took_s, count)
            failed = event.event == "failure"
            at_most += task(function.longest_s if failed else lasted_s, count, fresh=True)
    moved = Usage() if traffic is None else traffic.publication().times(published)
    return Estimate(likely=likely + moved, at_most=at_most + moved, unanswered=unanswered)


@dataclass(frozen=True, slots=True)
class PriceModel:
    """The price of a task, by its seconds, and an upper bound.

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
        """The highest price of a task: a start, and then until the function's time-out."""
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
        """Return the price of a task of this many seconds, including a start of its environment.

        The task reads all its weights, as after a start.
        """
        return self._usd(self.function.invocation(seconds) + self.traffic.task(fresh=True))

    @property
    def moved_usd(self) -> float:
        """The price of the bytes that a task moves, without its time."""
        return self._usd(self.traffic.task(fresh=True))

    def stays_usd(self, seconds: float, *, count: int) -> float:
        """Return the price of ``count`` stays of resident functions, this long in total."""
        return self._usd(self.function.stays(seconds, count=count))

    def _usd(self, usage: Usage) -> float:
        return self.prices.bill(usage, architecture=self.architecture).usd


@dataclass(frozen=True, slots=True)
class Published:
    """The jobs whose weights a run has published: each once, up to the newest job with a task.

    ``count`` is the number of publications by this process. ``newest`` is None in a resumed run
    that has not sent a task yet. If ``each_time``, weights are published again for each group of
    tasks that leave together (`Traffic.versions`).
    """

    count: int = 0
    newest: int | None = -1
    each_time: bool = False

    def and_for(self, action: Dispatch) -> Published:
        """Return the published jobs after these tasks have left."""
        jobs = [m.job for tasks in action.assignment.values() for m in tasks]
        if not jobs:
            return self
        if self.each_time:
            return replace(self, count=self.count + len(set(jobs)))
        before = max(jobs) - 1 if self.newest is None else self.newest
        newest = max(before, *jobs)
        return Published(self.count + newest - before, newest)


class Budget:
    """An observer that stops a run before it costs more than ``max_usd`` US dollars.

    With an infinite amount it only counts.

    Tasks leave only if the budget covers the worst case: for each task under way, an environment
    is started, which is billed (`INIT_LIMIT_S`), and the task runs to the function's time-out. An
    answered task is charged from its departure to its answer. AWS does not charge more than this,
    because the master also waits for the start. A failed task is charged like a task under way: if
    only the connection broke, the function continues. Lambda may start environments ahead of any
    need, without an event; the amount reserved for the warm-up is kept to cover them.

    ``spent_usd`` is the most that the finished tasks and the warm-up have cost. ``model`` gives the
    price of a task; None means that tasks are free, as on the user's own machines. Each of the
    ``warm_ups``, invocations before the first round, is charged for a start and until the time-out.

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
            raise ParameterError("max_usd", "must be an amount >= 0, US dollars", max_usd)
        self._max_usd, self._model = max_usd, model
        self.spent_usd = 0.0 if model is None else warm_ups * model.warm_up_usd
        if self.spent_usd > max_usd:
            rule = f"must be at least ${self.spent_usd:.6f}, which the warm-up can cost"
            raise ParameterError("max_usd", rule, max_usd)
        # The departure, in seconds, of each task (round, worker, attempt); -inf before it leaves.
        self._open: dict[tuple[int, int, int], float] = {}
        self._published = Published(each_time=model is not None and model.traffic.versions > 1)

    @property
    def committed_usd(self) -> float:
        """The cost in US dollars if all open tasks start an environment and run to the time-out."""
        if self._model is None:
            return 0.0
        return self.spent_usd + len(self._open) * self._model.worst_task_usd

    @property
    def memory(self) -> Mapping[str, float]:
        """The amounts that a resumed run begins with; tasks under way count in full."""
        committed_usd = self.committed_usd
        return {"committed_usd": committed_usd, "open_usd": committed_usd - self.spent_usd}

    def recall(self, memory: Mapping[str, float]) -> None:
        """Add what the run has spent before to the reserve for the new warm-up.

        The weights of the jobs in flight, at most as many as a task needs, are published again.
        Raises `BudgetError` if the budget is exceeded already.
        """
        self.spent_usd += memory["committed_usd"]
        self._published = replace(self._published, count=0, newest=None)
        if self._model is not None:
            self.spent_usd += self._model.traffic.weights_jobs * self._model.job_usd
        if self.spent_usd > self._max_usd:
            raise BudgetError(
                f"not resumed: the run has spent up to ${self.spent_usd:.6f}, its new warm-up "
                f"included, of a budget of ${self._max_usd:.6f} (raise --max-usd)",
                round=0,
                spent_usd=self.spent_usd,
            )

    def __call__(self, seen: Seen) -> None:
        """Follow an event or action; raise `BudgetError` if new tasks could exceed the budget."""
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
            under_way = committed - self.spent_usd
            raise BudgetError(
                f"stopped before round {action.round}: it could cost up to ${worst:.6f}, with "
                f"${self.spent_usd:.6f} spent and ${under_way:.6f} under way of a budget of "
                f"${self._max_usd:.6f}; what was trained is in the run's checkpoints "
                "(raise --max-usd)",
                round=action.round,
                spent_usd=self.spent_usd,
            )
        self.spent_usd += published_usd
        self._published = published
        for worker in action.assignment:
            self._open[action.round, worker, action.attempt] = -math.inf

    def _settle(self, event: Arrival | Failure, model: PriceModel) -> None:
        left_at = self._open.pop((event.round, event.worker, event.attempt), None)
        if left_at is not None:  # None: a duplicate
            failed = isinstance(event, Failure)
            self.spent_usd += model.worst_task_usd if failed else model.task_usd(event.at - left_at)


class StayBudget:
    """An observer that stops a run on resident functions before it costs over ``max_usd`` dollars.

    A function is paid for from its start to its end, idle or not. Until it is known to have ended,
    the rest of its lease is reserved, because a function may continue after its connection broke.
    So a function is invoked, or a task sent, only if the budget suffices even if all functions stay
    to the end of their time. The bytes that a task moves through the store are charged when it
    leaves.

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
            raise ParameterError("max_usd", "must be an amount >= 0, US dollars", max_usd)
        self._max_usd, self._model = max_usd, model
        self._leases: Leases | None = None
        self._other_usd = 0.0  # tasks, weights, and everything before these leases
        self._published = Published(each_time=model.traffic.versions > 1)

    def watch(self, leases: Leases) -> None:
        """Charge these leases from now on; leases watched before are charged in full."""
        self._other_usd = self.committed_usd
        self._leases = leases
        leases.admit = self._admit_function

    @property
    def spent_usd(self) -> float:
        """The amount spent in US dollars, without functions that may still run."""
        if (leases := self._leases) is None:
            return self._other_usd
        ended = leases.count - leases.open
        return self._other_usd + self._model.stays_usd(leases.ended_s, count=ended)

    @property
    def committed_usd(self) -> float:
        """The cost in US dollars if all functions stay to the end of their time."""
        if (leases := self._leases) is None:
            return self._other_usd
        return self.spent_usd + self._model.stays_usd(leases.open_s, count=leases.open)

    @property
    def memory(self) -> Mapping[str, float]:
        """The amounts that a resumed run begins with; open leases count in full."""
        committed_usd = self.committed_usd
        return {"committed_usd": committed_usd, "open_usd": committed_usd - self.spent_usd}

    def recall(self, memory: Mapping[str, float]) -> None:
        """Add what the run has spent before; raise `BudgetError` if it exceeds the budget.

        The weights of the jobs in flight, at most as many as a task needs, are published again.
        """
        self._other_usd += memory["committed_usd"]
        self._other_usd += self._model.traffic.weights_jobs * self._model.job_usd
        self._published = replace(self._published, count=0, newest=None)
        self._require(0.0, "not resumed", 0)

    def __call__(self, seen: Seen) -> None:
        """Follow an action; raise `BudgetError` if new tasks could exceed the budget."""
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
        self._require(usd, "stopped before another function was invoked to stay", 0)

    def _require(self, usd: float, what: str, round: int) -> None:
        spent_usd, committed_usd = self.spent_usd, self.committed_usd
        if committed_usd + usd > self._max_usd:
            raise BudgetError(
                f"{what}: it could cost up to ${usd:.6f}, with ${spent_usd:.6f} spent and "
                f"${committed_usd - spent_usd:.6f} reserved for the leases of functions, of a "
                f"budget of ${self._max_usd:.6f}; what was trained is in the run's checkpoints "
                "(raise --max-usd)",
                round=round,
                spent_usd=spent_usd,
            )
