"""The clairvoyant bound: what perfect knowledge would make of a round's start-up times."""

from __future__ import annotations

import numpy as np

from seqgc.errors import require_int, require_number
from seqgc.ports import FloatArray

__all__ = ["clairvoyant_bound"]


def clairvoyant_bound(
    zero_load_times: FloatArray, *, alpha: float, jobs_per_round: int = 1
) -> FloatArray:
    """Return a lower bound on the seconds of each round (rounds,), for every scheme with delay 0.

    With full knowledge, perfect balance and no redundancy: the smallest R for which the workers can
    share out k = ``jobs_per_round`` jobs, ``sum_i max(0, (R - c_i) / alpha) >= k``. The m fastest
    workers alone would need ``(k alpha + c_1 + ... + c_m) / m``, and the best m attains R.
    ``zero_load_times`` (rounds, n) are the seconds ``c_i`` that an answer takes without any data
    points; some may be below 0, where a line through mean times says so.

    Raises
    ------
    ParameterError
        If ``alpha``, seconds per unit of normalized load, is below 0, or there is no job.

    Examples
    --------
    >>> clairvoyant_bound(np.array([[1.0, 2.0, 9.0]]), alpha=3.0)
    array([3.])
    """
    require_number("alpha", alpha, least=0)
    jobs_per_round = require_int("jobs_per_round", jobs_per_round, least=1)
    fastest_first = np.sort(zero_load_times, axis=1)
    totals = np.cumsum(fastest_first, axis=1) + jobs_per_round * alpha
    bound: FloatArray = (totals / np.arange(1, totals.shape[1] + 1)).min(axis=1)
    return np.maximum(bound, 0.0)
