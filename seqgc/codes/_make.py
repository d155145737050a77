"""The registry of kinds of codes, and the choice of a kind for ``n`` workers and ``s`` stragglers.

The class of a code registers itself; there is no other list of codes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

from seqgc.codes._arrays import check_tolerance
from seqgc.codes._gradient_code import GradientCode
from seqgc.codes._survivors import worst_survivors
from seqgc.errors import ParameterError, did_you_mean
from seqgc.ports import Payload, payload_format

_Code = TypeVar("_Code", bound=type[GradientCode])

# The largest acceptable relative error for the worst survivors that a search finds. It is a few
# units in the last place, so that a code adds little to the error of the payload format.
_WORST_ERROR: Mapping[Payload, float] = {
    "float64": 1e-11,
    "float32": 1e-6,
    "float16": 1e-3,
    "bfloat16": 1e-2,
}

_codes: dict[str, tuple[int, type[GradientCode]]] = {}  # preference and class, by kind


def register_code(kind: str, *, preference: int = 1000) -> Callable[[_Code], _Code]:
    """Register a class of codes for `make_code`, and for all commands as the scheme ``gc-KIND``.

    The name ``kind`` consists of lower-case letters, digits and hyphens. If several exact codes
    have the same load, ``make_code("auto", ...)`` takes the code with the smallest ``preference``
    (repetition has 1, cyclic 2, binary 3), and among equal preferences the code that was registered
    first. If a class is defined again, for example in a notebook, the new definition is used.

    Raises
    ------
    ParameterError
        If the name is malformed or another class has it, or if the class is not a frozen dataclass
        that derives from `GradientCode` and defines its layout.

    Examples
    --------
    A class only needs a layout; `GradientCode` lists the optional methods. Here at least ``s + 1``
    workers hold each chunk, and neighbours hold different chunks:

    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> from seqgc.codes import GradientCode, Layout, make_code, register_code
    >>> @register_code("spread")
    ... @dataclass(frozen=True)
    ... class SpreadCode(GradientCode):
    ...     def _make_layout(self) -> Layout:
    ...         chunks = self.n // (self.s + 1)
    ...         supports = tuple(np.arange(self.n)[:, None] % chunks)
    ...         return Layout(supports=supports, sizes=np.ones(chunks))
    >>> code = make_code("spread", 5, 1)
    >>> code.load, code.decoding_vector(np.array([True, False, False, True, True])).round(6)
    (0.5, array([0.5, 0. , 0. , 1. , 0.5]))
    >>> forget_code("spread")
    """
    if not re.fullmatch("[a-z][a-z0-9-]*", kind) or kind == "auto":
        rule = "must be lower-case letters, digits and hyphens, begin with a letter, not be auto"
        raise ParameterError("kind", rule, kind)

    def register(cls: _Code) -> _Code:
        where = f"{cls.__module__}.{cls.__qualname__}"
        holder = _codes[kind][1] if kind in _codes else cls
        if (taken_by := f"{holder.__module__}.{holder.__qualname__}") != where:
            raise ParameterError("kind", f"is taken by {taken_by}", kind, "choose another name")
        parameters = vars(cls).get("__dataclass_params__")
        if not issubclass(cls, GradientCode) or parameters is None or not parameters.frozen:
            rule = f"must be a frozen dataclass derived from GradientCode ({kind})"
            raise ParameterError("class", rule, where, "put @dataclass(frozen=True) below")
        if missing := ", ".join(sorted(cls.__abstractmethods__)):
            raise ParameterError("class", f"must define {missing} ({kind})", where)
        _codes[kind] = preference, cls
        return cls

    return register


def forget_code(kind: str) -> None:
    """Remove a registered kind, for example in a test or a notebook."""
    code_class(kind)
    del _codes[kind]


def code_kinds() -> tuple[str, ...]:
    """Return the registered kinds in order of preference.

    Examples
    --------
    >>> code_kinds()[:3]
    ('rep', 'cyclic', 'binary')
    """
    return tuple(sorted(_codes, key=lambda kind: _codes[kind][0]))


def code_class(kind: str) -> type[GradientCode]:
    """Return the class registered as this kind; raise `ParameterError` for an unknown kind."""
    if kind not in _codes:
        kinds = ("auto", *code_kinds())
        remedy = did_you_mean(str(kind), kinds)
        raise ParameterError("kind", f"must be one of {', '.join(kinds)}", kind, remedy)
    return _codes[kind][1]


def make_code(kind: str, n: int, s: int, *, payload: Payload = "float32") -> GradientCode:
    """Return the code of a kind for ``n`` workers, any ``s`` of which may be missing.

    ``kind`` is one of `code_kinds` or ``auto``. ``auto`` chooses the kind with the smallest load
    among the kinds that decode results in the ``payload`` format exactly enough for any set of
    missing workers (see `compare_codes`). Raises `ParameterError` if the kind is unknown, or has no
    code for ``n`` and ``s``.

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
    """One row of a `CodeComparison`: the costs of a ``kind``, and whether the kind is ``chosen``.

    ``amplification`` and ``predicted_error`` are for the worst set of survivors that a search finds
    (see `GradientCode`); both are infinite for an approximate code. If the kind has no code for
    these ``n`` and ``s``, ``load`` is infinite too. ``why_not`` is the reason why the kind cannot
    be chosen, or empty.
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
        if math.isinf(self.amplification):
            return f"{self.kind}: load {self.load:.4g}, {self.why_not}: not chosen"
        return (
            f"{self.kind}: load {self.load:.4g}, worst survivors found amplify rounding errors"
            f" {self.amplification:.3g} times: predicted relative error {self.predicted_error:.1e}"
            + (f", {self.why_not}: not chosen" if self.why_not else "")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeComparison:
    """The compared kinds (``rows``, in order of preference) and the best ``code``.

    `str` returns a table.
    """

    n: int
    s: int
    payload: Payload
    rows: tuple[ComparedCode, ...]
    code: GradientCode

    def __str__(self) -> str:
        (chosen,) = (row.kind for row in self.rows if row.chosen)
        what = f"n={self.n}, s={self.s}, {self.payload} results"
        title = f"{what}: {chosen}, the least load (share of a batch) that is exact enough"
        return "\n  ".join([title, *map(str, self.rows)])


def compare_codes(n: int, s: int, *, payload: Payload = "float32") -> CodeComparison:
    """Compare all registered kinds for ``n`` workers, any ``s`` of which may be missing.

    A kind is eligible if its predicted relative error is low for any set of missing workers, as far
    as a bounded search for the worst survivors can tell (`worst_survivors`). The eligible kind with
    the smallest load is chosen. Among equal loads, the kind with the smallest number ``preference``
    is chosen (`register_code`). Raises `ParameterError` if ``n``, ``s`` or ``payload`` is out of
    range.

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
    rounding, allowed = payload_format(payload).rounding, _WORST_ERROR[payload]
    rows, codes = [], {}
    for kind, family in classes:
        try:
            code = codes[kind] = family(n, s)
        except ParameterError as error:  # no code for these n and s
            rows.append(ComparedCode(kind=kind, why_not=f"`{error.argument}` {error.rule}"))
            continue
        if code.worst_error > 0:
            why_not = f"approximate, with errors up to {code.worst_error:.2g}"
            rows.append(ComparedCode(kind=kind, load=code.load, why_not=why_not))
            continue
        _, amplification = worst_survivors(code)
        predicted = amplification * rounding
        row = ComparedCode(
            kind=kind,
            load=code.load,
            amplification=amplification,
            predicted_error=predicted,
            why_not="" if predicted <= allowed else f"more than {allowed:.0e}",
        )
        rows.append(row)
    # The binary code is always eligible: it supports any n and s, and amplifies no rounding error.
    best = min((row for row in rows if not row.why_not), key=lambda row: row.load)
    marked = tuple(replace(row, chosen=row is best) for row in rows)
    return CodeComparison(n=n, s=s, payload=payload, rows=marked, code=codes[best.kind])
