"""What rounds of gradient coding need: the past does not matter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqgc.codes import CodeKind
from seqgc.ports import BoolArray, IntArray
from seqgc.schemes import GC, Uncoded
from seqgc.search.kernel._arrivals import Arrivals
from seqgc.search.kernel._codes import Codes
from seqgc.search.kernel._judge import Judge

__all__ = ["GCJudge"]


class GCJudge(Judge):
    """Rounds of `Uncoded` and `GC` schemes.

    Feasible is what the code decodes. What conforms suffices for that: one answer in every group
    with repetition, which is the same, and n - s with the other codes, which may be more.
    """

    def __init__(
        self, schemes: Sequence[Uncoded | GC], arrivals: Arrivals, *, feasible: bool
    ) -> None:
        kinds = [_kind(scheme, feasible=feasible) for scheme in schemes]
        self._codes = Codes(arrivals, [scheme.tolerated for scheme in schemes], kinds)

    def needed(self, round: int) -> IntArray:
        return self._codes.needed(round).astype(np.intp)

    def idle(self, round: int) -> BoolArray | None:  # noqa: ARG002 (never)
        return None

    def close(self, round: int, answered: IntArray) -> None:
        """Nothing to remember."""


def _kind(scheme: Uncoded | GC, *, feasible: bool) -> CodeKind | None:
    """Return the code that decides when a round may close, or None for any n - s answers."""
    if isinstance(scheme, Uncoded) or not (feasible or scheme.family == "rep"):
        return None
    return scheme.family
