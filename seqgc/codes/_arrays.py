"""Arrays: what codes ask of them, sums with weights at the speed of memory, distance from a span.

Each check raises `ParameterError`.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from seqgc.errors import ParameterError, require_int
from seqgc.ports import BoolArray, FloatArray

_Array = TypeVar("_Array", bound=np.ndarray)

# What is left of a row of length 1 or so after projection, below which it adds no direction.
_NEGLIGIBLE = 1e-9

_BLOCK = 1 << 22  # numbers in one batch of matrices


def check_tolerance(n: int, s: int) -> tuple[int, int]:
    """Return workers and the stragglers that they tolerate as ints; ``0 <= s < n``."""
    n, s = require_int("n", n, least=1), require_int("s", s)
    if not 0 <= s < n:
        raise ParameterError("s", f"must satisfy 0 <= s < n, n={n}", s)
    return n, s


def check_mask(responded: BoolArray, n: int) -> BoolArray:
    """Return the mask; it must be an array (n,) of bool."""
    if not isinstance(responded, np.ndarray) or responded.dtype != np.bool_:
        dtype = getattr(responded, "dtype", type(responded).__name__)
        raise ParameterError("responded", "must be a numpy array of bool", str(dtype))
    if responded.shape != (n,):
        raise ParameterError("responded", f"must have shape ({n},)", responded.shape)
    return responded


def check_rows(argument: str, array: FloatArray, rows: int, shape: str) -> None:
    """Ask for a matrix of floats with so many rows; ``shape`` is its name in the message."""
    if not isinstance(array, np.ndarray) or not np.issubdtype(array.dtype, np.floating):
        dtype = getattr(array, "dtype", type(array).__name__)
        raise ParameterError(argument, "must be a numpy array of floats", str(dtype))
    if array.ndim != 2 or len(array) != rows:
        raise ParameterError(argument, f"must have shape {shape} with {rows} rows", array.shape)


def read_only(array: _Array) -> _Array:
    """Return the array itself; from now on nobody writes to it."""
    array.setflags(write=False)
    return array


def batches(count: int, numbers: int) -> list[slice]:
    """Return slices of ``count`` matrices of so many numbers each; a slice fits into memory."""
    step = max(1, _BLOCK // max(1, numbers))
    return [slice(low, low + step) for low in range(0, count, step)]


def combine(weights: FloatArray, vectors: FloatArray) -> FloatArray:
    """Return ``weights`` (m,) ``@ vectors`` (m, p); rows of weight 0 may hold anything, NaN too.

    In the vectors' dtype, sums of float16 in float32; rows that follow one another are read in one
    pass, without a copy. `ParameterError`: finite vectors add up to more than their dtype holds.
    """
    dtype = np.promote_types(vectors.dtype, np.float32)
    total = np.zeros(vectors.shape[1], dtype=dtype)
    with np.errstate(over="ignore", invalid="ignore"):  # refused below
        used = np.flatnonzero(weights)
        for rows in np.split(used, np.flatnonzero(np.diff(used) > 1) + 1) if used.size else ():
            run = slice(rows[0], rows[-1] + 1)
            total += weights[run].astype(dtype) @ vectors[run].astype(dtype, copy=False)
        result: FloatArray = total.astype(vectors.dtype, copy=False)
    if not np.isfinite(result).all() and np.isfinite(vectors[weights != 0]).all():
        largest = float(np.abs(vectors[weights != 0]).max())
        rule = f"must have a weighted sum in the range of {vectors.dtype}"
        remedy = "scale them down or use a wider dtype"
        raise ParameterError("vectors", rule, f"coordinates up to {largest:.1e}", remedy)
    return result


class Span:
    """The distance of ``target`` (k,) from the span of some of the ``rows`` (n, k).

    Keeps an orthonormal basis of the latest set's span (Gram-Schmidt, twice), so that a row more
    costs ``O(k n)``; a set that lacks one of them starts again.
    """

    def __init__(self, rows: FloatArray, target: FloatArray) -> None:
        self._rows, self._target = rows, target
        self._clear()

    def _clear(self) -> None:
        self._basis = np.zeros((0, self._target.size))
        self._left = self._target
        self._included = np.zeros(len(self._rows), dtype=np.bool_)

    def distance(self, included: BoolArray) -> float:
        """Return the distance from the span of the ``included`` (n,) rows."""
        if (self._included & ~included).any():
            self._clear()
        for row in self._rows[included & ~self._included]:
            self._add(row)
        self._included = included.copy()
        return float(np.linalg.norm(self._left))

    def _add(self, row: FloatArray) -> None:
        length = np.linalg.norm(row)
        for _ in range(2):
            row = row - (self._basis @ row) @ self._basis
        remaining = np.linalg.norm(row)
        if remaining > _NEGLIGIBLE * length:
            direction = row / remaining
            self._basis = np.vstack([self._basis, direction])
            self._left = self._left - (self._left @ direction) * direction
