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
_GC = ("s", "allow_error")
_OPTIONAL = {
    "allow_error": 0.0
}  # parameters that may be left out; the only ones to be real numbers

# name -> (its parameters, how to build it from n and their values in that order)
SCHEMES: dict[str, tuple[tuple[str, ...], Callable[..., Scheme]]] = {
    "uncoded": ((), lambda n: Uncoded(n=n)),
    "gc": (_GC, lambda n, s, e: GC(n=n, s=s, allow_error=e)),
    "gc-rep": (_GC, lambda n, s, e: GC(n=n, s=s, family="rep", allow_error=e)),
    "gc-binary": (_GC, lambda n, s, e: GC(n=n, s=s, family="binary", allow_error=e)),
    "sr-sgc": (_BWL, lambda n, b, w, lam: SRSGC(n=n, B=b, W=w, lam=lam)),
    "sr-sgc-rep": (_BWL, lambda n, b, w, lam: SRSGC(n=n, B=b, W=w, lam=lam, family="rep")),
    "m-sgc": (_BWL, lambda n, b, w, lam: MSGC(n=n, B=b, W=w, lam=lam)),
    "m-sgc-rep": (_BWL, lambda n, b, w, lam: MSGC(n=n, B=b, W=w, lam=lam, family="rep")),
    "m-sgc-binary": (_BWL, lambda n, b, w, lam: MSGC(n=n, B=b, W=w, lam=lam, family="binary")),
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
    >>> parse_scheme("gc-rep:s=3,allow_error=0.25", n=16)
    GC(n=16, s=3, family='rep', allow_error=0.25)
    """
    name, _, rest = spec.strip().partition(":")
    if name not in SCHEMES:
        rule = f"must be one of {', '.join(SCHEMES)}"
        raise ParameterError("scheme", rule, name, did_you_mean(name, SCHEMES))
    names, build = SCHEMES[name]
    values: dict[str, int | float] = {}
    for pair in filter(None, rest.split(",")):
        key, value = _split(name, pair)
        if key not in names:
            takes = ", ".join(names) or "no parameters"
            hint = did_you_mean(key, names)
            raise ParameterError("scheme", f"{name} takes {takes}", pair, hint)
        if key in values:
            raise ParameterError("scheme", f"{name} takes each parameter once", pair)
        values[key] = value
    required = [key for key in names if key not in _OPTIONAL]
    if missing := [key for key in required if key not in values]:
        example = f"{name}:" + ",".join(f"{key}=…" for key in required)
        raise ParameterError("scheme", f"needs {', '.join(missing)}, as in {example}", spec)
    return build(n, *(values.get(key, _OPTIONAL.get(key)) for key in names))


def _split(name: str, pair: str) -> tuple[str, int | float]:
    match = re.fullmatch(r"\s*(\w+)\s*=\s*(\S+)\s*", pair)
    if match is not None and match[1] in _OPTIONAL:
        try:
            return match[1], float(match[2])
        except ValueError:
            raise ParameterError("scheme", f"{name}: {match[1]} is a number", pair) from None
    if match is None or not re.fullmatch(r"-?\d+", match[2], re.ASCII):
        raise ParameterError("scheme", f"{name}: parameters are key=integer, comma-separated", pair)
    return match[1], int(match[2])
