"""Who straggles in a profile, in bursts how long, within which models; the clairvoyant bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqgc.errors import require_int, require_number
from seqgc.ports import BoolArray, FloatArray, IntArray
from seqgc.profiles import DelayProfile
from seqgc.stragglers._straggler_models import Arbitrary, Bursty

__all__ = [
    "SmallestLam",
    "StragglerStats",
    "clairvoyant_bound",
    "count_bursts",
    "straggler_pattern",
    "straggler_stats",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallestLam:
    """The smallest λ with which a pattern conforms to each model at ``B`` and ``W``.

    ``bursty`` is that of the (B, W, λ)-bursty model, and ``arbitrary`` that of the (N=B, W, λ)-
    arbitrary model; None where no λ will do, because some worker straggles for too long.
    """

    B: int
    W: int
    bursty: int | None
    arbitrary: int | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StragglerStats:
    """What a profile's stragglers are like, at one tolerance.

    ``rate`` is P(S), the part of all (round, worker) pairs that straggles; the other two are
    P(S | S) and P(S | not S), of a worker's next round, None where there was no such round.
    ``bursts[k - 1]``, read-only, is how many bursts lasted ``k`` rounds: a worker's straggling
    rounds in succession, cut at the first and the last round. ``smallest_s`` is the smallest ``s``
    with which the pattern conforms to s-per-round; ``smallest_lam`` is for every ``1 <= B < W``,
    the windows in ascending order.
    """

    mu: float
    rate: float
    rate_after_straggling: float | None
    rate_after_answering: float | None
    bursts: IntArray
    smallest_s: int
    smallest_lam: tuple[SmallestLam, ...]


def straggler_pattern(profile: DelayProfile, *, mu: float) -> BoolArray:
    """Return who straggles, (rounds, n): who has not answered by ``(1 + mu) * kappa``.

    ``kappa`` is the time of the round's first answer (docs/mathematics.md, section 6); ``mu`` >= 0.

    Examples
    --------
    >>> profile = DelayProfile.from_times([[1.0, 2.5, 1.5], [3.0, 1.0, 2.0]])
    >>> straggler_pattern(profile, mu=1.0).tolist()
    [[False, True, False], [True, False, False]]
    """
    require_number("mu", mu, least=0)
    kappa_s = np.where(profile.answered, profile.times, np.inf).min(axis=1, keepdims=True)
    stragglers: BoolArray = ~profile.answered | (profile.times > (1 + mu) * kappa_s)
    return stragglers


def straggler_stats(profile: DelayProfile, *, mu: float, max_window: int = 5) -> StragglerStats:
    """Return the statistics of a profile's stragglers at tolerance ``mu``.

    ``max_window`` bounds the windows W of `StragglerStats.smallest_lam`.

    Raises
    ------
    ParameterError
        If ``mu`` is not a finite number >= 0, or ``max_window < 1``.

    Examples
    --------
    >>> profile = DelayProfile.from_times([[1.0, 5.0, 1.5], [1.0, 5.0, 2.0], [4.0, 1.0, 1.0]])
    >>> stats = straggler_stats(profile, mu=1.0, max_window=2)
    >>> round(stats.rate, 3), stats.rate_after_straggling, stats.bursts.tolist(), stats.smallest_s
    (0.333, 0.5, [1, 1], 1)
    >>> stats.smallest_lam
    (SmallestLam(B=1, W=2, bursty=None, arbitrary=None),)
    """
    max_window = require_int("max_window", max_window, least=1)
    pattern = straggler_pattern(profile, mu=mu)
    before, after = pattern[:-1], pattern[1:]
    return StragglerStats(
        mu=mu,
        rate=float(pattern.mean()),
        rate_after_straggling=_mean(after[before]),
        rate_after_answering=_mean(after[~before]),
        bursts=count_bursts(*np.nonzero(~pattern), shape=pattern.shape),
        smallest_s=int(pattern.sum(axis=1).max()),
        smallest_lam=tuple(
            _smallest_lam(pattern, B=B, W=W) for W in range(2, max_window + 1) for B in range(1, W)
        ),
    )


def _mean(values: BoolArray) -> float | None:
    return float(values.mean()) if values.size else None


def count_bursts(rounds: IntArray, workers: IntArray, *, shape: tuple[int, ...]) -> IntArray:
    """Return how many bursts lasted 1, 2, ... rounds, up to the longest; read-only.

    Given is who did *not* straggle: pairs of a round and a worker, each once, of ``shape``
    (rounds, n). A burst is what lies between two such rounds of a worker, or before its first or
    after its last.

    Examples
    --------
    >>> count_bursts(np.array([0, 3, 1]), np.array([0, 0, 1]), shape=(4, 2))
    array([1, 2])
    """
    num_rounds, n = shape
    everyone, ends = np.arange(n), np.full(n, num_rounds)
    worker = np.concatenate([everyone, workers, everyone])
    round = np.concatenate([np.full(n, -1), rounds, ends])
    order = np.lexsort((round, worker))
    lengths = np.diff(round[order]) - 1
    lengths = lengths[lengths > 0]  # the next worker begins at -1, below this one's end
    counts: IntArray = np.bincount(lengths, minlength=1)[1:].astype(np.intp)
    counts.flags.writeable = False
    return counts


def _smallest_lam(pattern: BoolArray, *, B: int, W: int) -> SmallestLam:
    """Return the smallest λ: the most stragglers in a window, unless one of them lasts too long."""
    n = pattern.shape[1]
    starts = range(max(1, len(pattern) - W + 1))
    most = max(int(pattern[t : t + W].any(axis=0).sum()) for t in starts)
    return SmallestLam(
        B=B,
        W=W,
        bursty=most if Bursty(B=B, W=W, lam=n).conforms(pattern) else None,
        arbitrary=most if Arbitrary(N=B, W=W, lam=n).conforms(pattern) else None,
    )


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
    jobs_per_round = require_int("jobs_per_round", jobs_per_round, least=1, most=10**9)
    fastest_first = np.sort(zero_load_times, axis=1)
    totals = np.cumsum(fastest_first, axis=1) + jobs_per_round * alpha
    bound: FloatArray = (totals / np.arange(1, totals.shape[1] + 1)).min(axis=1)
    return np.maximum(bound, 0.0)
