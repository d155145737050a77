"""Stragglers on purpose: seconds that workers let pass before they answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from seqgc.errors import ParameterError, did_you_mean
from seqgc.ports import FloatArray
from seqgc.profiles import LAMBDA_CNN, DelayProfile, read_profile
from seqgc.workers._settings import DelaySettings

LoadDelays: TypeAlias = Callable[[int, int, float], float]
"""``delays(round, worker, load)``: the least response time of a first attempt, seconds."""

_GENERATED = "lambda-cnn"
_MOST_GENERATED = 1000  # rounds; then they repeat


class InjectedDelays:
    """A profile's seconds by (round, worker, load); its rounds repeat.

    Raises
    ------
    ParameterError
        If the profile does not know its alpha, seconds per unit of load.

    Examples
    --------
    >>> from seqgc.profiles import ProfileMeta
    >>> meta = ProfileMeta(alpha=2.0, base_load=0.5)
    >>> delays = InjectedDelays(DelayProfile.from_times([[1.0, 3.0]], meta=meta))
    >>> delays(7, 1, 1.0)
    4.0
    """

    def __init__(self, profile: DelayProfile) -> None:
        if profile.meta.alpha is None:
            rule = "must be given: the profile does not know what load costs"
            remedy = "0 injects its seconds at every load; `seqgc profile fit` fits it"
            raise ParameterError("delays.alpha", rule, None, remedy)
        self.profile: Final = profile
        self.alpha: Final = profile.meta.alpha
        self._at_load = lru_cache(maxsize=1)(profile.at_load)
        self._seconds = lru_cache(maxsize=None)(self._column)  # few loads, each a worker's own

    @classmethod
    def of(cls, settings: DelaySettings, *, workers: int, num_rounds: int) -> InjectedDelays:
        """Return what a configuration asks for, for so many workers, or raise `ParameterError`."""
        profile = _source(settings, workers=workers, num_rounds=num_rounds)
        if profile.num_workers < workers:
            rule = f"must have a column for each of the {workers} workers"
            found = f"{settings.source}: {profile.num_workers}"
            raise ParameterError("delays.source", rule, found)
        meta = profile.meta
        if settings.alpha is not None:
            meta = replace(meta, alpha=settings.alpha)
        if settings.base_load is not None:
            meta = replace(meta, base_load=settings.base_load)
        return cls(replace(profile, meta=meta).scaled(settings.scale))

    def __call__(self, round: int, worker: int, load: float) -> float:
        seconds = self._seconds(worker, load)
        return float(seconds[round % len(seconds)])

    def _column(self, worker: int, load: float) -> FloatArray:
        return self._at_load(load).times[:, worker].copy()


def _source(settings: DelaySettings, *, workers: int, num_rounds: int) -> DelayProfile:
    if settings.source == _GENERATED:
        rng = np.random.default_rng(settings.seed)
        return LAMBDA_CNN.profile(min(num_rounds, _MOST_GENERATED), workers=workers, rng=rng)
    if not Path(settings.source).suffix:
        rule = f"must be {_GENERATED!r} or a profile's .npz or .csv file"
        remedy = did_you_mean(settings.source, [_GENERATED])
        raise ParameterError("delays.source", rule, settings.source, remedy)
    return read_profile(settings.source)
