"""`Statistics`: the times and speeds of the workers' latest answers.

A worker's *time of a batch* (AntDT: BPT) is the time in seconds between the sending of its task and
its answer, regardless of the worker's share of the batch. Its *speed* is the share divided by this
time, in batches per second. The time includes messages and the worker's start. Therefore a worker
with a smaller share appears to have a lower speed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from seqgc.errors import require_int
from seqgc.ports import BoolArray, Event, FloatArray

__all__ = ["Means", "Statistics"]


class Means(NamedTuple):
    """The mean ``values`` (n,) of the workers, and a mask ``known`` (n,) of workers with answers.

    The value of a worker without answers is 0.
    """

    values: FloatArray
    known: BoolArray


class _Batch(NamedTuple):
    """An answer: the time at which it counted, the seconds that it took, the share of the batch."""

    at: float
    seconds: float
    share: float


class Statistics(ABC):
    """Means over the answers of ``n`` workers in the latest ``window_s`` seconds.

    If a worker is replaced (`forget`), its earlier answers no longer count. The first answer of the
    new worker does not count either, because its time includes the start. ``now`` is the time since
    the beginning, in seconds.
    """

    def __init__(self, n: int, *, window_s: float) -> None:
        self._n, self._window_s = require_int("n", n, least=1), window_s
        self.now = 0.0
        self._since: FloatArray = np.zeros(self._n)
        self._fresh = set[int]()
        self._batches: list[deque[_Batch]] = [deque() for _ in range(self._n)]

    @property
    def up_s(self) -> FloatArray:
        """The seconds (n,) since each worker was last replaced, or since the beginning."""
        return self.now - self._since

    @abstractmethod
    def on(self, event: Event) -> None:
        """Record an event of the run."""

    def forget(self, worker: int) -> None:
        """Forget a worker's answers, because it is replaced."""
        self._since[worker] = self.now
        self._fresh.add(worker)
        self._batches[worker].clear()

    def seconds(self, window_s: float) -> Means:
        """Return each worker's mean time of a batch over the latest ``window_s`` seconds."""
        return self._mean(window_s, lambda batch: batch.seconds)

    def speeds(self, window_s: float) -> Means:
        """Return each worker's mean speed over the latest ``window_s`` s, in batches per second."""
        return self._mean(window_s, lambda batch: batch.share / batch.seconds)

    def _take(self, worker: int, *, seconds: float, share: float) -> bool:
        """Record an answer that arrives now.

        Return False if it does not count, because it is the first answer of a new worker.
        """
        if worker in self._fresh:
            self._fresh.discard(worker)
            return False
        batches = self._batches[worker]
        batches.append(_Batch(self.now, seconds, share))
        while self.now - batches[0].at >= self._window_s:  # stops at the new answer
            batches.popleft()
        return True

    def _mean(self, window_s: float, value: Callable[[_Batch], float]) -> Means:
        total, count = np.zeros((2, self._n))
        window_s = min(window_s, self._window_s)
        for worker, batches in enumerate(self._batches):
            for batch in reversed(batches):
                if self.now - batch.at >= window_s:
                    break
                total[worker] += value(batch)
                count[worker] += 1
        return Means(total / np.maximum(count, 1), count > 0)
