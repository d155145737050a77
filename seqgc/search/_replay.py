"""The same loop, policy and closing rule on recorded times, with a virtual clock (spec, 7)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from seqgc import master
from seqgc.errors import ParameterError, ScheduleError
from seqgc.ports import (
    Action,
    Arrival,
    BoolArray,
    Close,
    CloseReason,
    Event,
    Failure,
    Finish,
    FloatArray,
    IntArray,
    RoundRecord,
    Task,
    Timetable,
    WeightedPoints,
)
from seqgc.profiles import DelayProfile
from seqgc.rounds import ClosingRule, RoundPolicy, WaitOut
from seqgc.schemes import Scheme
from seqgc.stragglers import StragglerModel

__all__ = ["Replay", "ReplayBackend", "replay", "times_for"]

_MOST_JOBS = 10**7

Compute = Callable[[tuple[WeightedPoints, ...]], FloatArray]


class ReplayBackend:
    """Answers each task at its recorded time; nobody sleeps, nobody fails.

    The clock starts again at 0 with every round, so that the times that reach the policy are the
    recorded ones to the last bit.

    Parameters
    ----------
    times : (rounds, n) float
        Seconds from dispatch to answer, the load adjustment included (spec, section 7).
    compute
        Makes results, for runs that decode; without it answers are empty.

    Examples
    --------
    >>> import numpy as np
    >>> from seqgc.master import run
    >>> from seqgc.ports import Close
    >>> from seqgc.rounds import ClosingRule, RoundPolicy
    >>> from seqgc.schemes import GC
    >>> seconds = []
    >>> def watch(seen):
    ...     if isinstance(seen, Close):
    ...         seconds.append(seen.record.duration_s)
    >>> times = np.array([[1.0, 5.0, 2.0], [3.0, 1.0, 1.5]])
    >>> policy = RoundPolicy(GC(n=3, s=1).start(2), ClosingRule())
    >>> run(policy, ReplayBackend(times), observe=watch)
    >>> seconds
    [2.0, 1.5]
    """

    def __init__(self, times: FloatArray, *, compute: Compute | None = None) -> None:
        if times.ndim != 2:
            raise ParameterError("times", "must be a matrix (rounds, workers)", times.shape)
        self._times = times
        self._compute = compute
        self._now = 0.0
        self._pending: list[tuple[float, int, Task]] = []

    def dispatch(self, round: int, tasks: Sequence[Task]) -> float:
        if round >= len(self._times):
            raise ParameterError("times", f"must cover round {round}", self._times.shape)
        self._now = 0.0
        self._pending = [(float(self._times[round, t.worker]), t.worker, t) for t in tasks]
        heapq.heapify(self._pending)
        return 0.0

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        over = {(round, worker) for worker in workers}
        self._pending = [
            (at, worker, task)
            for at, worker, task in self._pending
            if (task.round, worker) not in over
        ]

    def receive(self, until: float) -> Arrival | Failure | None:
        if not self._pending or self._pending[0][0] > until:
            if math.isinf(until):
                raise ScheduleError("the policy waits for ever: nothing is left to arrive")
            self._now = max(self._now, until)
            return None
        self._now, worker, task = heapq.heappop(self._pending)
        results = {}
        if self._compute is not None:
            results = {item.slot: self._compute(item.parts) for item in task.items}
        return Arrival(
            round=task.round, worker=worker, attempt=task.attempt, at=self._now, results=results
        )

    def close(self) -> None:
        self._pending = []


class _WholeRounds:
    """Reports the times of a whole round at once; for `RoundPolicy`, when nothing is computed."""

    def __init__(self, times: FloatArray) -> None:
        self._times = times
        self._timetable: Timetable | None = None

    def dispatch(self, round: int, tasks: Sequence[Task]) -> float:  # noqa: ARG002 (everybody's)
        self._timetable = Timetable(round=round, at=0.0, times=self._times[round])
        return 0.0

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        """Nothing is under way any more."""

    def receive(self, until: float) -> Timetable | None:  # noqa: ARG002 (nobody waits)
        timetable, self._timetable = self._timetable, None
        return timetable

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Replay:
    """What a run on recorded times comes to.

    ``round_seconds`` (rounds,); ``responded`` (rounds, n), whose answers were used;
    ``waited_out`` (rounds,); ``reasons`` why each round closed; ``job_finish_round`` (jobs,).
    """

    round_seconds: FloatArray
    responded: BoolArray
    waited_out: BoolArray
    reasons: tuple[CloseReason, ...]
    job_finish_round: IntArray

    @property
    def runtime_s(self) -> float:
        """Seconds of all rounds together."""
        return float(np.sum(self.round_seconds))


def replay(
    scheme: Scheme,
    profile: DelayProfile,
    *,
    num_jobs: int,
    mu: float,
    wait_out: WaitOut,
    alpha: float | None = None,
    jobs_per_round: int = 1,
    repeat: bool = False,
    conformity: StragglerModel | None = None,
) -> Replay:
    """Run a scheme and a closing rule on a delay profile; nothing is computed or decoded.

    Parameters
    ----------
    num_jobs
        Gradients of one model each; with ``jobs_per_round = k`` they run as ``num_jobs / k``
        bundles, each with k times the load.
    alpha
        Seconds per unit of load, instead of the profile's own.
    repeat
        Begin again at the profile's first round when it ends.
    conformity
        What conforms, instead of the scheme's own model.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or the profile is too short or has other workers.

    Examples
    --------
    >>> from seqgc.schemes import GC
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 2.0], [3.0, 1.0, 1.5]])
    >>> replayed = replay(GC(n=3, s=1), profile, num_jobs=2, mu=0.0, wait_out="feasible", alpha=0.0)
    >>> replayed.runtime_s, replayed.job_finish_round.tolist()
    (3.5, [0, 1])
    """
    bundles = _bundles(num_jobs, jobs_per_round)
    times = times_for(
        scheme,
        profile,
        num_rounds=bundles + scheme.delay,
        alpha=alpha,
        jobs_per_round=jobs_per_round,
        repeat=repeat,
    )
    schedule = scheme.start(bundles, conformity=conformity)
    notes = _Notes(bundles)
    policy = RoundPolicy(schedule, ClosingRule(mu=mu, wait_out=wait_out))
    master.run(policy, _WholeRounds(times), observe=notes)
    return Replay(
        round_seconds=np.array([record.duration_s for record in notes.records]),
        responded=np.stack([record.responded for record in notes.records]),
        waited_out=np.array([record.waited_out for record in notes.records]),
        reasons=tuple(record.reason for record in notes.records),
        job_finish_round=notes.finish_round,
    )


def times_for(
    scheme: Scheme,
    profile: DelayProfile,
    *,
    num_rounds: int,
    alpha: float | None = None,
    jobs_per_round: int = 1,
    repeat: bool = False,
) -> FloatArray:
    """Return the seconds (num_rounds, n) that the scheme's workers take; raises like `replay`."""
    if profile.num_workers != scheme.n:
        rule = f"must have a column for each of the {scheme.n} workers"
        raise ParameterError("profile", rule, profile.num_workers)
    if num_rounds > profile.num_rounds and not repeat:
        rule = f"plus the delay must not exceed the profile's {profile.num_rounds} rounds"
        raise ParameterError("jobs", rule, num_rounds, "take fewer jobs, or repeat the profile")
    loaded = profile.awaited().at_load(jobs_per_round * scheme.normalized_load, alpha=alpha)
    return loaded.times[np.arange(num_rounds) % profile.num_rounds]


def _bundles(num_jobs: int, jobs_per_round: int) -> int:
    if not 1 <= num_jobs <= _MOST_JOBS:
        raise ParameterError("jobs", f"must be >= 1 and <= {_MOST_JOBS}", num_jobs)
    if jobs_per_round < 1 or num_jobs % jobs_per_round:
        rule = f"must be >= 1 and divide the number of jobs, {num_jobs}"
        raise ParameterError("jobs_per_round", rule, jobs_per_round)
    return num_jobs // jobs_per_round


class _Notes:
    """Keeps what an observer of the loop must know of a replay."""

    def __init__(self, num_jobs: int) -> None:
        self.records: list[RoundRecord] = []
        self.finish_round: IntArray = np.zeros(num_jobs, dtype=np.intp)

    def __call__(self, seen: Event | Action) -> None:
        if isinstance(seen, Close):
            self.records.append(seen.record)
        elif isinstance(seen, Finish):
            self.finish_round[seen.job] = self.records[-1].round
