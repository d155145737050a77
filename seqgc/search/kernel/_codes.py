"""Which answers decode, for many codes at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from seqgc._types import BoolArray, IntArray
from seqgc.search.kernel._arrivals import Arrivals, SmallInts
from seqgc.search.kernel._judge import after_enough

__all__ = ["Codes", "every_group"]


class Codes:
    """A gradient code per candidate: cyclic or fractional repetition.

    Parameters
    ----------
    tolerated : (candidates,)
        s of each code; s = n stands for no code, of which nothing is asked.
    families : (candidates,)
        ``cyclic`` or ``rep``.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        tolerated: Sequence[int],
        families: Sequence[Literal["cyclic", "rep"]],
    ) -> None:
        self._arrivals = arrivals
        s = np.array(tolerated, dtype=arrivals.dtype)
        rep = np.array([family == "rep" for family in families])
        self._any: IntArray = np.flatnonzero(~rep)
        self._enough: SmallInts = arrivals.n - s[self._any]
        # Candidates with groups of one size share the counting.
        self.groups: list[tuple[int, IntArray]] = [
            (int(size), np.flatnonzero(rep & (s + 1 == size))) for size in np.unique(s[rep] + 1)
        ]

    def needed(self, round: int, useful: BoolArray) -> SmallInts:
        """Return how many answers decode, (candidates,), if only useful ones (n, candidates) count.

        n + 1: not even all of them.
        """
        order, rank = self._arrivals.order[round], self._arrivals.rank[round]
        if not self.groups:
            return after_enough(useful, order, self._enough)
        needed: SmallInts = np.empty(useful.shape[1], dtype=self._arrivals.dtype)
        if len(self._any):
            needed[self._any] = after_enough(useful[:, self._any], order, self._enough)
        for size, which in self.groups:
            places = np.where(useful[:, which], rank[:, None], rank.dtype.type(self._arrivals.n))
            needed[which] = places.reshape(-1, size, len(which)).min(axis=1).max(axis=0) + 1
        return needed


def every_group(rank: SmallInts, size: int) -> SmallInts:
    """Return how many answers each round needs for one of every group, (rounds,).

    ``rank`` (rounds, n); groups of ``size`` consecutive workers.
    """
    first: SmallInts = rank.reshape(len(rank), -1, size).min(axis=2)
    needed: SmallInts = first.max(axis=1) + 1
    return needed
