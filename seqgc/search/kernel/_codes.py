"""Which answers decode, for many candidates' codes at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from seqgc.codes import GradientCode, make_code
from seqgc.ports import BoolArray, IntArray
from seqgc.search.kernel._arrivals import Arrivals, SmallInts
from seqgc.search.kernel._thresholds import after_enough

__all__ = ["Codes", "Covers"]

_T = TypeVar("_T", np.signedinteger, np.floating)


class Covers:
    """The covers of codes that have some (`GradientCode.covers`), end to end, column after column.

    ``workers``, ``code_of`` (entries,): whose answer each entry is, and of which of the codes.

    Examples
    --------
    >>> covers = Covers([make_code("rep", 4, 1), make_code("cyclic", 4, 1)])
    >>> place_of_worker = np.array([0, 3, 1, 2])
    >>> covers.first(place_of_worker[covers.workers])
    array([2, 1])
    """

    def __init__(self, codes: Sequence[GradientCode]) -> None:
        covers = [cover for code in codes for cover in code.covers]
        entries = [sum(cover.size for cover in code.covers) for code in codes]
        self.workers: IntArray = np.concatenate([cover.T.ravel() for cover in covers])
        self.code_of: IntArray = np.repeat(np.arange(len(codes)), entries)
        candidates, places = np.array([cover.shape for cover in covers]).T
        # Where every column has but one worker, as of cyclic codes, there is no first to look for.
        self._columns = _starts(np.repeat(candidates, places)) if candidates.max() > 1 else None
        self._covers = _starts(places)
        self._codes = _starts(np.array([len(code.covers) for code in codes]))

    def first(self, arrived: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Return when each code's first cover is complete, (..., codes).

        ``arrived`` (..., entries) says when each entry's answer comes: a time, or a place in the
        order of arrival.
        """
        columns = arrived
        if self._columns is not None:
            columns = np.minimum.reduceat(arrived, self._columns, axis=-1)
        covers = np.maximum.reduceat(columns, self._covers, axis=-1)
        first: npt.NDArray[_T] = np.minimum.reduceat(covers, self._codes, axis=-1)
        return first


def _starts(lengths: IntArray) -> IntArray:
    starts: IntArray = np.cumsum(lengths) - lengths
    return starts


class Codes:
    """A gradient code per candidate: its family (``kinds``) and its s (``tolerated``).

    Answers decode as soon as they complete one of the code's covers; of a code without covers any
    n - s do. The latter suffice for every code. A family of None stands for a promise instead of a
    code: exactly any n - s answers do. ``covered`` (m,): the candidates whose codes have covers.
    """

    def __init__(
        self, arrivals: Arrivals, tolerated: Sequence[int], kinds: Sequence[str | None]
    ) -> None:
        n = arrivals.n
        self._arrivals, self._never = arrivals, arrivals.dtype(n)
        self._enough: SmallInts = n - np.array(tolerated, dtype=arrivals.dtype)
        codes = [
            None if kind is None else _code_with_covers(kind, n, s)
            for s, kind in zip(tolerated, kinds, strict=True)
        ]
        self.covered: IntArray = np.flatnonzero([code is not None for code in codes])
        if len(self.covered):
            self._covers = Covers([code for code in codes if code is not None])
            # Where an entry of the covers stands in a flattened mask (n, candidates).
            candidates = self.covered[self._covers.code_of]
            self._entries: IntArray = self._covers.workers * len(codes) + candidates

    def needed(self, round: int, useful: BoolArray | None = None) -> SmallInts:
        """Return how many answers decode, (candidates,), if only useful ones (n, candidates) count.

        n + 1: not even all of them. Without a mask all are useful.
        """
        order, rank = self._arrivals.order[round], self._arrivals.rank[round]
        if useful is None:
            needed = self._enough.copy()
        elif len(self.covered) == len(self._enough):
            needed = np.empty_like(self._enough)
        else:
            needed = after_enough(useful, order, self._enough)
        if len(self.covered):
            arrived = rank[self._covers.workers]
            if useful is not None:
                arrived = np.where(useful.take(self._entries), arrived, self._never)
            needed[self.covered] = self._covers.first(arrived) + 1
        return needed

    def still_needed(self, round: int, useful: BoolArray, *, known: BoolArray) -> SmallInts:
        """Return how many answers complete a cover, (m,), if the known results are in already.

        ``useful``, ``known`` (n, candidates). 0: none; n + 1: not even all useful ones.
        """
        arrived = self._arrivals.rank[round][self._covers.workers]
        arrived = np.where(useful.take(self._entries), arrived, self._never)
        arrived[known.take(self._entries)] = -1
        return self._covers.first(arrived) + 1

    def decode(self, known: BoolArray) -> BoolArray:
        """Return which codes with covers the known results (n, candidates) decode, (m,)."""
        missing = ~known.take(self._entries)
        decoded: BoolArray = self._covers.first(missing.view(np.int8)) == 0
        return decoded


@lru_cache(maxsize=1024)
def _code_with_covers(kind: str, n: int, s: int) -> GradientCode | None:
    code = make_code(kind, n, s)
    return code if code.covers else None
