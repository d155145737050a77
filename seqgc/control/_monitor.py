"""`Monitor`: how long each worker took for its share, over the latest rounds.

The *time of a batch* (AntDT: BPT) of a worker in a round is the time from when its task left to its
answer, whatever share of the batch that was. Its *speed* is the share divided by that, in batches a
second: what a message or a start costs makes it slower, the more so the smaller its share. Time
here are the seconds of the rounds that are closed; backends may begin each round at 0.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from seqgc.errors import require_int
from seqgc.ports import Arrival, BoolArray, Dispatched, Event, FloatArray, RoundRecord, Timetable

__all__ = ["Means", "Monitor", "Sample"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """A round that is closed: who ``answered`` (n,), in what ``seconds`` (n,), of what ``shares``.

    ``at`` is when it closed, seconds of rounds. Where nobody answered, seconds are 0.
    """

    at: float
    seconds: FloatArray
    shares: FloatArray
    answered: BoolArray

    @property
    def speeds(self) -> FloatArray:
        """(n,) batches a second; 0 where nobody answered."""
        return np.divide(
            self.shares, self.seconds, out=np.zeros(len(self.shares)), where=self.answered
        )


class Means(NamedTuple):
    """A mean of each worker (n,), and whether it is ``known``: else it is 0."""

    values: FloatArray
    known: BoolArray


class Monitor:
    """Keeps the samples of the latest ``window_s`` seconds of ``n`` workers; sees all events.

    A worker that is replaced is forgotten: what is known of it begins anew, after the first answer
    of the new one, which has its start in it.

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
        self._n, self._window_s = require_int("n", n, least=1), window_s
        self.now = 0.0
        self._round = -1
        self._left_at, self._seconds, self._since = np.zeros((3, self._n))
        self._shares: FloatArray = np.zeros(self._n)
        self._answered, self._fresh = np.zeros((2, self._n), dtype=np.bool_)
        self._samples: deque[Sample] = deque()

    @property
    def up_s(self) -> FloatArray:
        """(n,) for how long each worker has been known: since the beginning, or `forget`."""
        return self.now - self._since

    def forget(self, worker: int) -> None:
        """Begin anew with a worker, for it is replaced."""
        self._since[worker], self._fresh[worker] = self.now, True

    def on(self, event: Event) -> None:
        """Take note of an event of the loop."""
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
        """Take note of how a round ended; return what is known of it."""
        self.now += record.duration_s
        answered = self._answered & (self._shares > 0) & (self._seconds > 0)
        sample = Sample(
            at=self.now,
            seconds=np.where(answered, self._seconds, 0.0),
            shares=self._shares,
            answered=answered & ~self._fresh,
        )
        self._fresh = self._fresh & ~answered
        self._samples.append(sample)
        while self._samples[0].at <= self.now - self._window_s:
            self._samples.popleft()
        return sample

    def seconds(self, window_s: float) -> Means:
        """Return the mean time of a batch of each worker over the latest seconds."""
        return self._mean(window_s, lambda sample: sample.seconds)

    def speeds(self, window_s: float) -> Means:
        """Return the mean speed of each worker over the latest seconds, batches a second."""
        return self._mean(window_s, lambda sample: sample.speeds)

    def _mean(self, window_s: float, value: Callable[[Sample], FloatArray]) -> Means:
        total, count = np.zeros((2, self._n))
        for sample in reversed(self._samples):
            if sample.at <= self.now - window_s:
                break
            counts = sample.answered & (sample.at > self._since)
            total += np.where(counts, value(sample), 0.0)
            count += counts
        known = count > 0
        return Means(total / np.maximum(count, 1), known)
