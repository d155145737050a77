"""Which data points a step uses."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from seqgc.errors import ParameterError
from seqgc.ports import IntArray

__all__ = ["batch_indices"]


def batch_indices(dataset_size: int, *, batch_size: int, seed: int, step: int) -> IntArray:
    """Return the data points of one training step, (batch_size,), read-only.

    The points are positions ``step * batch_size`` up to ``(step + 1) * batch_size`` of the endless
    concatenation of one permutation of the dataset per epoch, epoch ``e`` drawn by
    ``numpy.random.default_rng([seed, e])``: every point comes once an epoch, and a step can be
    computed without the steps before it.

    Raises
    ------
    ParameterError
        If a size is below 1, or ``seed`` or ``step`` below 0.

    Examples
    --------
    >>> from seqgc.training import batch_indices
    >>> steps = [batch_indices(5, batch_size=2, seed=0, step=step) for step in range(5)]
    >>> sorted(int(point) for batch in steps for point in batch)
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    """
    for name, value, least in (
        ("dataset_size", dataset_size, 1),
        ("batch_size", batch_size, 1),
        ("seed", seed, 0),
        ("step", step, 0),
    ):
        if value < least:
            raise ParameterError(name, f"must be >= {least}", value)
    start, stop = step * batch_size, (step + 1) * batch_size
    pieces = [
        _permutation(dataset_size, seed, epoch)[
            max(start - epoch * dataset_size, 0) : stop - epoch * dataset_size
        ]
        for epoch in range(start // dataset_size, (stop - 1) // dataset_size + 1)
    ]
    indices = np.concatenate(pieces)
    indices.setflags(write=False)
    return indices


@lru_cache(maxsize=16)
def _permutation(dataset_size: int, seed: int, epoch: int) -> IntArray:
    permutation = np.random.default_rng([seed, epoch]).permutation(dataset_size).astype(np.intp)
    permutation.setflags(write=False)
    return permutation
