"""Lower bounds: on any scheme's normalized load (spec, 4; paper, Appendix F), and on run time."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from seqgc.errors import ParameterError
from seqgc.ports import FloatArray
from seqgc.stragglers._models import AnyOf, Arbitrary, Bursty, EveryGroup, PerRound, StragglerModel

__all__ = ["arbitrary_load_bound", "bursty_load_bound", "clairvoyant_bound", "load_lower_bound"]


class _Promising(Protocol):
    """What the bound asks of a scheme."""

    n: int

    @property
    def model(self) -> StragglerModel: ...


def bursty_load_bound(*, n: int, B: int, W: int, lam: int) -> float:
    """Least load that tolerates every (B, W, lam)-bursty pattern (paper, Theorem F.1).

    Examples
    --------
    >>> bursty_load_bound(n=4, B=1, W=2, lam=4)
    0.5
    """
    workable = n * (W - 1) + B * (n - lam)
    return (W - 1 + B) / workable if workable else math.inf


def arbitrary_load_bound(*, n: int, N: int, W: int, lam: int) -> float:
    """Least load that tolerates every (N, W, lam)-arbitrary pattern (paper, Theorem F.2).

    Examples
    --------
    >>> arbitrary_load_bound(n=4, N=1, W=2, lam=4)
    0.5
    """
    workable = n * (W - N) + N * (n - lam)
    return W / workable if workable else math.inf


def load_lower_bound(scheme: _Promising) -> float:
    """Least load of any scheme that keeps ``scheme``'s promise.

    A promise of s stragglers a round with delay 0 costs (s+1)/n (Tandon et al. 2017, Theorem 1).

    Examples
    --------
    >>> from seqgc.schemes import GC
    >>> load_lower_bound(GC(n=4, s=1))
    0.5
    """
    return _bound(scheme.model, scheme.n)


def clairvoyant_bound(
    zero_load_times: FloatArray, *, alpha: float, jobs_per_round: int = 1
) -> FloatArray:
    """Return the least seconds of each round of any scheme with delay 0 (spec, section 7).

    With full knowledge, perfect balance and no redundancy: the smallest R for which the workers
    can share out k jobs, ``sum_i max(0, (R - c_i) / alpha) >= k``. The m fastest workers alone
    would need ``(k alpha + c_1 + ... + c_m) / m``, and the best m attains R.

    Parameters
    ----------
    zero_load_times : (rounds, n) float
        Seconds ``c_i`` that an answer takes without any data points.
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
    if jobs_per_round < 1:
        raise ParameterError("jobs_per_round", "must be >= 1", jobs_per_round)
    fastest_first = np.sort(zero_load_times, axis=1)
    totals = np.cumsum(fastest_first, axis=1) + jobs_per_round * alpha
    bound: FloatArray = (totals / np.arange(1, totals.shape[1] + 1)).min(axis=1)
    return bound


def _bound(model: StragglerModel, n: int) -> float:
    match model:
        case PerRound(s=s):
            return (s + 1) / n
        case EveryGroup(size=size):
            return size / n
        case Bursty(B=B, W=W, lam=lam):
            return bursty_load_bound(n=n, B=B, W=W, lam=lam)
        case Arbitrary(N=N, W=W, lam=lam):
            return arbitrary_load_bound(n=n, N=N, W=W, lam=lam)
        case AnyOf(models=models):
            # The mixture's first model is the one that a delay pays for.
            return _bound(models[0], n)
        case _:
            return 1 / n
