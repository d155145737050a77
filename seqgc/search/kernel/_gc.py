"""Kernels of the schemes whose rounds are independent: `Uncoded`, `Backup` and `GC`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from seqgc.codes import make_code
from seqgc.schemes import GC, Backup, Uncoded
from seqgc.search.kernel._dispatch import (
    Kernel,
    Need,
    adds_results,
    by_thresholds,
    kernel_of,
    necessary_answers,
)
from seqgc.search.kernel._thresholds import AnswerHistory, Codes


def _codes(
    schemes: Sequence[Uncoded | Backup | GC],
    history: AnswerHistory,
    _num_jobs: int,
    *,
    feasible: bool,
) -> Codes:
    """Return the thresholds of the rounds.

    A round is feasible if the code can decode. A round that conforms has an answer in every group
    of a repetition code, which is the same condition. For other codes it has n - s answers, which
    may be more than decoding needs.
    """
    families = [scheme.family if isinstance(scheme, GC) else None for scheme in schemes]
    kinds = [family if feasible or family == "rep" else None for family in families]
    return Codes(history.arrivals, [scheme.tolerated for scheme in schemes], kinds)


@kernel_of.register
def _(scheme: Uncoded | Backup | GC, *, feasible: bool, bursty_only: bool) -> Kernel | None:  # noqa: ARG001
    if isinstance(scheme, GC) and not (scheme.exact and _counts(scheme)):
        return None
    thresholds = partial(_codes, feasible=feasible)
    return Kernel(group=GC, decisions=scheme, play=by_thresholds(thresholds))


def _counts(scheme: GC) -> bool:
    """Return True if the number or the covers of the answers show that the code can decode.

    A code with covers needs a complete cover. A built-in code without covers needs n - s answers.
    For a user's code without covers, fewer answers may suffice, and equations must be solved.
    """
    if scheme.family in ("rep", "cyclic", "binary"):
        return True
    return bool(make_code(scheme.family, scheme.n, scheme.s).covers)


@adds_results.register
def _(scheme: GC) -> bool:
    return scheme.family != "cyclic" and _counts(scheme)


@necessary_answers.register
def _(scheme: Uncoded, *, conforms: bool) -> Need:  # noqa: ARG001
    return Need(answers=scheme.n)


@necessary_answers.register
def _(scheme: Backup, *, conforms: bool) -> Need:  # noqa: ARG001
    return Need(answers=scheme.n - scheme.b)


@necessary_answers.register
def _(scheme: GC, *, conforms: bool) -> Need:
    """Return the answers that decode the round's job.

    A pattern that conforms has at most s stragglers.
    """
    if conforms and scheme.family != "rep":
        return Need(answers=scheme.n - scheme.s)
    if scheme.exact and _counts(scheme):
        return Need(code=(scheme.family, scheme.s))
    return Need(answers=0)
