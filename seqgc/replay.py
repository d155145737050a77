"""A backend with a virtual clock: the same loop and policy on recorded times."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

from seqgc._types import FloatArray
from seqgc.errors import ParameterError, ScheduleError
from seqgc.ports import Arrival, Failure, Task, WeightedPoints

__all__ = ["ReplayBackend"]

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
    >>> from seqgc.rounds import RoundPolicy
    >>> from seqgc.schemes import GC
    >>> seconds = []
    >>> def watch(seen):
    ...     if isinstance(seen, Close):
    ...         seconds.append(seen.record.duration_s)
    >>> times = np.array([[1.0, 5.0, 2.0], [3.0, 1.0, 1.5]])
    >>> policy = RoundPolicy(GC(n=3, s=1).start(2), n=3, mu=0.0, wait_out="feasible")
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
        self._pending = [
            (at, worker, task)
            for at, worker, task in self._pending
            if (task.round, worker) not in {(round, w) for w in workers}
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
