"""New profiles from given ones, by concatenation or by drawing with replacement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from seqgc.errors import ParameterError, require_int
from seqgc.profiles._delay_profile import DelayProfile, ProfileMeta

__all__ = ["concatenate", "resample_rounds", "resample_workers"]


def concatenate(profiles: Sequence[DelayProfile]) -> DelayProfile:
    """Return the rounds of all ``profiles``, one after the other.

    Metadata that are equal in all profiles are preserved; the other metadata become unknown.

    Raises
    ------
    ParameterError
        If there is no profile, or they differ in the number of workers or in the base load.

    Examples
    --------
    >>> one = DelayProfile.from_times([[1.0, 2.0]], meta=ProfileMeta(model="cnn", region="a"))
    >>> two = DelayProfile.from_times([[3.0, 4.0]], meta=ProfileMeta(model="cnn", region="b"))
    >>> both = concatenate([one, two])
    >>> both.times.tolist(), both.meta.model, both.meta.region
    ([[1.0, 2.0], [3.0, 4.0]], 'cnn', '')
    """
    if not profiles:
        raise ParameterError("profiles", "must hold at least one profile", 0)
    workers = [profile.num_workers for profile in profiles]
    if len(set(workers)) > 1:
        raise ParameterError("profiles", "must be of the same number of workers", workers)
    loads = [profile.meta.base_load for profile in profiles]
    if len(set(loads)) > 1:
        remedy = "convert them to one load with `DelayProfile.at_load`"
        raise ParameterError("profiles", "must have the same base load", loads, remedy)
    first, unknown = profiles[0].meta, ProfileMeta()
    disputed = {
        field.name: getattr(unknown, field.name)
        for field in fields(first)
        if len({getattr(profile.meta, field.name) for profile in profiles}) > 1
    }
    return DelayProfile(
        times=np.concatenate([profile.times for profile in profiles]),
        status=np.concatenate([profile.status for profile in profiles]),
        meta=replace(first, **disputed),
    )


def resample_rounds(
    profile: DelayProfile, rounds: int, *, block: int, rng: np.random.Generator
) -> DelayProfile:
    """Draw ``rounds`` rounds with replacement, in blocks of ``block`` consecutive rounds.

    This is the circular block bootstrap (Politis and Romano, 1992). The first round follows the
    last, so that every round is equally likely. Patterns that are shorter than a block are
    preserved. A block has at most as many rounds as the profile.

    Examples
    --------
    >>> profile = DelayProfile.from_times([[1.0], [2.0], [3.0]])
    >>> resample_rounds(profile, 4, block=2, rng=np.random.default_rng(0)).times.ravel().tolist()
    [3.0, 1.0, 2.0, 3.0]
    """
    rounds = require_int("rounds", rounds, least=1)
    block = require_int("block", block, least=1, most=profile.num_rounds)
    starts = rng.integers(profile.num_rounds, size=-(-rounds // block))
    chosen = (starts[:, None] + np.arange(block)).ravel()[:rounds] % profile.num_rounds
    return replace(profile, times=profile.times[chosen], status=profile.status[chosen])


def resample_workers(
    profile: DelayProfile, workers: int, *, rng: np.random.Generator
) -> DelayProfile:
    """Draw ``workers`` >= 1 workers with replacement, each with all of its rounds.

    The base load does not change.

    Examples
    --------
    >>> profile = DelayProfile.from_times([[1.0, 2.0], [1.5, 2.5]])
    >>> resample_workers(profile, 3, rng=np.random.default_rng(1)).times.tolist()
    [[1.0, 2.0, 2.0], [1.5, 2.5, 2.5]]
    """
    chosen = rng.integers(profile.num_workers, size=require_int("workers", workers, least=1))
    return replace(profile, times=profile.times[:, chosen], status=profile.status[:, chosen])
