"""`Thresholds`: how many answers must a round have? And the counting that they share."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from seqgc.ports import BoolArray, IntArray
from seqgc.search.kernel._arrivals import Arrivals, SmallInts

__all__ = ["History", "Recent", "Thresholds", "after_enough", "after_last"]

_RUN = 16  # answers; at most 127


class Thresholds(ABC):
    """Says how many answers each of some candidates' rounds needs, round after round.

    Per round, in this order: `idle`, `needed`, `close`.
    """

    @abstractmethod
    def needed(self, round: int) -> IntArray:
        """Return how many of the first answers suffice at least, (candidates,); n + 1: no number.

        (Then the round ends, like any other, at the latest with its last answer.)
        """

    @abstractmethod
    def idle(self, round: int) -> BoolArray | None:
        """Return where no worker has anything to do, (candidates,); None: nowhere."""

    @abstractmethod
    def close(self, round: int, answered: IntArray) -> None:
        """Take note of how many answered, (candidates,)."""


class History:
    """Who straggled: masks (n, candidates), from the number of answers of every round."""

    def __init__(self, arrivals: Arrivals, candidates: int) -> None:
        self.arrivals = arrivals
        self.shape = (arrivals.n, candidates)
        self._answered: list[SmallInts] = []
        self._latest: BoolArray = np.zeros(self.shape, dtype=np.bool_)

    def close(self, round: int, answered: IntArray) -> None:
        """Take note of how many answered in the next round, (candidates,)."""
        self._answered.append(answered.astype(self.arrivals.dtype))
        self._latest = self._stragglers(round)

    def stragglers(self, round: int) -> BoolArray:
        """Return who straggled in a closed round, (n, candidates)."""
        return self._latest if round == len(self._answered) - 1 else self._stragglers(round)

    def _stragglers(self, round: int) -> BoolArray:
        mask: BoolArray = self.arrivals.rank[round][:, None] >= self._answered[round]
        return mask


class Recent:
    """How often each worker straggled in the latest ``length`` rounds: ``times`` (n, candidates).

    Feed it after the history has been fed.
    """

    def __init__(self, history: History, length: int) -> None:
        self._history, self._length = history, length
        self.times: SmallInts = np.zeros(history.shape, dtype=history.arrivals.dtype)

    def close(self, round: int) -> None:
        """Move on by a round."""
        if self._length == 0:
            return
        self.times += self._history.stragglers(round)
        if round >= self._length:
            self.times -= self._history.stragglers(round - self._length)


def after_last(wanted: BoolArray, rank: SmallInts) -> SmallInts:
    """Return how many answers it takes until all wanted workers (n, candidates) have answered."""
    most: SmallInts = ((rank + 1)[:, None] * wanted).max(axis=0)
    return most


def after_enough(wanted: BoolArray, order: IntArray, enough: SmallInts) -> SmallInts:
    """Return how many answers it takes until ``enough`` wanted ones have come; n + 1: never.

    ``wanted`` (n, candidates), ``enough`` (candidates,). At least 1.
    """
    # Strided sums are slow: count whole runs of answers first, then within the one that is left.
    n, candidates = wanted.shape
    arrived = np.zeros((-(-n // _RUN) * _RUN, candidates), dtype=np.bool_)
    arrived[:n] = wanted[order]
    runs = arrived.reshape(-1, _RUN, candidates)
    up_to = np.cumsum(runs.view(np.int8).sum(axis=1, dtype=np.int8), axis=0, dtype=enough.dtype)
    too_few: SmallInts = (up_to < enough).sum(axis=0, dtype=enough.dtype)
    each = np.arange(candidates)
    before = np.where(too_few > 0, up_to[too_few - 1, each], 0)
    within = np.cumsum(runs[np.minimum(too_few, len(runs) - 1), :, each], axis=1)
    too_few_within = (before[:, None] + within < enough[:, None]).sum(axis=1, dtype=enough.dtype)
    needed: SmallInts = np.minimum(too_few * _RUN + too_few_within, n) + 1
    return needed
