"""The usage of a run on cloud functions, as the sum of the usages of its events.

A `Meter` is the only place that knows what an event costs. It counts the events that a plan expects
for the forecast (`estimate_plan`), the events of a live run for the `Budget`, and the events in the
log of a run for the bill (`estimate_run`).

The meter keeps two sums: the likely usage, and an upper bound.

=========================  ==================================  =====================================
event                      likely                              at most
=========================  ==================================  =====================================
warm-up                    an invocation of its start          an invocation until the time-out
new job, or new version    its weights are written             the same
task is sent               reads the weights of one job        reads all its weights
task is not answered yet   no time                             an invocation until the time-out
task is answered           from its departure to its answer    the same
task fails, or run ends    from its departure until then, or   an invocation until the time-out
                           until it was cancelled
resident function starts   no time                             until the time-out
resident function ends     from its start to its end           the same
=========================  ==================================  =====================================

"Until the time-out" includes the longest start of an environment (`INIT_LIMIT_S`), which is billed
too. A failed task may still run, because perhaps only the connection broke. An answered task cannot
cost more than the time to its answer, because this time includes the start. If functions are
resident, the time of the functions is billed, and not the time of the tasks.

With SnapStart, the upper bound has a restored environment for each invocation, and the likely usage
one for each start that is expected: in the warm-up, or without it in the first round of a plan.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Final

from seqgc.costs.prices import Architecture, FunctionSetup, Prices, Traffic, Usage
from seqgc.errors import BudgetError, ParameterError, require_int
from seqgc.ports import Arrival, Dispatch, Dispatched, Failure, Leases, Seen, billed_ms
from seqgc.runs import END, FUNCTIONS, LogEvent, header_of, read_run_log

# The earliest time, as a share of the time-out, at which a resident function gets a successor.
_LEAST_SHARE: Final = 12 / 15
_NO_TRAFFIC: Final = Traffic(where="inline", weights_bytes=0, result_bytes=0)


class Meter:
    """The usage of a run on cloud functions; see the docstring of this module.

    ``traffic`` describes the bytes that a task moves; by default they are not counted. ``resident``
    functions handle many tasks in one invocation.

    Examples
    --------
    >>> meter = Meter(function=FunctionSetup(memory_mb=1024, timeout_s=10.0))
    >>> meter.send(0, 0, tasks={0: 1, 1: 1}, jobs=[0], at=5.0)
    >>> meter.at_most.gb_seconds  # two functions may start for 10 s, and run for 10 s
    40.0
    >>> meter.answer((0, 0, 0), at=6.5)
    >>> meter.at_most.gb_seconds, meter.likely.gb_seconds
    (21.5, 1.5)
    """

    def __init__(
        self,
        *,
        function: FunctionSetup,
        traffic: Traffic | None = None,
        resident: bool = False,
    ) -> None:
        self.function: Final = function
        self.traffic: Final = traffic or _NO_TRAFFIC
        self._resident: Final = resident
        # The unanswered tasks, by (round, worker, attempt).
        self._tasks = Leases(longest_s=function.longest_s)
        self._billed = Leases(longest_s=function.longest_s) if resident else self._tasks
        self._likely, self._at_most = Usage(), Usage()  # moved bytes, and functions of old leases
        self._cancelled: dict[object, float] = {}
        # The last job whose weights are published; None if this is not known after a resume.
        self._newest: int | None = -1

    # ---- sums -----------------------------------------------------------------------------------

    @property
    def likely(self) -> Usage:
        """The likely usage."""
        leases = self._billed
        return self._likely + self.function.usage(invocations=leases.count, ms=leases.likely_ms)

    @property
    def ended(self) -> Usage:
        """An upper bound on the usage, without the functions that may still run."""
        leases = self._billed
        count = leases.count - leases.open
        usage = self.function.usage(invocations=count, ms=leases.ended_ms, starts=count)
        return self._at_most + usage

    @property
    def at_most(self) -> Usage:
        """An upper bound on the usage, if all functions run until the time-out."""
        leases = self._billed
        count = leases.open
        return self.ended + self.function.usage(invocations=count, ms=leases.open_ms, starts=count)

    @property
    def unanswered(self) -> int:
        """The number of tasks that were neither answered nor failed."""
        return self._tasks.open

    def invocations(self, count: int) -> Usage:
        """Return the highest usage of ``count`` invocations."""
        ms = count * billed_ms(self.function.longest_s)
        return self.function.usage(invocations=count, ms=ms, starts=count)

    def bound(self, action: Dispatch) -> Usage:
        """Return the highest usage that sending the tasks of this action adds."""
        _, moved, _ = self._moves(_counts(action), _jobs(action))
        return moved if self._resident else moved + self.invocations(len(action.assignment))

    # ---- events ---------------------------------------------------------------------------------

    def __call__(self, seen: Seen) -> None:
        """Count an event or action of a live run."""
        match seen:
            case Dispatch(round=round, attempt=attempt):
                self.send(round, attempt, tasks=_counts(seen), jobs=_jobs(seen))
            case Dispatched():
                for worker, at in zip(seen.workers, seen.left_at, strict=True):
                    self._tasks.leave((seen.round, worker, seen.attempt), at=at)
            case Arrival():
                self.answer((seen.round, seen.worker, seen.attempt), at=seen.at)
            case Failure():
                self._tasks.lose((seen.round, seen.worker, seen.attempt), at=seen.at)

    def read(self, event: LogEvent, *, workers: int) -> None:
        """Count an event in the log of a run on this number of workers."""
        key = event.round, event.worker, event.attempt
        if event.event == "dispatch":
            receivers = range(workers) if event.workers is None else event.workers
            tasks = dict(zip(receivers, event.counts(len(receivers)), strict=True))
            self.send(event.round, event.attempt, tasks=tasks, jobs=event.jobs, at=event.at_s)
        elif event.event == "cancel":
            over = {(event.round, worker) for worker in event.workers or ()}
            self._cancelled |= {
                each: event.at_s
                for each in self._tasks
                if isinstance(each, tuple) and each[:2] in over
            }
        elif event.event in ("arrival", "failure"):
            if (began := self._tasks.began(key)) is None:  # a duplicate
                return
            # The times in the log are the master's: the dispatch is logged before the first task of
            # the round leaves, and an answer a little late. `took_s` begins when this task left.
            at = event.at_s if event.took_s is None else began + event.took_s
            (self.answer if event.event == "arrival" else self._tasks.lose)(key, at=at)
        elif event.event == FUNCTIONS:
            usage, lasted_ms = self.function.usage, event.ended_ms + event.open_ms
            likely_ms = event.likely_ms + event.open_ms
            self._likely += usage(invocations=event.count, ms=likely_ms)
            self._at_most += usage(invocations=event.count, ms=lasted_ms)

    def send(
        self,
        round: int,
        attempt: int,
        *,
        tasks: Mapping[int, int | None],
        jobs: Collection[int],
        at: float = -math.inf,
    ) -> None:
        """Count tasks that leave together.

        ``tasks`` are the numbers of mini-tasks by worker; None stands for the largest number that a
        task can have. ``jobs`` are the jobs of these tasks. ``at`` is the time of departure in
        seconds; by default it is not known yet.
        """
        likely, at_most, self._newest = self._moves(tasks, jobs)
        self._likely += likely
        self._at_most += at_most
        for worker in tasks:
            self._tasks.begin((round, worker, attempt), at=at)

    def answer(self, key: tuple[int, int, int], *, at: float) -> None:
        """Count the answer to a task (round, worker, attempt), unless it is a duplicate."""
        self._tasks.end(key, at=at)

    def watch(self, leases: Leases) -> None:
        """Bill these leases of resident functions from now on, and earlier leases in full."""
        self._likely, self._at_most = self.likely, self.at_most
        self._billed = leases

    def warm_up(self, count: int) -> None:
        """Count ``count`` invocations before the first round, which compute nothing."""
        self.run(count, each_s=self.function.start_s, starts=count)

    def stay(self, count: int, *, lasts_s: float) -> None:
        """Count ``count`` resident functions that are expected to stay ``lasts_s`` seconds.

        A successor is started before each function's time-out, so that the two overlap.
        """
        successions = max(1, math.ceil(lasts_s / (_LEAST_SHARE * self.function.timeout_s)))
        each_s = lasts_s / successions + self.function.start_s
        self.run(count * successions, each_s=each_s, starts=count * successions)

    def run(self, count: int, *, each_s: float, starts: int = 0) -> None:
        """Count ``count`` invocations that are expected to run ``each_s`` seconds.

        ``starts`` of them are expected to start an environment.
        """
        self._likely += self.function.usage(invocations=0, ms=0.0, starts=starts)
        self._billed.begin(None, at=0.0, count=count)
        self._billed.lose(None, at=each_s)

    def move(self, *, tasks: int, published: int) -> None:
        """Count the bytes of ``tasks`` tasks and of ``published`` versions of a job's weights."""
        likely, at_most = self._moved({None: tasks}, published)
        self._likely += likely
        self._at_most += at_most

    def stop(self, *, at: float) -> None:
        """Count the end of a master; its unanswered tasks may run until the time-out."""
        for key in self._tasks:
            self._tasks.lose(key, at=self._cancelled.get(key, at))
        self._cancelled.clear()

    def resume(self) -> None:
        """Count a new publication of the weights of the jobs in flight, after a resume."""
        self.move(tasks=0, published=self.traffic.weights_jobs)
        self._newest = None

    # ---- bytes ----------------------------------------------------------------------------------

    def _moves(
        self, tasks: Mapping[int, int | None], jobs: Collection[int]
    ) -> tuple[Usage, Usage, int | None]:
        """Return the likely and the highest usage of moving these tasks, and the newest job.

        Jobs are published in order, each once. If a job has several versions, weights are published
        again for each group of tasks that leave together.
        """
        newest, published = self._newest, 0
        if jobs:
            before = max(jobs) - 1 if newest is None else newest
            newest = max(before, *jobs)
            published = len(jobs) if self.traffic.versions > 1 else newest - before
        return *self._moved(Counter(tasks.values()), published), newest

    def _moved(self, counts: Mapping[int | None, int], published: int) -> tuple[Usage, Usage]:
        likely = at_most = self.traffic.publication().times(published)
        for mini_tasks, count in counts.items():
            likely += self.traffic.task(mini_tasks=mini_tasks).times(count)
            at_most += self.traffic.task(mini_tasks=mini_tasks, fresh=True).times(count)
        return likely, at_most


