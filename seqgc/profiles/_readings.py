"""The two readings of a recorded profile: what of an answer's seconds was the request, what work.

They differ where loads do (docs/mathematics.md, section 7).
*Latency* (`latency_pace`): what an answer took beyond ``alpha`` seconds per unit of load was
paid for the request, and no other worker can be given a part of it. *Speed* (`speed_pace`): all
of it was work at the worker's speed of that round; 30 % of the seconds are 30 % of the work, and
can be done elsewhere. Recordings of the same workers at several loads tell which holds: by latency
each worker's times lie apart by the same seconds at every load, by speed by the same factor.
"""

from __future__ import annotations

import numpy as np

from seqgc.errors import ProfileError, require_int
from seqgc.profiles._delay_profile import DelayProfile
from seqgc.profiles._pace import ByRound, ByWork

__all__ = ["latency_pace", "speed_pace"]

_LEAST_LOAD = 1e-5  # of a job: a task of one goes through 10⁵ rows then, which take time and memory


def latency_pace(
    profile: DelayProfile, *, alpha: float | None = None, jobs_per_round: int = 1
) -> ByRound:
    """Read a profile as latencies; each unit of load adds ``alpha`` seconds on every worker.

    The seconds of a task are the ones that `DelayProfile.times_at` returns. By default ``alpha`` is
    the profile's. A unit of load is a job, which for a bundle of ``jobs_per_round`` models has as
    many batches. Source: docs/mathematics.md, section 7.

    Raises
    ------
    ParameterError
        If no ``alpha`` is known.

    Examples
    --------
    >>> from seqgc.profiles import task_seconds
    >>> profile = DelayProfile.from_times([[0.5, 0.7], [0.6, 2.0]])
    >>> pace = latency_pace(profile, alpha=1.5)
    >>> [task_seconds(pace, 1, round=k, at=0.0, done=0.0, load=0.2) for k in (0, 1)]
    [1.0, 2.3]
    """
    k = require_int("jobs_per_round", jobs_per_round, least=1)
    rates = np.array([[k * profile.slope(alpha)]])
    return ByRound(latencies_s=profile.times, rates=rates, base_load=profile.meta.base_load / k)


def speed_pace(profile: DelayProfile, *, jobs_per_round: int = 1) -> ByWork:
    """Read a profile as speeds: in each row, all seconds are work on the profile's base load.

    A worker with as much to do as was recorded takes as long as was recorded. What was recorded at
    no load has no speed: `DelayProfile.at_load` says what it would have been at some. A unit of
    load is a job, of a bundle of ``jobs_per_round`` models that many batches.

    Raises
    ------
    ProfileError
        If the profile's base load is 0, or next to it.

    Examples
    --------
    >>> profile = DelayProfile.from_times([[0.5, 0.7], [0.6, 2.0]]).at_load(0.25, alpha=2.0)
    >>> pace = speed_pace(profile)
    >>> [pace.seconds(1, round=0, at=0.0, done=0.25, load=load) for load in (0.0625, 0.25, 0.5)]
    [0.625, 2.5, 3.7]
    """
    load, k = profile.meta.base_load, require_int("jobs_per_round", jobs_per_round, least=1)
    if not load >= _LEAST_LOAD * k:
        least = f"{_LEAST_LOAD * k:g}"
        rule = f"the profile must have been recorded at a load >= {least} to be read as speeds"
        remedy = "say at which base load it was recorded, or read it as latency; "
        remedy += "`DelayProfile.at_load` estimates it at another load"
        raise ProfileError(f"{rule}; got base load {load:g} ({remedy})")
    return ByWork(rates=profile.times / (load / k), width=load / k)
