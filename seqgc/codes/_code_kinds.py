"""The kinds of codes by name: a class registers itself, and nothing else lists it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from seqgc.codes._gradient_code import GradientCode
from seqgc.errors import ParameterError, did_you_mean

__all__ = ["code_class", "code_kinds", "forget_code", "register_code"]

_Code = TypeVar("_Code", bound=type[GradientCode])

_NAME = re.compile("[a-z][a-z0-9-]*")

_codes: dict[str, tuple[int, type[GradientCode]]] = {}  # preference and class, by kind


def register_code(kind: str, *, preference: int = 1000) -> Callable[[_Code], _Code]:
    """Make a class of codes known to `make_code`, and to every scheme that takes a kind of code.

    ``kind`` is its name: lower-case letters, digits and hyphens. Of codes of equal load,
    ``make_code("auto", ...)`` takes the one of least ``preference``: repetition has 1, cyclic 2,
    binary 3; where that is equal, the first registered.

    Raises
    ------
    ParameterError
        If the name is malformed or another class has it (a class defined again, as when a
        notebook's cell is run twice, takes its own place); or if it is no frozen dataclass that
        derives from `GradientCode` and says who holds what.

    Examples
    --------
    A layout is all that a class must say; `GradientCode` lists what else it may. Here ``s + 1``
    workers or more hold each chunk, and neighbours hold different ones:

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
    if not _NAME.fullmatch(kind) or kind == "auto":
        rule = "must be lower-case letters, digits and hyphens, begin with a letter, not be auto"
        raise ParameterError("kind", rule, kind)

    def register(cls: _Code) -> _Code:
        where = f"{cls.__module__}.{cls.__qualname__}"
        known = _codes[kind][1] if kind in _codes else cls
        if (holder := f"{known.__module__}.{known.__qualname__}") != where:
            raise ParameterError("kind", f"is taken by {holder}: choose another", kind)
        parameters = vars(cls).get("__dataclass_params__")
        if not issubclass(cls, GradientCode) or parameters is None or not parameters.frozen:
            rule = f"must be a frozen dataclass derived from GradientCode ({kind})"
            raise ParameterError("class", rule, where, "put @dataclass(frozen=True) below")
        if lacking := ", ".join(sorted(cls.__abstractmethods__)):
            raise ParameterError("class", f"must define {lacking} ({kind})", where)
        _codes[kind] = preference, cls
        return cls

    return register


def forget_code(kind: str) -> None:
    """Make a registered kind unknown again, as a test or a notebook may want to."""
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
    """Return the class registered as this kind; `ParameterError` if there is none."""
    if kind not in _codes:
        known = ("auto", *code_kinds())
        remedy = did_you_mean(str(kind), known)
        raise ParameterError("kind", f"must be one of {', '.join(known)}", kind, remedy)
    return _codes[kind][1]