def _counts(action: Dispatch) -> dict[int, int | None]:
    return {worker: len(tasks) for worker, tasks in action.assignment.items()}


def _jobs(action: Dispatch) -> set[int]:
    return {task.job for tasks in action.assignment.values() for task in tasks}


# ---- the forecast of a plan ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedUse:
    """The cloud functions that a run plans to use: one task for each worker in each round.

    The weights of a job are published once, or in ``traffic.versions`` versions. A task is expected
    to take ``seconds_per_task`` seconds, for example the median of a profile. If this is None, only
    the time-out limits the time of a task. The ``warm_ups`` are invocations before the first round
    that compute nothing; each is expected to last `FunctionSetup.start_s` seconds, the start of an
    environment.
    Without warm-ups, the first task of each worker starts an environment.

    ``resident`` functions run until the run ends, and are paid for even while they are idle. A
    round lasts at most ``longest_round_s`` seconds, or the time-out if this is infinite.

    If batches are split into ``pieces`` for free workers (`deal`, `flexrr`), a job has ``pieces``
    tasks. The empty tasks with which `deal` greets its workers are not counted.
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
            raise ParameterError(
                "seconds", "must be >= 0 seconds for a task", self.seconds_per_task
            )

    @property
    def tasks(self) -> int:
        """The number of tasks, without repeated attempts."""
        return self.jobs * self.pieces or self.workers * self.rounds

    @property
    def lasts_s(self) -> float | None:
        """The seconds for which each worker computes, or None if the time of a task is unknown.

        A worker computes one task after the other; waiting is not included.
        """
        task_s = self.seconds_per_task
        return None if task_s is None else self.tasks / self.workers * task_s

    @property
    def first_round(self) -> PlannedUse:
        """The use of the first round only."""
        traffic = replace(self.traffic, versions=1)
        return replace(self, rounds=1, jobs=1, pieces=0, longest_round_s=0.0, traffic=traffic)

    def meter(self) -> Meter:
        """Return a new meter for a run of this plan; it has counted the warm-up."""
        meter = Meter(function=self.function, traffic=self.traffic, resident=self.resident)
        meter.warm_up(self.warm_ups)
        return meter


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The likely usage of a run, and an upper bound.

    ``likely`` is None if the duration of tasks is not known. The upper bound ``at_most`` assumes
    that every task whose end is not known starts an environment and runs to the function's
    time-out. ``unanswered`` is the number of tasks that were neither answered nor failed. Of a
    recorded run, ``answers`` is the number of answers, and ``answer_s`` their mean time in seconds.
    """

    likely: Usage | None
    at_most: Usage
    unanswered: int = 0
    answers: int = 0
    answer_s: float | None = None


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
    longest_s, timeout_s = plan.longest_round_s, plan.function.timeout_s
    lasts_s = plan.rounds * (longest_s if math.isfinite(longest_s) else timeout_s)
    worst = _expected(plan, task_s=timeout_s, lasts_s=lasts_s)
    if (task_s := plan.seconds_per_task) is None or (seconds := plan.lasts_s) is None:
        return Estimate(likely=None, at_most=worst.at_most)
    likely = _expected(plan, task_s=task_s, lasts_s=seconds)
    return Estimate(likely=likely.likely, at_most=worst.at_most)


