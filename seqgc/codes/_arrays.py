"""Helpers for arrays: checks of arguments, fast weighted sums, and the distance from a span.

The checks raise `ParameterError`.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from seqgc.errors import ParameterError, require_int
from seqgc.ports import BoolArray, FloatArray

_Array = TypeVar("_Array", bound=np.ndarray)

# If a projected row is shorter than this fraction of the row, it adds no direction.
_NEGLIGIBLE = 1e-9

_BLOCK = 1 << 22  # numbers in one batch of matrices


def check_tolerance(n: int, s: int) -> tuple[int, int]:
    """Check that ``0 <= s < n``; return ``n`` workers and ``s`` stragglers as ints."""
    n, s = require_int("n", n, least=1), require_int("s", s)
    if not 0 <= s < n:
        raise ParameterError("s", f"must satisfy 0 <= s < n, n={n}", s)
    return n, s


def check_mask(responded: BoolArray, n: int) -> BoolArray:
    """Check that the mask is a bool array (n,), and return it."""
    if not isinstance(responded, np.ndarray) or responded.dtype != np.bool_:
        dtype = getattr(responded, "dtype", type(responded).__name__)
        raise ParameterError("responded", "must be a numpy array of bool", str(dtype))
    if responded.shape != (n,):
        raise ParameterError("responded", f"must have shape ({n},)", responded.shape)
    return responded


def check_rows(argument: str, array: FloatArray, rows: int, shape: str) -> None:
    """Raise `ParameterError` unless the array is a float matrix with ``rows`` rows.

    The message names the ``argument`` and its expected ``shape``.
    """
    if not isinstance(array, np.ndarray) or not np.issubdtype(array.dtype, np.floating):
        dtype = getattr(array, "dtype", type(array).__name__)
        raise ParameterError(argument, "must be a numpy array of floats", str(dtype))
    if array.ndim != 2 or len(array) != rows:
        raise ParameterError(argument, f"must have shape {shape} with {rows} rows", array.shape)


def read_only(array: _Array) -> _Array:
    """Make the array read-only, and return it."""
    array.setflags(write=False)
    return array


def batches(count: int, numbers: int) -> list[slice]:
    """Split ``count`` matrices into batches that fit into memory; return a slice for each batch.

    Each matrix contains ``numbers`` numbers.
    """
    step = max(1, _BLOCK // max(1, numbers))
    return [slice(low, low + step) for low in range(0, count, step)]


def combine(weights: FloatArray, vectors: FloatArray) -> FloatArray:
    """Return the weighted sum ``weights @ vectors``, for ``weights`` (m,) and ``vectors`` (m, p).

    Vectors of weight 0 are not read; they may contain NaN. The result has the dtype of the
    vectors; float16 is summed in float32. Consecutive rows are read in one pass, without a copy.
    Raises `ParameterError` if the sum of finite vectors overflows.
    """
    dtype = np.promote_types(vectors.dtype, np.float32)
    total = np.zeros(vectors.shape[1], dtype=dtype)
    with np.errstate(over="ignore", invalid="ignore"):  # checked below
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
    """The distance of the vector ``target`` (k,) from the span of some of the ``rows`` (n, k).

    The object stores an orthonormal basis of the most recent span (Gram-Schmidt, applied twice).
    To add a row to the span costs ``O(k n)``. If a row is removed, the basis is computed again.
    """

    def __init__(self, rows: FloatArray, target: FloatArray) -> None:
        self._rows, self._target = rows, target
        self._clear()

    def _clear(self) -> None:
        self._basis = np.zeros((0, self._target.size))
        self._remainder = self._target
        self._included = np.zeros(len(self._rows), dtype=np.bool_)

    def distance(self, included: BoolArray) -> float:
        """Return the distance from the span of the rows in the mask ``included`` (n,)."""
        if (self._included & ~included).any():
            self._clear()
        for row in self._rows[included & ~self._included]:
            self._add(row)
        self._included = included.copy()
        return float(np.linalg.norm(self._remainder))

    def _add(self, row: FloatArray) -> None:
        length = np.linalg.norm(row)
        for _ in range(2):
            row = row - (self._basis @ row) @ self._basis
        remaining = np.linalg.norm(row)
        if remaining > _NEGLIGIBLE * length:
            direction = row / remaining
            self._basis = np.vstack([self._basis, direction])
            self._remainder = self._remainder - (self._remainder @ direction) * direction
