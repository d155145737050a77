"""What rounds of gradient coding need: the past does not matter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqgc._types import BoolArray, IntArray
from seqgc.codes import BinaryCode
from seqgc.schemes import GC, Uncoded
from seqgc.search.kernel._arrivals import Arrivals, SmallInts
from seqgc.search.kernel._codes import every_group
from seqgc.search.kernel._judge import Judge

__all__ = ["GCJudge"]


class GCJudge(Judge):
    """Rounds of `Uncoded` and `GC` schemes.

    Cyclic codes need any n - s answers, repetition codes one of every group, binary codes one of
    every place of sub-collections of one size (see `BinaryCode`), or n - s if they are to conform.
    """

    def __init__(
        self, schemes: Sequence[Uncoded | GC], arrivals: Arrivals, *, feasible: bool
    ) -> None:
        columns = [_needed(scheme, arrivals, feasible=feasible) for scheme in schemes]
        self._needed: IntArray = np.stack(columns, axis=1).astype(np.intp)

    def needed(self, round: int) -> IntArray:
        needed: IntArray = self._needed[round]
        return needed

    def idle(self, round: int) -> BoolArray | None:  # noqa: ARG002 (never)
        return None

    def close(self, round: int, answered: IntArray) -> None:
        """Nothing to remember."""


def _needed(scheme: Uncoded | GC, arrivals: Arrivals, *, feasible: bool) -> SmallInts | IntArray:
    """Answers that each round needs, (rounds,)."""
    rank = arrivals.rank
    if isinstance(scheme, GC) and scheme.family == "rep":
        return every_group(rank, scheme.s + 1)
    if isinstance(scheme, GC) and scheme.family == "binary" and feasible:
        return _needed_by_binary(scheme, rank)
    return np.full(len(rank), scheme.n - scheme.tolerated)


def _needed_by_binary(scheme: GC, rank: SmallInts) -> SmallInts:
    of_size: dict[int, list[tuple[int, ...]]] = {}
    for workers in BinaryCode(scheme.n, scheme.s).subcollections:
        of_size.setdefault(len(workers), []).append(workers)
    ends = [rank[:, np.array(same)].min(axis=1).max(axis=1) for same in of_size.values()]
    least: SmallInts = np.min(ends, axis=0) + 1
    return least
