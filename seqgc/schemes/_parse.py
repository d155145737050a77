"""Scheme specs: the command line's spelling of a scheme."""

from __future__ import annotations

import re

from seqgc.errors import ParameterError, did_you_mean
from seqgc.schemes._contract import Scheme
from seqgc.schemes._scheme_names import Entry, registered

__all__ = ["parse_scheme"]


def parse_scheme(spec: str, *, n: int) -> Scheme:
    """Read a scheme spec such as ``m-sgc:B=1,W=2,lam=27``; the inverse of ``Scheme.spec``.

    Raises
    ------
    ParameterError
        For an unknown scheme or parameter (with the nearest known name), a missing, repeated or
        ill-typed one, and a value outside its range.

    Examples
    --------
    >>> parse_scheme("m-sgc:B=1,W=2,lam=27", n=256)
    MSGC(n=256, B=1, W=2, lam=27, family='cyclic')
    >>> parse_scheme("gc-rep:s=3,allow_error=0.25", n=16)
    GC(n=16, s=3, family='rep', allow_error=0.25)
    """
    name, _, rest = spec.strip().partition(":")
    entries = registered(name)
    if name not in entries:
        rule = f"must be one of {', '.join(entries)}"
        remedy = did_you_mean(name, entries) or "a scheme of your own is named with --plugin"
        raise ParameterError("scheme", rule, name, remedy)
    entry = entries[name]
    values: dict[str, int | float | str] = {}
    for pair in filter(None, rest.split(",")):
        key, word = _split(entry, pair)
        if key in values:
            raise ParameterError("scheme", f"{name} takes each parameter once", pair)
        values[key] = _value(entry, key, word, pair)
    if missing := [key for key in entry.required if key not in values]:
        example = f"{name}:" + ",".join(f"{key}=…" for key in entry.required)
        raise ParameterError("scheme", f"needs {', '.join(missing)}, as in {example}", spec)
    return entry.build(n, values)


def _split(entry: Entry, pair: str) -> tuple[str, str]:
    match = re.fullmatch(r"\s*(\w+)\s*=\s*(\S+)\s*", pair)
    if match is None:
        rule = f"{entry.name}: parameters are key=value, comma-separated"
        raise ParameterError("scheme", rule, pair)
    key, word = match.groups()
    if key not in entry.parameters:
        takes = ", ".join(entry.parameters) or "no parameters"
        hint = did_you_mean(key, entry.parameters)
        raise ParameterError("scheme", f"{entry.name} takes {takes}", pair, hint)
    return key, word


def _value(entry: Entry, key: str, word: str, pair: str) -> int | float | str:
    kind = entry.parameters[key]
    if kind is int and not re.fullmatch(r"-?\d{1,18}", word, re.ASCII):
        raise ParameterError("scheme", f"{entry.name}: {key} is an integer", pair)
    try:
        return word if kind is str else kind(word)
    except ValueError:
        raise ParameterError("scheme", f"{entry.name}: {key} is a number", pair) from None
