"""Which family of codes suits a number of workers, of stragglers, and a payload format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from seqgc.codes._base import GradientCode
from seqgc.codes._survivors import worst_found
from seqgc.codes.binary import BinaryCode
from seqgc.codes.cyclic import CyclicCode
from seqgc.codes.repetition import FractionalRepetitionCode
from seqgc.errors import ParameterError
from seqgc.ports import Payload, payload_format

__all__ = ["CODES", "Comparison", "compare"]

CODES: dict[str, type[GradientCode]] = {
    "rep": FractionalRepetitionCode,
    "cyclic": CyclicCode,
    "binary": BinaryCode,
}
"""The families of codes, by kind; of equal loads, `compare` prefers the first.

A repetition code decodes with one answer of every group, which every set of answers that decodes an
all-ones cyclic code contains.
"""

# What the worst survivors found may cost in relative error: a few units in the last places of what
# is sent, so that codes do not add to what the payload format costs anyway.
_WORST_ERROR: Mapping[Payload, float] = {
    "float64": 1e-11,
    "float32": 1e-6,
    "float16": 1e-3,
    "bfloat16": 1e-2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidate:
    kind: str
    code: GradientCode
    amplification: float  # for the worst survivors found
    error: float  # predicted for them

    def line(self, allowed: float) -> str:
        verdict = "" if self.error <= allowed else f", more than {allowed:.0e}: not chosen"
        return (
            f"{self.kind}: load {self.code.load:.4g}, worst survivors found amplify rounding errors"
            f" {self.amplification:.3g} times: predicted relative error {self.error:.1e}{verdict}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The code to choose, and the ``text`` that says why."""

    code: GradientCode
    text: str


@lru_cache(maxsize=256)
def compare(n: int, s: int, *, payload: Payload) -> Comparison:
    """Compare the families for ``n`` workers, any ``s`` of which may be missing.

    Among those whose predicted relative error stays low whoever is missing, as far as a bounded
    search for the worst survivors can tell, take the one of least load; of equal loads, the one
    that more sets of survivors can decode.

    Raises
    ------
    ParameterError
        If ``n``, ``s`` or ``payload`` is out of range.
    """
    known, allowed = payload_format(payload), _WORST_ERROR[payload]
    candidates, lines = [], []
    for kind, family in CODES.items():
        try:
            code = family(n, s)
        except ParameterError:
            if family is not FractionalRepetitionCode:
                raise
            lines.append(f"rep: needs s + 1 to divide n, {s + 1} does not divide {n}")
            continue
        _, amplification = worst_found(code)
        found = _Candidate(
            kind=kind, code=code, amplification=amplification, error=amplification * known.rounding
        )
        candidates.append(found)
        lines.append(found.line(allowed))
    chosen = min((c for c in candidates if c.error <= allowed), key=lambda c: c.code.load)
    vars(chosen.code)["_chosen_for"] = payload  # for `explain`; no part of the code's value
    title = f"n={n}, s={s}, {payload} results: {chosen.kind}, the least load that is exact enough"
    return Comparison(code=chosen.code, text="\n  ".join([title, *lines]))
