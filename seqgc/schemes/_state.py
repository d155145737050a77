"""Conversion of a schedule's attributes to JSON data and back, for `Schedule.snapshot`."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Final

import numpy as np

__all__ = ["from_json", "to_json"]

_KINDS: Final = "biufc"  # kinds of NumPy types: masks and numbers


def to_json(value: object) -> object:
    """Convert a value to JSON data, from which `from_json` restores an equal value.

    The value is None, a boolean, a number, a text, an array of booleans or numbers, or a list,
    tuple, set or dict of such values. Raises `TypeError` for any other value.

    Examples
    --------
    >>> to_json({3: (1.5, None)})
    {'dict': [[3, {'tuple': [1.5, None]}]]}
    >>> from_json(to_json({3: np.array([True, False])}))
    {3: array([ True, False])}
    """
    match value:
        case None | bool() | int() | float() | str():
            return value
        case np.ndarray() if value.dtype.kind in _KINDS:
            data = base64.b64encode(zlib.compress(np.ascontiguousarray(value).tobytes()))
            return {
                "array": data.decode(),
                "dtype": value.dtype.str,
                "shape": list(value.shape),
            }
        case np.generic() if value.dtype.kind in _KINDS:
            return to_json(value.item())
        case list():
            return [to_json(each) for each in value]
        case tuple():
            return {"tuple": [to_json(each) for each in value]}
        case set() | frozenset():
            return {"set": [to_json(each) for each in sorted(value)]}
        case dict():
            return {"dict": [[to_json(key), to_json(each)] for key, each in value.items()]}
    raise TypeError(f"a checkpoint cannot hold an object of the type {type(value).__name__}")


def from_json(data: object) -> object:
    """Return the value that `to_json` has converted to this data.

    Raises `KeyError`, `TypeError` or `ValueError` if the data do not come from `to_json`.
    """
    if isinstance(data, list):
        return [from_json(each) for each in data]
    if not isinstance(data, Mapping):
        return data
    if "array" in data:
        try:
            array = zlib.decompress(base64.b64decode(data["array"], validate=True))
        except zlib.error as error:
            raise ValueError(f"an array is damaged: {error}") from error
        return np.frombuffer(array, dtype=data["dtype"]).reshape(data["shape"]).copy()
    if "tuple" in data:
        return tuple(from_json(each) for each in data["tuple"])
    if "set" in data:
        return {from_json(each) for each in data["set"]}
    return {from_json(key): from_json(each) for key, each in data["dict"]}
