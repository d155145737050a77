"""What the codes ask of their arguments; each check raises `ParameterError`."""

from __future__ import annotations

import operator

import numpy as np
import numpy.typing as npt

from seqgc.errors import ParameterError
from seqgc.ports import BoolArray, FloatArray, Payload

__all__ = ["check_mask", "check_rows", "check_worker", "integer", "payload_of"]


def integer(argument: str, value: object) -> int:
    """Return the value as an int, from any type of integer but bool."""
    if isinstance(value, bool | np.bool_):
        raise ParameterError(argument, "must be an integer", value)
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ParameterError(argument, "must be an integer", value) from None


def check_worker(worker: int, n: int) -> int:
    """Return the worker as an int; it must be one of ``n``."""
    index = integer("worker", worker)
    if not 0 <= index < n:
        raise ParameterError("worker", f"must satisfy 0 <= worker < n, n={n}", index)
    return index


def check_mask(responded: BoolArray, n: int) -> BoolArray:
    """Return the mask; it must be an array (n,) of bool."""
    if not isinstance(responded, np.ndarray) or responded.dtype != np.bool_:
        found = getattr(responded, "dtype", type(responded).__name__)
        raise ParameterError("responded", "must be a numpy array of bool", str(found))
    if responded.shape != (n,):
        raise ParameterError("responded", f"must have shape ({n},)", responded.shape)
    return responded


def check_rows(argument: str, array: FloatArray, rows: int, shape: str) -> None:
    """Ask for a matrix of floats with so many rows; ``shape`` is its name in the message."""
    if not isinstance(array, np.ndarray) or not np.issubdtype(array.dtype, np.floating):
        found = getattr(array, "dtype", type(array).__name__)
        raise ParameterError(argument, "must be a numpy array of floats", str(found))
    if array.ndim != 2 or len(array) != rows:
        raise ParameterError(argument, f"must have shape {shape} with {rows} rows", array.shape)


def payload_of(dtype: npt.DTypeLike) -> Payload:
    """Return the payload format whose precision an array's floats have."""
    narrow: dict[int, Payload] = {2: "float16", 4: "float32"}
    return narrow.get(np.dtype(dtype).itemsize, "float64")
