"""Lower bounds on the normalized load of any scheme (spec, section 4; paper, Appendix F)."""

from __future__ import annotations

import math

from seqgc.schemes import Scheme
from seqgc.stragglers import AnyOf, Arbitrary, Bursty, EveryGroup, PerRound, StragglerModel

__all__ = ["arbitrary_load_bound", "bursty_load_bound", "load_lower_bound"]


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


def load_lower_bound(scheme: Scheme) -> float:
    """Least load of any scheme that keeps ``scheme``'s promise.

    A promise of s stragglers a round with delay 0 costs (s+1)/n (Tandon et al. 2017, Theorem 1).

    Examples
    --------
    >>> from seqgc.schemes import GC
    >>> load_lower_bound(GC(n=4, s=1))
    0.5
    """
    return _bound(scheme.model, scheme.n)


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
