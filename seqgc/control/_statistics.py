"""`Statistics`: how long each worker took for what it was asked for, over the latest answers.

The *time of a batch* (AntDT: BPT) of a worker is the time from when its task left to its answer,
whatever share of the batch that was. Its *speed* is the share divided by that, in batches a second:
what a message or a start costs makes it slower, the more so the smaller its share.
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
    """A mean of each worker (n,), and whether it is ``known``: else it is 0."""

    values: FloatArray
    known: BoolArray


class _Batch(NamedTuple):
    """An answer to a task: when it counted, the seconds since the task left, and of what share."""

    at: float
    seconds: float
    share: float


class Statistics(ABC):
    """What is known of ``n`` workers by their answers of the latest ``window_s`` seconds.

    A worker that is replaced is forgotten: what is known of it begins anew, after the first answer
    of the new one, which has its start in it. ``now`` are seconds since the beginning.
    """

    def __init__(self, n: int, *, window_s: float) -> None:
        self._n, self._window_s = require_int("n", n, least=1), window_s
        self.now = 0.0
        self._since: FloatArray = np.zeros(self._n)
        self._fresh = set[int]()
        self._batches: list[deque[_Batch]] = [deque() for _ in range(self._n)]

    @property
    def up_s(self) -> FloatArray:
        """(n,) for how long each worker has been known: since the beginning, or `forget`."""
        return self.now - self._since

    @abstractmethod
    def on(self, event: Event) -> None:
        """Take note of an event of the loop."""

    def forget(self, worker: int) -> None:
        """Begin anew with a worker, for it is replaced."""
        self._since[worker] = self.now
        self._fresh.add(worker)
        self._batches[worker].clear()

    def seconds(self, window_s: float) -> Means:
        """Return the mean time of a batch of each worker over the latest seconds."""
        return self._mean(window_s, lambda batch: batch.seconds)

    def speeds(self, window_s: float) -> Means:
        """Return the mean speed of each worker over the latest seconds, batches a second."""
        return self._mean(window_s, lambda batch: batch.share / batch.seconds)

    def _take(self, worker: int, *, seconds: float, share: float) -> bool:
        """Count an answer that came now; say whether it does: a fresh worker's first does not."""
        if worker in self._fresh:
            self._fresh.discard(worker)
            return False
        batches = self._batches[worker]
        batches.append(_Batch(self.now, seconds, share))
        while self.now - batches[0].at >= self._window_s:  # not so of this one, however late it is
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
