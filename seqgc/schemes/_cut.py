"""How a batch is cut into chunks: whole data points, as evenly over the workers as can be."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from seqgc.errors import ParameterError
from seqgc.ports import FloatArray, IntArray

# Quotas this close to an integer are that integer: they were computed as batch * (a / b).
_QUOTA_DECIMALS = 9


def chunk_sizes(batch_size: int, fractions: FloatArray) -> IntArray:
    """Return how many of ``batch_size`` data points each chunk takes, (num_chunks,), read-only.

    Largest remainder: each chunk gets the integer part of its quota ``batch_size * fraction``, and
    the points left over go, one each, to the largest remainders, the lowest index first among
    equals. Chunks may be empty. `ParameterError`: ``batch_size < 1``, or ``fractions`` that are not
    non-negative numbers that sum to 1.

    Examples
    --------
    >>> import numpy as np
    >>> chunk_sizes(7, np.array([0.25, 0.25, 0.5])).tolist()
    [2, 2, 3]
    """
    sizes = _by_remainder(_quotas(batch_size, fractions))
    sizes.setflags(write=False)
    return sizes


def even_cut(
    batch_size: int,
    fractions: FloatArray,
    *,
    touched: Callable[[IntArray], IntArray | None],
    least: float,
) -> IntArray:
    """Return chunk sizes (num_chunks,), read-only, that make the busiest worker touch few points.

    No one way to round is best for that. Largest remainder spoils M-SGC where the chunks of D2 are
    smaller than a point: their equal remainders are larger than those of D1, so that each of them
    becomes a whole point, and a coded result touches ``lam + 1``. Rounding the cuts themselves
    spoils it where D1 and D2 share the points unluckily. Of several ways the best is taken, of
    equally good ones the first.

    ``touched`` says of chunk sizes how many points each worker touches in a round at most, (n,);
    where it does not know, they are `chunk_sizes`. No busiest worker can get below ``least``
    points, what all have on average: a way that comes as close as whole points can is taken at
    once.
    """
    quotas = _quotas(batch_size, fractions)
    best, most = np.zeros(0, dtype=np.intp), math.inf
    for way in (_by_class, _by_cuts, _by_remainder):
        sizes = way(quotas)
        points = touched(sizes)
        if points is None:
            return chunk_sizes(batch_size, fractions)
        if points.max() < most:
            best, most = sizes, int(points.max())
        if most <= math.ceil(round(least, _QUOTA_DECIMALS)):
            break
    best.setflags(write=False)
    return best


def _quotas(batch_size: int, fractions: FloatArray) -> FloatArray:
    """Return how many points each chunk should have."""
    if batch_size < 1:
        raise ParameterError("batch_size", "must be >= 1", batch_size)
    shares = np.asarray(fractions, dtype=np.float64)
    if shares.ndim != 1 or not np.all(shares >= 0) or not abs(shares.sum() - 1) <= 1e-9:
        raise ParameterError("fractions", "must be non-negative and sum to 1", fractions)
    quotas: FloatArray = np.round(batch_size * shares, _QUOTA_DECIMALS)
    return quotas


def _by_remainder(quotas: FloatArray) -> IntArray:
    """Round to the whole sum of the quotas by largest remainder."""
    quotas = np.round(quotas, _QUOTA_DECIMALS)
    sizes = np.floor(quotas).astype(np.intp)
    remainders = np.round(quotas - sizes, _QUOTA_DECIMALS)
    by_remainder = np.argsort(-remainders, kind="stable")
    sizes[by_remainder[: round(quotas.sum()) - int(sizes.sum())]] += 1
    return sizes


def _by_cuts(quotas: FloatArray) -> IntArray:
    """Round the cuts between chunks, so that neighbouring chunks have about what they should."""
    ends = np.round(np.cumsum(quotas), _QUOTA_DECIMALS)
    return np.diff(np.round(ends), prepend=0.0).astype(np.intp)


def _by_class(quotas: FloatArray) -> IntArray:
    """Round what all chunks of one size have together, and spread it evenly over them."""
    _, kind = np.unique(quotas, return_inverse=True)
    sizes = np.zeros(len(quotas), dtype=np.intp)
    together = np.bincount(kind, weights=quotas).astype(np.float64)
    for each, total in enumerate(_by_remainder(together)):
        count = np.count_nonzero(kind == each)
        sizes[kind == each] = np.diff(np.arange(count + 1) * total // count)
    return sizes