def _expected(plan: PlannedUse, *, task_s: float, lasts_s: float) -> Meter:
    """Return a meter of the plan's events.

    Tasks take ``task_s`` seconds, and resident functions ``lasts_s`` seconds.
    """
    meter = plan.meter()
    meter.move(tasks=plan.tasks, published=plan.jobs * plan.traffic.versions)
    if plan.resident:
        meter.stay(plan.workers, lasts_s=lasts_s)
        return meter
    starting = 0 if plan.warm_ups else plan.workers
    meter.run(starting, each_s=plan.function.start_s + task_s, starts=starting)
    meter.run(plan.tasks - starting, each_s=task_s)
    return meter


# ---- the bill of a run ---------------------------------------------------------------------------


def estimate_run(
    run: str | Path,
    *,
    function: FunctionSetup,
    traffic: Traffic | None = None,
    warm_ups: int = 0,
    resident: bool = False,
) -> Estimate:
    """Return the usage of a run, from the times in its ``events.jsonl`` (see `Meter`).

    The time of a task includes the time of the network and the start of an environment. The
    ``warm_ups``, which are invocations before the first round of each master, are added because
    the log does not have them. Without ``traffic``, moved bytes are not counted. ``resident`` says
    that functions were resident. If a master was killed, the log does not have the times of its
    functions; they are then assumed to have run as long as the master.

    Raises
    ------
    ParameterError
        If ``run`` is not the folder of a run.
    """
    header, events = read_run_log(Path(run))
    meter, unanswered = Meter(function=function, traffic=traffic, resident=resident), 0
    meter.warm_up(warm_ups)
    workers = header.workers
    is_timed = False  # the log has the times of this master's resident functions
    took_s = list[float]()
    for event, line in events:
        if event.event == "arrival" and event.took_s is not None:
            took_s.append(event.took_s)
        if event.event != END:
            is_timed |= event.event == FUNCTIONS
            meter.read(event, workers=workers)
            continue
        unanswered += meter.unanswered
        meter.stop(at=event.at_s)
        if resident and not is_timed:
            meter.stay(workers, lasts_s=event.at_s)
        is_timed = False
        if line:  # another master
            workers = (header_of(line) or header).workers
            meter.resume()
            meter.warm_up(warm_ups)
    return Estimate(
        likely=meter.likely,
        at_most=meter.at_most,
        unanswered=unanswered,
        answers=len(took_s),
        answer_s=fmean(took_s) if took_s else None,
    )


