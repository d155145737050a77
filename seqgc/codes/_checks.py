"""What codes ask of their arguments (each check raises `ParameterError`), and read-only arrays."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from seqgc.errors import ParameterError, require_int
from seqgc.ports import BoolArray, FloatArray, Payload

__all__ = ["check_mask", "check_rows", "check_tolerance", "payload_as_exact_as", "read_only"]

_Array = TypeVar("_Array", bound=np.ndarray)


def check_tolerance(n: int, s: int) -> tuple[int, int]:
    """Return workers and the stragglers that they tolerate as ints; ``0 <= s < n``."""
    n, s = require_int("n", n, least=1), require_int("s", s)
    if not 0 <= s < n:
        raise ParameterError("s", f"must satisfy 0 <= s < n, n={n}", s)
    return n, s


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


def payload_as_exact_as(dtype: npt.DTypeLike) -> Payload:
    """Return the payload format whose precision an array's floats have."""
    narrow: dict[int, Payload] = {2: "float16", 4: "float32"}
    return narrow.get(np.dtype(dtype).itemsize, "float64")


def read_only(array: _Array) -> _Array:
    """Return the array itself; from now on nobody writes to it."""
    array.setflags(write=False)
    return array
