"""Sums of vectors with weights, at the speed of memory; and how far from their span a vector is."""

from __future__ import annotations

import numpy as np

from seqgc.errors import ParameterError
from seqgc.ports import BoolArray, FloatArray

__all__ = ["Span", "combine"]

# What is left of a row of length 1 or so after projection, below which it adds no direction.
_NEGLIGIBLE = 1e-9


def combine(weights: FloatArray, vectors: FloatArray) -> FloatArray:
    """Return ``weights`` (m,) ``@ vectors`` (m, p); rows of weight 0 may hold anything, NaN too.

    In the vectors' dtype, sums of float16 in float32; rows that follow one another are read in one
    pass, without a copy. `ParameterError`: finite vectors add up to more than their dtype holds.

    Examples
    --------
    >>> combine(np.array([0.5, 0.0]), np.array([[2.0, 4.0], [np.nan, np.nan]]))
    array([1., 2.])
    """
    dtype = np.promote_types(vectors.dtype, np.float32)
    total = np.zeros(vectors.shape[1], dtype=dtype)
    with np.errstate(over="ignore", invalid="ignore"):  # refused below
        for rows in _runs(np.flatnonzero(weights)):
            total += weights[rows].astype(dtype) @ vectors[rows].astype(dtype, copy=False)
        result: FloatArray = total.astype(vectors.dtype, copy=False)
    if not np.isfinite(result).all() and np.isfinite(vectors[weights != 0]).all():
        largest = float(np.abs(vectors[weights != 0]).max())
        rule = f"must have a weighted sum in the range of {vectors.dtype}"
        remedy = "scale them down or use a wider dtype"
        raise ParameterError("vectors", rule, f"coordinates up to {largest:.1e}", remedy)
    return result


def _runs(rows: np.ndarray[tuple[int], np.dtype[np.intp]]) -> list[slice]:
    """Return slices of consecutive numbers that make up ascending ``rows``."""
    if not rows.size:
        return []
    breaks = np.flatnonzero(np.diff(rows) > 1) + 1
    firsts, lasts = rows[np.r_[0, breaks]], rows[np.r_[breaks - 1, rows.size - 1]]
    return [slice(int(a), int(b) + 1) for a, b in zip(firsts, lasts, strict=True)]


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
