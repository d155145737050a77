"""What rounds of gradient coding need: the past does not matter."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from seqgc.codes import make_code
from seqgc.ports import BoolArray
from seqgc.schemes import GC, Backup, Uncoded
from seqgc.search.kernel._arrivals import SmallInts
from seqgc.search.kernel._codes import Codes
from seqgc.search.kernel._dispatch import (
    Kernel,
    Need,
    adds_results,
    by_thresholds,
    conforms_as_feasible,
    kernel_of,
    necessary_answers,
)
from seqgc.search.kernel._thresholds import History, Thresholds

__all__ = ["GCThresholds"]


class GCThresholds(Thresholds):
    """Rounds of `Uncoded`, `Backup` and `GC` schemes.

    Feasible is what the code decodes. What conforms suffices for that: one answer in every group
    with repetition, which is the same, and n - s with the other codes, which may be more.
    """

    def __init__(
        self,
        schemes: Sequence[Uncoded | Backup | GC],
        history: History,
        _num_jobs: int,
        *,
        feasible: bool,
    ) -> None:
        families = [scheme.family if isinstance(scheme, GC) else None for scheme in schemes]
        kinds = [family if feasible or family == "rep" else None for family in families]
        self._codes = Codes(history.arrivals, [scheme.tolerated for scheme in schemes], kinds)

    def needed(self, round: int) -> SmallInts:
        return self._codes.needed(round)

    def idle(self, round: int) -> BoolArray | None:  # noqa: ARG002 (never)
        return None

    def close(self, round: int) -> None:
        """Nothing to remember."""


@kernel_of.register
def _(scheme: Uncoded | Backup | GC, *, feasible: bool, bursty_only: bool) -> Kernel | None:  # noqa: ARG001
    if isinstance(scheme, GC) and not (scheme.exact and _counts(scheme)):
        return None
    return Kernel(
        group=GC, decisions=scheme, play=by_thresholds(partial(GCThresholds, feasible=feasible))
    )


def _counts(scheme: GC) -> bool:
    """Whether nothing decodes but a cover of its code or, if it has none, any n - s answers.

    Of somebody else's code without covers, fewer answers may decode: equations must be solved.
    """
    if scheme.family in ("rep", "cyclic", "binary"):
        return True
    return bool(make_code(scheme.family, scheme.n, scheme.s).covers)


@adds_results.register
def _(scheme: GC) -> bool:
    return scheme.family != "cyclic" and _counts(scheme)


@necessary_answers.register
def _(scheme: Uncoded, *, conforms: bool) -> Need:  # noqa: ARG001 (everybody, in any case)
    return Need(answers=scheme.n)


@necessary_answers.register
def _(scheme: Backup, *, conforms: bool) -> Need:  # noqa: ARG001 (any that many, in any case)
    return Need(answers=scheme.n - scheme.b)


@necessary_answers.register
def _(scheme: GC, *, conforms: bool) -> Need:
    """Return what decodes the round's own job; what conforms has at most s stragglers."""
    if conforms and scheme.family != "rep":
        return Need(answers=scheme.n - scheme.s)
    if scheme.exact and _counts(scheme):
        return Need(code=(scheme.family, scheme.s))
    return Need(answers=0)


@conforms_as_feasible.register
def _(scheme: Uncoded | Backup | GC) -> bool:
    if isinstance(scheme, Uncoded | Backup):
        return True
    if not (scheme.exact and _counts(scheme)):
        return False
    return scheme.family == "rep" or not make_code(scheme.family, scheme.n, scheme.s).covers
