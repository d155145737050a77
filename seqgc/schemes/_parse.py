"""Scheme specs: the command line's spelling of a scheme."""

from __future__ import annotations

import re
from collections.abc import Callable

from seqgc.errors import ParameterError, did_you_mean
from seqgc.schemes._base import Scheme
from seqgc.schemes.gc import GC, Uncoded
from seqgc.schemes.m_sgc import MSGC
from seqgc.schemes.sr_sgc import SRSGC

__all__ = ["SCHEMES", "parse_scheme"]

_BWL = ("B", "W", "lam")

# name -> (its parameters, how to build it from n and their values in that order)
SCHEMES: dict[str, tuple[tuple[str, ...], Callable[..., Scheme]]] = {
    "uncoded": ((), lambda n: Uncoded(n=n)),
    "gc": (("s",), lambda n, s: GC(n=n, s=s)),
    "gc-rep": (("s",), lambda n, s: GC(n=n, s=s, family="rep")),
    "gc-binary": (("s",), lambda n, s: GC(n=n, s=s, family="binary")),
    "sr-sgc": (_BWL, lambda n, b, w, lam: SRSGC(n=n, B=b, W=w, lam=lam)),
    "sr-sgc-rep": (_BWL, lambda n, b, w, lam: SRSGC(n=n, B=b, W=w, lam=lam, family="rep")),
    "m-sgc": (_BWL, lambda n, b, w, lam: MSGC(n=n, B=b, W=w, lam=lam)),
    "m-sgc-rep": (_BWL, lambda n, b, w, lam: MSGC(n=n, B=b, W=w, lam=lam, family="rep")),
}


def parse_scheme(spec: str, *, n: int) -> Scheme:
    """Read a scheme spec such as ``m-sgc:B=1,W=2,lam=27``; the inverse of ``Scheme.spec``.

    Raises
    ------
    ParameterError
        For an unknown scheme or parameter (with the nearest known name), a missing, repeated or
        non-integer one, and a value outside its range.

    Examples
    --------
    >>> parse_scheme("m-sgc:B=1,W=2,lam=27", n=256)
    MSGC(n=256, B=1, W=2, lam=27, family='cyclic')
    """
    name, _, rest = spec.strip().partition(":")
    if name not in SCHEMES:
        rule = f"must be one of {', '.join(SCHEMES)}"
        raise ParameterError("scheme", rule, name, did_you_mean(name, SCHEMES))
    names, build = SCHEMES[name]
    values: dict[str, int] = {}
    for pair in filter(None, rest.split(",")):
        key, value = _split(name, pair)
        if key not in names:
            takes = ", ".join(names) or "no parameters"
            hint = did_you_mean(key, names)
            raise ParameterError("scheme", f"{name} takes {takes}", pair, hint)
        if key in values:
            raise ParameterError("scheme", f"{name} takes each parameter once", pair)
        values[key] = value
    if missing := [key for key in names if key not in values]:
        example = f"{name}:" + ",".join(f"{key}=…" for key in names)
        raise ParameterError("scheme", f"needs {', '.join(missing)}, as in {example}", spec)
    return build(n, *(values[key] for key in names))


def _split(name: str, pair: str) -> tuple[str, int]:
    match = re.fullmatch(r"\s*(\w+)\s*=\s*(-?\d+)\s*", pair)
    if match is None:
        raise ParameterError("scheme", f"{name}: parameters are key=integer, comma-separated", pair)
    return match[1], int(match[2])
