"""`make_code`: a code by the name of its kind."""

from __future__ import annotations

from typing import Literal, TypeAlias

from seqgc.codes._auto import CODES, compare
from seqgc.codes._base import GradientCode
from seqgc.errors import ParameterError, did_you_mean
from seqgc.ports import Payload

__all__ = ["CodeKind", "make_code"]

CodeKind: TypeAlias = Literal["cyclic", "rep", "binary"]


def make_code(kind: str, n: int, s: int, *, payload: Payload = "float32") -> GradientCode:
    """Return the code of a kind for ``n`` workers, any ``s`` of which may be missing.

    Parameters
    ----------
    kind
        The family; ``auto`` takes the one of least load that decodes exactly enough whoever is
        missing, and ``code.explain()`` says why.
    n, s : int
        Workers, and stragglers tolerated; ``0 <= s < n``.
    payload
        The format in which results travel: what ``auto`` calls exact enough depends on it.

    Raises
    ------
    ParameterError
        If the kind is unknown, or ``n`` and ``s`` do not suit it.

    Examples
    --------
    >>> make_code("rep", 4, 1)
    FractionalRepetitionCode(n=4, s=1)
    >>> code = make_code("auto", 64, 14, payload="float16")
    >>> code
    BinaryCode(n=64, s=14)
    >>> print(code.explain().splitlines()[0])
    n=64, s=14, float16 results: binary, the least load that is exact enough
    """
    if kind == "auto":
        return compare(n, s, payload=payload).code
    if kind not in CODES:
        rule = f"must be one of auto, {', '.join(CODES)}"
        raise ParameterError("kind", rule, kind, did_you_mean(kind, ("auto", *CODES)))
    return CODES[kind](n, s)
