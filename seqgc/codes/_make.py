"""`make_code`: a code by the name of its kind."""

from __future__ import annotations

from typing import Literal, TypeAlias

from seqgc.codes._base import GradientCode
from seqgc.codes.binary import BinaryCode
from seqgc.codes.cyclic import CyclicCode
from seqgc.codes.repetition import FractionalRepetitionCode
from seqgc.errors import ParameterError

__all__ = ["CODES", "CodeKind", "make_code"]

CodeKind: TypeAlias = Literal["cyclic", "rep", "binary"]

CODES: dict[str, type[GradientCode]] = {
    "cyclic": CyclicCode,
    "rep": FractionalRepetitionCode,
    "binary": BinaryCode,
}
"""The families of codes, by kind."""


def make_code(kind: CodeKind, n: int, s: int) -> GradientCode:
    """Return the code of a kind for ``n`` workers, any ``s`` of which may be missing.

    Raises
    ------
    ParameterError
        If the kind is unknown, or ``n`` and ``s`` do not suit it.

    Examples
    --------
    >>> make_code("rep", 4, 1)
    FractionalRepetitionCode(n=4, s=1)
    """
    if kind not in CODES:
        raise ParameterError("kind", f"must be one of {', '.join(CODES)}", kind)
    return CODES[kind](n, s)
