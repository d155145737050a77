"""Sums of vectors with weights, in float64 whatever the vectors' precision."""

from __future__ import annotations

import numpy as np

from seqgc._types import FloatArray

__all__ = ["combine"]

# Bytes of one float64 block: small enough for a second-level cache, large enough for BLAS.
_BLOCK_BYTES = 1 << 20


def combine(weights: FloatArray, vectors: FloatArray) -> FloatArray:
    """Return ``weights @ vectors``, reading only the rows whose weight is not zero.

    Parameters
    ----------
    weights : (m,) float64
    vectors : (m, p) floating
        Rows of weight 0 may hold anything, NaN included.

    Returns
    -------
    (p,) array of the vectors' dtype. Sums are taken in float64, block of columns by block, so that
    narrow vectors are neither summed in their own precision nor copied as a whole.

    Examples
    --------
    >>> combine(np.array([0.5, 0.0]), np.array([[2.0, 4.0], [np.nan, np.nan]]))
    array([1., 2.])
    """
    rows = np.flatnonzero(weights)
    used = weights[rows]
    total = np.empty(vectors.shape[1], dtype=vectors.dtype)
    width = max(1, _BLOCK_BYTES // (8 * max(1, rows.size)))
    for low in range(0, total.size, width):
        block = vectors[rows, low : low + width].astype(np.float64, copy=False)
        total[low : low + width] = used @ block
    return total
