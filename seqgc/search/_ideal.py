"""What perfect knowledge would reach on a profile: the yardstick beside every answer."""

from __future__ import annotations

import numpy as np

from seqgc.errors import ParameterError
from seqgc.ports import FloatArray
from seqgc.profiles import DelayProfile
from seqgc.stragglers import clairvoyant_bound

__all__ = ["ideal_seconds", "known_alpha", "zero_load_times"]


def known_alpha(profile: DelayProfile, alpha: float | None) -> float:
    """Return ``alpha``, or else the profile's own.

    Raises
    ------
    ParameterError
        If neither is known.
    """
    slope = profile.meta.alpha if alpha is None else alpha
    if slope is None:
        rule = "must be given: the profile does not know its own"
        raise ParameterError("alpha", rule, None, "fit it over profiles at several loads")
    return slope


def zero_load_times(profile: DelayProfile, *, alpha: float) -> FloatArray:
    """Return the seconds (rounds, n) that answers take without any data points (spec, section 7).

    Raises
    ------
    ParameterError
        If that would be no time at all: ``alpha`` or the base load is too large.
    ProfileError
        If nobody answered in some round.

    Examples
    --------
    >>> from seqgc.profiles import ProfileMeta
    >>> profile = DelayProfile.from_times([[1.0, 1.5]], meta=ProfileMeta(base_load=0.25))
    >>> zero_load_times(profile, alpha=2.0)
    array([[0.5, 1. ]])
    """
    profile = profile.awaited()
    fastest, base_load = float(profile.times.min()), profile.meta.base_load
    if not fastest > alpha * base_load:
        rule = f"must leave times positive at load 0: the fastest is {fastest:.6g} s, "
        rule += f"the base load {base_load:.6g}"
        raise ParameterError("alpha", rule, alpha, "lower alpha or the base load")
    return profile.at_load(0.0, alpha=alpha).times


def ideal_seconds(
    profile: DelayProfile,
    *,
    num_jobs: int,
    alpha: float | None = None,
    jobs_per_round: int = 1,
) -> float:
    """Return `seqgc.stragglers.clairvoyant_bound` summed over the rounds of a run, seconds.

    The run has ``num_jobs / jobs_per_round`` rounds, from the profile's first, which is begun
    again when it ends. Schemes with a delay run longer, but may beat single rounds of the bound.

    Raises
    ------
    ParameterError
        If an argument breaks its rule; see `zero_load_times`.

    Examples
    --------
    >>> profile = DelayProfile.from_times([[1.0, 2.0, 9.0]])
    >>> ideal_seconds(profile, num_jobs=2, alpha=3.0)
    6.0
    """
    slope = known_alpha(profile, alpha)
    each = clairvoyant_bound(
        zero_load_times(profile, alpha=slope), alpha=slope, jobs_per_round=jobs_per_round
    )
    return float(each[np.arange(num_jobs // jobs_per_round) % len(each)].sum())
