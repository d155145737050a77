"""Statistics of the stragglers in a recorded profile: rate, bursts, and straggler models."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from seqgc.errors import require_int, require_number
from seqgc.ports import BoolArray, IntArray
from seqgc.profiles import DelayProfile
from seqgc.stragglers._straggler_models import Arbitrary, Bursty


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallestLam:
    """The smallest λ for which a pattern conforms to each model with ``B`` and ``W``.

    ``bursty`` is for the (B, W, λ)-bursty model, ``arbitrary`` for the (N=B, W, λ)-arbitrary model.
    None means that the pattern conforms for no λ, because some worker straggles for too long.
    """

    B: int
    W: int
    bursty: int | None
    arbitrary: int | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StragglerStats:
    """Statistics of a profile's stragglers for one tolerance.

    ``rate`` is P(S), the fraction of all (round, worker) pairs that straggle.
    ``rate_after_straggling`` is P(S | S) and ``rate_after_answering`` is P(S | not S), conditional
    on the same worker's previous round; None if no round fulfils the condition. ``bursts[k - 1]``
    is the number of bursts of ``k`` rounds, read-only. A burst is a maximal sequence of consecutive
    rounds in which a worker straggles. ``smallest_s`` is the largest number of stragglers in a
    round, which is the smallest s that a code for every round needs. ``smallest_lam`` has an entry
    for every ``1 <= B < W``, with windows in ascending order.
    """

    mu: float
    rate: float
    rate_after_straggling: float | None
    rate_after_answering: float | None
    bursts: IntArray
    smallest_s: int
    smallest_lam: tuple[SmallestLam, ...]


def straggler_pattern(profile: DelayProfile, *, mu: float) -> BoolArray:
    """Return the stragglers (rounds, n): workers without an answer by ``(1 + mu) * kappa``.

    ``kappa`` is the time of the round's first answer (docs/mathematics.md, section 6); ``mu`` >= 0.
    The time of a cancelled task is estimated from longer answers (`DelayProfile.awaited`).

    Examples
    --------
    >>> profile = DelayProfile.from_times([[1.0, 2.5, 1.5], [3.0, 1.0, 2.0]])
    >>> straggler_pattern(profile, mu=1.0).tolist()
    [[False, True, False], [True, False, False]]
    """
    require_number("mu", mu, least=0)
    kappa_s = np.where(profile.answered, profile.times, np.inf).min(axis=1, keepdims=True)
    if profile.censored.any() and profile.answered.any(axis=1).all():
        profile = profile.awaited()
    failed = ~(profile.answered | profile.censored)
    stragglers: BoolArray = failed | (profile.times > (1 + mu) * kappa_s)
    return stragglers


def straggler_stats(profile: DelayProfile, *, mu: float, max_window: int = 5) -> StragglerStats:
    """Return the statistics of a profile's stragglers at tolerance ``mu``.

    ``max_window`` is the largest window W of `StragglerStats.smallest_lam`.

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
    current, following = pattern[:-1], pattern[1:]
    return StragglerStats(
        mu=mu,
        rate=float(pattern.mean()),
        rate_after_straggling=_mean(following[current]),
        rate_after_answering=_mean(following[~current]),
        bursts=count_bursts(*np.nonzero(~pattern), shape=pattern.shape),
        smallest_s=int(pattern.sum(axis=1).max()),
        smallest_lam=tuple(
            _smallest_lam(pattern, B=B, W=W) for W in range(2, max_window + 1) for B in range(1, W)
        ),
    )


def _mean(values: BoolArray) -> float | None:
    return float(values.mean()) if values.size else None


def count_bursts(rounds: IntArray, workers: IntArray, *, shape: tuple[int, ...]) -> IntArray:
    """Return the numbers of bursts of 1, 2, ... rounds, up to the longest burst; read-only.

    ``rounds`` and ``workers`` are the indices of all (round, worker) pairs that did *not* straggle,
    each pair once, in an array of ``shape`` (rounds, n). All rounds between two such rounds of a
    worker are a burst, and so are the rounds before its first and after its last such round.

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
    lengths = lengths[lengths > 0]  # negative between workers, since each begins at -1
    counts: IntArray = np.bincount(lengths, minlength=1)[1:].astype(np.intp)
    counts.flags.writeable = False
    return counts


def _smallest_lam(pattern: BoolArray, *, B: int, W: int) -> SmallestLam:
    """Return the smallest λ for both models.

    It is the largest number of distinct stragglers in a window, or None if some worker straggles
    for longer than ``B`` allows.
    """
    n = pattern.shape[1]
    starts = range(max(1, len(pattern) - W + 1))
    most = max(int(pattern[t : t + W].any(axis=0).sum()) for t in starts)
    return SmallestLam(
        B=B,
        W=W,
        bursty=most if Bursty(B=B, W=W, lam=n).conforms(pattern) else None,
        arbitrary=most if Arbitrary(N=B, W=W, lam=n).conforms(pattern) else None,
    )
