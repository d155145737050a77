"""The clairvoyant bound: what perfect knowledge would make of a round's start-up times."""

from __future__ import annotations

import math

import numpy as np

from seqgc.errors import ParameterError, require_int
from seqgc.ports import FloatArray

__all__ = ["clairvoyant_bound"]


def clairvoyant_bound(
    zero_load_times: FloatArray, *, alpha: float, jobs_per_round: int = 1
) -> FloatArray:
    """Return a lower bound on the seconds of each round, for every scheme with delay 0.

    With full knowledge, perfect balance and no redundancy: the smallest R for which the workers
    can share out k jobs, ``sum_i max(0, (R - c_i) / alpha) >= k``. The m fastest workers alone
    would need ``(k alpha + c_1 + ... + c_m) / m``, and the best m attains R.

    Parameters
    ----------
    zero_load_times : (rounds, n) float
        Seconds ``c_i`` that an answer takes without any data points; some may be below 0, where a
        line through mean times says so.
    alpha : float
        Seconds per unit of normalized load, >= 0.
    jobs_per_round : int
        k, >= 1.

    Returns
    -------
    (rounds,) float64, seconds

    Examples
    --------
    >>> clairvoyant_bound(np.array([[1.0, 2.0, 9.0]]), alpha=3.0)
    array([3.])
    """
    if not 0 <= alpha < math.inf:
        raise ParameterError("alpha", "must be a finite number >= 0", alpha)
    jobs_per_round = require_int("jobs_per_round", jobs_per_round, least=1)
    fastest_first = np.sort(zero_load_times, axis=1)
    totals = np.cumsum(fastest_first, axis=1) + jobs_per_round * alpha
    bound: FloatArray = (totals / np.arange(1, totals.shape[1] + 1)).min(axis=1)
    return np.maximum(bound, 0.0)
