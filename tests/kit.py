"""Short ways to say what happened in a run."""

from __future__ import annotations

from seqgc.ports import Decoding, Dispatched


def decoded(job: int) -> Decoding:
    """The decoding of a gradient that somebody else has added up."""
    return Decoding(job=job, terms=())


def left(round: int, n: int, *, at: float, attempt: int = 0) -> Dispatched:
    """The tasks of all of n workers left at one instant."""
    return Dispatched(round=round, attempt=attempt, workers=tuple(range(n)), left_at=(at,) * n)