# ---- the budget of a live run --------------------------------------------------------------------


class Budget:
    """An observer that stops a run before it can cost more than ``max_usd`` US dollars.

    The ``meter`` counts the events of the run; None means that workers are free, as on the user's
    own machines. Tasks are sent, and resident functions invoked, only if the budget suffices even
    if all functions run until their time-out. If ``max_usd`` is infinite, the observer only counts
    the cost.

    Raises
    ------
    ParameterError
        If ``max_usd`` is negative, or less than the usage that the meter has already counted.

    Examples
    --------
    >>> from seqgc.costs import read_prices
    >>> from seqgc.ports import Leases
    >>> function = FunctionSetup(memory_mb=1024, timeout_s=890.0)
    >>> meter = Meter(function=function, resident=True)
    >>> budget = Budget(1.0, meter=meter, prices=read_prices(), architecture="arm64")
    >>> leases = Leases(longest_s=function.longest_s)
    >>> budget.watch(leases)
    >>> leases.begin(0, at=0.0)
    >>> round(budget.committed_usd, 6)  # 900 s of 1 GB
    0.012
    """

    def __init__(
        self,
        max_usd: float,
        *,
        meter: Meter | None = None,
        prices: Prices | None = None,
        architecture: Architecture = "x86_64",
    ) -> None:
        if not max_usd >= 0:
            raise ParameterError("max_usd", "must be an amount in US dollars >= 0", max_usd)
        self._max_usd, self._meter = max_usd, meter
        self._prices, self._architecture = prices, architecture
        self._earlier_usd = 0.0  # committed before the run was resumed
        if (least_usd := self.committed_usd) > max_usd:
            rule = f"must be at least ${least_usd:.6f}, the highest cost of the warm-up"
            raise ParameterError("max_usd", rule, max_usd)

    @property
    def spent_usd(self) -> float:
        """The highest possible cost, in US dollars, without the functions that may still run."""
        return self._earlier_usd + (self._usd(self._meter.ended) if self._meter else 0.0)

    @property
    def committed_usd(self) -> float:
        """The cost, in US dollars, if all functions run until their time-out."""
        return self._earlier_usd + (self._usd(self._meter.at_most) if self._meter else 0.0)

    @property
    def memory(self) -> Mapping[str, float]:
        """The amounts that `recall` needs after a resume; open functions count in full."""
        committed_usd = self.committed_usd
        return {"committed_usd": committed_usd, "open_usd": committed_usd - self.spent_usd}

    def recall(self, memory: Mapping[str, float]) -> None:
        """Add the cost of the run up to its interruption, from a saved `memory`.

        Also add the cost of publishing the weights of the unfinished jobs again.

        Raises
        ------
        BudgetError
            If the total exceeds the budget.
        """
        self._earlier_usd += memory["committed_usd"]
        if self._meter is not None:
            self._meter.resume()
        if (usd := self.committed_usd) > self._max_usd:
            raise BudgetError(
                f"not resumed: with a new warm-up the run may have spent ${usd:.6f} "
                f"of a budget of ${self._max_usd:.6f} (raise --max-usd)",
                round=0,
                spent_usd=usd,
            )

    def watch(self, leases: Leases) -> None:
        """Bill these leases of resident functions from now on, and earlier leases in full."""
        if self._meter is not None:
            self._meter.watch(leases)
            leases.admit = self._admit_function

    def __call__(self, seen: Seen) -> None:
        """Count an event or action of the run.

        Raises
        ------
        BudgetError
            If the cost of the tasks of a dispatch could exceed the budget.
        """
        if (meter := self._meter) is None:
            return
        if isinstance(seen, Dispatch):
            self._require(meter.bound(seen), f"stopped before round {seen.round}", seen.round)
        meter(seen)

    def _admit_function(self) -> None:
        if self._meter is not None:
            what = "stopped before another resident function was invoked"
            self._require(self._meter.invocations(1), what, 0)

    def _require(self, usage: Usage, what: str, round: int) -> None:
        usd, spent_usd, committed_usd = self._usd(usage), self.spent_usd, self.committed_usd
        if committed_usd + usd > self._max_usd:
            raise BudgetError(
                f"{what}, which could cost ${usd:.6f}: of the budget of ${self._max_usd:.6f}, "
                f"${spent_usd:.6f} is spent and ${committed_usd - spent_usd:.6f} reserved for the "
                "functions that may still run; the run's checkpoints have the trained weights "
                "(raise --max-usd)",
                round=round,
                spent_usd=spent_usd,
            )

    def _usd(self, usage: Usage) -> float:
        if self._prices is None:
            return 0.0
        return self._prices.bill(usage, architecture=self._architecture).usd
