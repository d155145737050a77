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
    def needed(self, round: int) -> SmallInts:
        """Return how many of the first answers suffice at least, (candidates,); n + 1: no number.

        (Then the round ends, like any other, at the latest with its last answer.)
        """

    @abstractmethod
    def idle(self, round: int) -> BoolArray | None:
        """Return where no worker has anything to do, (candidates,); None: nowhere."""

    @abstractmethod
    def close(self, round: int) -> None:
        """Move on by a round, which the history has taken note of."""


class History:
    """Who straggled: masks (n, candidates), from the number of answers of every round.

    ``arrivals`` are of the rounds; ``shape`` is that of a mask.
    """

    def __init__(self, arrivals: Arrivals, candidates: int) -> None:
        self.arrivals, self.shape = arrivals, (arrivals.n, candidates)
        self._answered: list[SmallInts] = []
        self._columns: BoolArray | None = None  # of the whole history; None: all of them
        self._latest_round, self._latest = -1, np.zeros(self.shape, dtype=np.bool_)

    def part(self, columns: BoolArray) -> History:
        """Return the history of some of the candidates, which goes on with this one."""
        part = History(self.arrivals, int(columns.sum()))
        part._answered, part._columns = self._answered, columns
        return part

    def close(self, answered: IntArray) -> None:
        """Take note of how many answered in the next round, (candidates,)."""
        self._answered.append(answered.astype(self.arrivals.dtype))

    def answered(self, round: int) -> SmallInts:
        """Return how many answered in a closed round, (candidates,)."""
        answered = self._answered[round]
        return answered if self._columns is None else answered[self._columns]

    def stragglers(self, round: int) -> BoolArray:
        """Return who straggled in a closed round, (n, candidates)."""
        if round == self._latest_round:
            return self._latest
        mask: BoolArray = self.arrivals.rank[round][:, None] >= self.answered(round)
        if round == len(self._answered) - 1:  # several ask for it
            self._latest_round, self._latest = round, mask
        return mask


class Recent:
    """How often each worker straggled in the last ``length`` rounds: ``times`` (n, candidates)."""

    def __init__(self, history: History, length: int) -> None:
        self._history, self._length = history, length
        self.times: SmallInts = np.zeros(history.shape, dtype=history.arrivals.dtype)

    def close(self, round: int) -> None:
        """Move on by a round."""
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
