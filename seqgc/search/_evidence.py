"""Is the winner's lead real? A hold-out of rounds, and a bootstrap over rounds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from seqgc.errors import ParameterError
from seqgc.ports import FloatArray
from seqgc.profiles import DelayProfile

__all__ = ["bootstrap_total", "hold_out"]


def hold_out(
    profile: DelayProfile, *, fraction: float, seed: int | None = None
) -> tuple[DelayProfile, DelayProfile]:
    """Cut a profile's rounds into those to choose by and those to judge by.

    Held out are consecutive rounds, because bursts last: the profile's last ones, or with a seed
    a block at a place drawn with it.

    Parameters
    ----------
    fraction : float
        Held-out share of the rounds, 0 < fraction < 1; each part gets one round at least.

    Raises
    ------
    ParameterError
        If the fraction is out of range, or there is but one round.

    Examples
    --------
    >>> profile = DelayProfile.from_times([[1.0], [2.0], [3.0], [4.0]])
    >>> chosen, held_out = hold_out(profile, fraction=0.5)
    >>> chosen.times.ravel(), held_out.times.ravel()
    (array([1., 2.]), array([3., 4.]))
    """
    if not 0 < fraction < 1:
        raise ParameterError("holdout", "must satisfy 0 < holdout < 1 (share of rounds)", fraction)
    rounds = profile.num_rounds
    if rounds < 2:
        raise ParameterError("holdout", "needs a profile of two rounds or more", fraction)
    size = min(rounds - 1, max(1, round(fraction * rounds)))
    start = rounds - size
    if seed is not None:
        start = int(np.random.default_rng(seed).integers(rounds - size + 1))
    held = np.isin(np.arange(rounds), np.arange(start, start + size))
    kept, out = (
        replace(profile, times=profile.times[rows], status=profile.status[rows])
        for rows in (~held, held)
    )
    return kept, out


def bootstrap_total(
    differences: FloatArray, *, seed: int, confidence: float = 0.95, resamples: int = 2000
) -> tuple[float, float]:
    """Return an interval for the sum of a series whose neighbours depend on each other.

    Moving-block bootstrap (Künsch 1989): blocks of ``ceil(m^(1/3))`` consecutive values, drawn with
    replacement until there are m; percentiles of the sums.

    Parameters
    ----------
    differences : (m,) float
    seed : int
    confidence : float
        0 < confidence < 1.
    resamples : int

    Examples
    --------
    >>> bootstrap_total(np.array([1.0, 1.0, 1.0]), seed=0)
    (3.0, 3.0)
    """
    m = len(differences)
    block = math.ceil(m ** (1 / 3))
    rng = np.random.default_rng(seed)
    starts = rng.integers(m - block + 1, size=(resamples, math.ceil(m / block)))
    rows = (starts[:, :, None] + np.arange(block)).reshape(resamples, -1)[:, :m]
    totals = differences[rows].sum(axis=1)
    low, high = np.quantile(totals, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
