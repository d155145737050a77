"""Monitors: they receive the events of a run and measure each worker's speed (`Statistics`).

`Monitor` is for runs in rounds. Its time is the total duration of the closed rounds, because a
backend may count the seconds of each round from 0. `TaskMonitor` is for runs without rounds, in
which workers proceed independently. Its time is the backend's, counted from the first event.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqgc.control._statistics import Statistics
from seqgc.ports import Arrival, BoolArray, Dispatched, Event, FloatArray, RoundRecord, Timetable

__all__ = ["Monitor", "Sample", "TaskMonitor"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """The measurements of one closed round.

    ``at`` is the total duration of all rounds up to this one, in seconds. ``answered`` (n,) marks
    the workers whose answers were measured, ``seconds`` (n,) are the times of these answers, and
    ``shares`` (n,) are the workers' shares of the batch. The seconds of a worker without a measured
    answer are 0.
    """

    at: float
    seconds: FloatArray
    shares: FloatArray
    answered: BoolArray

    @property
    def speeds(self) -> FloatArray:
        """The workers' speeds (n,), in batches per second; 0 for a worker without an answer."""
        return np.divide(
            self.shares, self.seconds, out=np.zeros(len(self.shares)), where=self.answered
        )


class Monitor(Statistics):
    """Statistics of ``n`` workers over the rounds that closed in the latest ``window_s`` seconds.

    Call `on` with every event, and `close` after each round. Time between rounds is not counted.

    Examples
    --------
    >>> import math
    >>> from seqgc.rounds import ClosingRule, RoundGate
    >>> from seqgc.schemes import Uncoded
    >>> monitor = Monitor(2, window_s=math.inf)
    >>> loads = np.array([0.5, 0.5])
    >>> for times in ([1.0, 4.0], [1.0, 2.0]):
    ...     monitor.on(
    ...         Dispatched(round=0, attempt=0, workers=(0, 1), left_at=(0.0, 0.0), loads=loads)
    ...     )
    ...     monitor.on(Timetable(round=0, at=0.0, times=np.array(times)))
    ...     gate = RoundGate(Uncoded(n=2).start(1), ClosingRule())
    ...     _ = monitor.close(gate.play(np.array(times)))
    >>> monitor.now, monitor.seconds(math.inf).values.tolist()
    (6.0, [1.0, 3.0])
    >>> monitor.speeds(math.inf).values.tolist()  # the mean of 0.5 / 4 and 0.5 / 2
    [0.5, 0.1875]
    """

    def __init__(self, n: int, *, window_s: float) -> None:
        super().__init__(n, window_s=window_s)
        self._round = -1
        self._left_at, self._seconds = np.zeros((2, n))
        self._shares: FloatArray = np.zeros(n)
        self._answered: BoolArray = np.zeros(n, dtype=np.bool_)

    def on(self, event: Event) -> None:
        match event:
            case Dispatched(attempt=0):
                self._round, workers = event.round, list(event.workers)
                self._answered = np.zeros(self._n, dtype=np.bool_)
                self._left_at[workers] = event.left_at
                even = np.full(self._n, 1 / self._n)
                self._shares = even if event.loads is None else event.loads
            case Arrival(round=round, worker=worker) if round == self._round:
                if not self._answered[worker]:
                    self._answered[worker] = True
                    self._seconds[worker] = event.at - self._left_at[worker]
            case Timetable(round=round) if round == self._round:
                self._answered[:], self._seconds[:] = True, event.times

    def close(self, record: RoundRecord) -> Sample:
        """Record that a round has closed, and return its measurements."""
        self.now += record.duration_s
        answered = self._answered & (self._shares > 0) & (self._seconds > 0)
        for worker in np.flatnonzero(answered).tolist():
            seconds, share = float(self._seconds[worker]), float(self._shares[worker])
            answered[worker] = self._take(worker, seconds=seconds, share=share)
        seconds_of_all = np.where(answered, self._seconds, 0.0)
        return Sample(at=self.now, seconds=seconds_of_all, shares=self._shares, answered=answered)


class TaskMonitor(Statistics):
    """Statistics of ``n`` workers that proceed independently, one task at a time.

    An answer counts only if it belongs to the worker's newest task, and if this task was sent after
    the worker was last replaced.

    Examples
    --------
    >>> monitor = TaskMonitor(2, window_s=10.0)
    >>> for round, at in enumerate((1.0, 3.0, 6.0)):
    ...     monitor.on(Dispatched(round=round, attempt=0, workers=(0,), left_at=(at,)))
    ...     monitor.on(Arrival(round=round, worker=0, attempt=0, at=2 * at, results={}))
    >>> monitor.now, monitor.seconds(7.0)  # the mean of 3 and 6 seconds
    (11.0, Means(values=array([4.5, 0. ]), known=array([ True, False])))
    """

    def __init__(self, n: int, *, window_s: float) -> None:
        super().__init__(n, window_s=window_s)
        self._began_at: float | None = None  # the backend's time
        # By worker: its newest task's (round, attempt), when it was sent, and its share of a batch.
        self._out: dict[int, tuple[tuple[int, int], float, float]] = {}

    def on(self, event: Event) -> None:
        self._began_at = event.at if self._began_at is None else self._began_at
        self.now = max(self.now, event.at - self._began_at)
        match event:
            case Dispatched(round=round, attempt=attempt, loads=loads):
                for worker, left_at in zip(event.workers, event.left_at, strict=True):
                    share = 1 / self._n if loads is None else float(loads[worker])
                    self._out[worker] = (round, attempt), left_at, share
            case Arrival(round=round, worker=worker, attempt=attempt) if worker in self._out:
                address, left_at, share = self._out[worker]
                if address == (round, attempt):
                    del self._out[worker]
                    is_its_own = left_at - self._began_at >= self._since[worker]
                    if is_its_own and (seconds := event.at - left_at) > 0:
                        self._take(worker, seconds=seconds, share=share)
