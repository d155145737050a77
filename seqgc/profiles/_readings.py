"""Two ways to read a recorded profile: answer times as latency, or as work at a speed.

The readings give different times at loads other than the recorded load (docs/mathematics.md,
section 7). *Latency* (`latency_pace`): each unit of load costs ``alpha`` seconds; the rest of an
answer's time belongs to the request, and no other worker can take over a part of it. *Speed*
(`speed_pace`): the whole time was work at the worker's speed in this round; 30 % of the seconds
are 30 % of the work, which another worker could do. Recordings of the same workers at several
loads show which reading is right. With latency, times of different workers differ by the same
seconds at every load; with speed, they differ by the same factor.
"""

from __future__ import annotations

import numpy as np

from seqgc.errors import ProfileError, require_int
from seqgc.profiles._delay_profile import DelayProfile
from seqgc.profiles._pace import ByRound, ByWork

__all__ = ["latency_pace", "speed_pace"]

# The least load, in jobs, that can be read as a speed: a task of one job then has 10⁵ rows, which
# take time and memory.
_LEAST_LOAD = 1e-5


def latency_pace(
    profile: DelayProfile, *, alpha: float | None = None, jobs_per_round: int = 1
) -> ByRound:
    """Read a profile as latencies; each unit of load adds ``alpha`` seconds on every worker.

    The seconds of a task are equal to those of `DelayProfile.times_at`. By default ``alpha`` is the
    profile's own. A unit of load is a job, which consists of ``jobs_per_round`` batches, one for
    each model of a bundle. Source: docs/mathematics.md, section 7.

    Raises
    ------
    ParameterError
        If no ``alpha`` is known, or ``jobs_per_round`` is below 1.

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

    At the recorded load, a worker takes the recorded time. A recording at load 0 has no speed, but
    `DelayProfile.at_load` can estimate the recording at another load. A unit of load is a job,
    which consists of ``jobs_per_round`` batches, one for each model of a bundle.

    Raises
    ------
    ProfileError
        If the profile's base load is 0 or nearly 0.

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
        remedy = "set the base load (--base-load) at which it was recorded, or read it as latency; "
        remedy += "`DelayProfile.at_load` estimates it at another load"
        raise ProfileError(f"{rule}; got base load {load:g} ({remedy})")
    return ByWork(rates=profile.times / (load / k), width=load / k)
