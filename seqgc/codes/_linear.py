"""Sums of vectors with weights, at the speed of memory."""

from __future__ import annotations

import numpy as np

from seqgc.errors import ParameterError
from seqgc.ports import FloatArray

__all__ = ["combine"]


def combine(weights: FloatArray, vectors: FloatArray) -> FloatArray:
    """Return ``weights @ vectors``, reading only the rows whose weight is not zero, and those once.

    Parameters
    ----------
    weights : (m,) float64
    vectors : (m, p) floating
        Rows of weight 0 may hold anything, NaN included.

    Returns
    -------
    (p,) array of the vectors' dtype. Sums are taken in it, those of float16 in float32: BLAS reads
    rows that follow one another in one pass, without a copy.

    Raises
    ------
    ParameterError
        If finite vectors add up to more than their dtype holds.

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
        rule = f"must be such that their weighted sum is in the range of {vectors.dtype}"
        remedy = "scale them down or use a wider dtype"
        raise ParameterError("vectors", rule, f"sums up to {_peak(weights, vectors):.1e}", remedy)
    return result


def _runs(rows: np.ndarray[tuple[int], np.dtype[np.intp]]) -> list[slice]:
    """Return slices of consecutive numbers that make up ascending ``rows``."""
    if not rows.size:
        return []
    breaks = np.flatnonzero(np.diff(rows) > 1) + 1
    firsts, lasts = rows[np.r_[0, breaks]], rows[np.r_[breaks - 1, rows.size - 1]]
    return [slice(int(a), int(b) + 1) for a, b in zip(firsts, lasts, strict=True)]


def _peak(weights: FloatArray, vectors: FloatArray) -> float:
    used = np.flatnonzero(weights)
    peaks = np.abs(vectors[used].astype(np.longdouble)).max(axis=1)
    return float(np.abs(weights[used]) @ peaks)
