"""What rounds of gradient coding need: the past does not matter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from seqgc.codes import make_code
from seqgc.ports import BoolArray, IntArray
from seqgc.schemes import GC, Uncoded
from seqgc.search.kernel._arrivals import Arrivals
from seqgc.search.kernel._conditions import Conditions
from seqgc.search.kernel._dispatch import (
    Kernel,
    Need,
    adds_results,
    conforms_as_feasible,
    kernel_of,
    necessary_answers,
)
from seqgc.search.kernel._many_codes import Codes
from seqgc.search.kernel._thresholds import Thresholds

__all__ = ["GCThresholds"]


class GCThresholds(Thresholds):
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


def _kind(scheme: Uncoded | GC, *, feasible: bool) -> str | None:
    """Return the code that decides when a round may close, or None for any n - s answers."""
    if isinstance(scheme, Uncoded) or not (feasible or scheme.family == "rep"):
        return None
    return scheme.family


@kernel_of.register
def _(scheme: Uncoded | GC, conditions: Conditions) -> Kernel | None:  # noqa: ARG001
    if not scheme.exact:
        return None
    return Kernel(
        group=GC,
        decisions=scheme,
        thresholds=lambda schemes, arrivals, conditions: GCThresholds(
            cast("Sequence[Uncoded | GC]", schemes), arrivals, feasible=conditions.feasible
        ),
    )


@necessary_answers.register
def _(scheme: Uncoded, *, conforms: bool) -> Need:  # noqa: ARG001 (everybody, in any case)
    return Need(answers=scheme.n)


@necessary_answers.register
def _(scheme: GC, *, conforms: bool) -> Need:
    """Return what decodes the round's own job; what conforms has at most s stragglers."""
    if conforms and scheme.family != "rep":
        return Need(answers=scheme.n - scheme.s)
    if conforms or scheme.exact:
        return Need(code=(scheme.family, scheme.s))
    return Need(answers=0)


@conforms_as_feasible.register
def _(scheme: Uncoded) -> bool:  # noqa: ARG001
    return True


@conforms_as_feasible.register
def _(scheme: GC) -> bool:
    if not scheme.exact:
        return False
    return scheme.family == "rep" or not make_code(scheme.family, scheme.n, scheme.s).covers


@adds_results.register
def _(scheme: GC) -> bool:
    return scheme.family != "cyclic"
