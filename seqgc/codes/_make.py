"""A code by the name of its kind, and which kind suits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from seqgc.codes._checks import check_tolerance
from seqgc.codes._code_kinds import code_class, code_kinds
from seqgc.codes._gradient_code import GradientCode
from seqgc.codes._survivors import worst_survivors
from seqgc.errors import ParameterError
from seqgc.ports import Payload, payload_format

__all__ = ["CodeComparison", "ComparedCode", "compare_codes", "make_code"]

# What the worst survivors found may cost in relative error: a few units in the last places of what
# is sent, so that codes do not add to what the payload format costs anyway.
_WORST_ERROR: Mapping[Payload, float] = {
    "float64": 1e-11,
    "float32": 1e-6,
    "float16": 1e-3,
    "bfloat16": 1e-2,
}


def make_code(kind: str, n: int, s: int, *, payload: Payload = "float32") -> GradientCode:
    """Return the code of a kind for ``n`` workers, any ``s`` of which may be missing.

    ``kind`` is one of `code_kinds`; or ``auto``, the one of least load that decodes exactly enough,
    in the ``payload`` format in which results travel, whoever is missing (see `compare_codes`).

    Raises
    ------
    ParameterError
        If the kind is unknown, or ``n`` and ``s`` do not suit it.

    Examples
    --------
    >>> make_code("rep", 4, 1)
    FractionalRepetitionCode(n=4, s=1)
    >>> make_code("auto", 64, 14, payload="float16")
    BinaryCode(n=64, s=14)
    """
    if kind == "auto":
        return compare_codes(n, s, payload=payload).code
    return code_class(kind)(n, s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedCode:
    """One row of a `CodeComparison`: what a ``kind`` costs, and whether it is ``chosen``.

    ``amplification`` and ``predicted_error`` are those of the worst survivors found (see
    `GradientCode`); infinite, like ``load``, if the kind has no code for these ``n`` and ``s``.
    ``why_not`` says why it cannot be taken; empty if it can.
    """

    kind: str
    load: float = math.inf
    amplification: float = math.inf
    predicted_error: float = math.inf
    chosen: bool = False
    why_not: str = ""

    def __str__(self) -> str:
        if math.isinf(self.load):
            return f"{self.kind}: {self.why_not}"
        return (
            f"{self.kind}: load {self.load:.4g}, worst survivors found amplify rounding errors"
            f" {self.amplification:.3g} times: predicted relative error {self.predicted_error:.1e}"
            + (f", {self.why_not}: not chosen" if self.why_not else "")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeComparison:
    """The kinds compared, in order of preference, and the ``code`` to take; `str` is a table."""

    n: int
    s: int
    payload: Payload
    rows: tuple[ComparedCode, ...]
    code: GradientCode

    def __str__(self) -> str:
        (chosen,) = (row.kind for row in self.rows if row.chosen)
        what = f"n={self.n}, s={self.s}, {self.payload} results"
        title = f"{what}: {chosen}, the least load that is exact enough"
        return "\n  ".join([title, *map(str, self.rows)])


def compare_codes(n: int, s: int, *, payload: Payload = "float32") -> CodeComparison:
    """Compare all registered kinds for ``n`` workers, any ``s`` of which may be missing.

    Among those whose predicted relative error stays low whoever is missing, as far as a bounded
    search for the worst survivors can tell (`worst_survivors`), the one of least load is chosen;
    of equal loads, the one of least preference.

    Raises
    ------
    ParameterError
        If ``n``, ``s`` or ``payload`` is out of range.

    Examples
    --------
    >>> [(row.kind, round(row.load, 3), row.chosen) for row in compare_codes(12, 4).rows]
    [('rep', inf, False), ('cyclic', 0.417, True), ('binary', 0.5, False)]
    """
    n, s = check_tolerance(n, s)
    payload_format(payload)
    return _compared(n, s, payload, tuple((kind, code_class(kind)) for kind in code_kinds()))


@lru_cache(maxsize=256)
def _compared(
    n: int, s: int, payload: Payload, classes: tuple[tuple[str, type[GradientCode]], ...]
) -> CodeComparison:
    rows, codes = [], {}
    for kind, family in classes:
        try:
            codes[kind] = family(n, s)
        except ParameterError as error:  # this kind has no code for these n and s
            rows.append(ComparedCode(kind=kind, why_not=f"`{error.argument}` {error.rule}"))
        else:
            rows.append(_judged(kind, codes[kind], payload))
    # There always is one: the binary code takes any n and s, and amplifies nothing.
    best = min((row for row in rows if not row.why_not), key=lambda row: row.load)
    return CodeComparison(
        n=n,
        s=s,
        payload=payload,
        rows=tuple(replace(row, chosen=row is best) for row in rows),
        code=codes[best.kind],
    )


def _judged(kind: str, code: GradientCode, payload: Payload) -> ComparedCode:
    _, amplification = worst_survivors(code)
    error, allowed = amplification * payload_format(payload).rounding, _WORST_ERROR[payload]
    return ComparedCode(
        kind=kind,
        load=code.load,
        amplification=amplification,
        predicted_error=error,
        why_not="" if error <= allowed else f"more than {allowed:.0e}",
    )
