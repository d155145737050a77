"""Replays of one run, with some of its times replaced by typical times.

Source of the method: Lin, Jiang et al., *Understanding Stragglers in Large Model Training Using
What-if Analysis*, OSDI 2025. A run is simulated with and without its stragglers, and the difference
of the two times is what they cost:

    cost(X) = T - T(X fixed)

T is the time of the run, replayed on its recorded times. In T(X fixed), each time in X that is
longer than the typical time is replaced by the typical time. The typical time of a worker in a
round is the median time of the other workers in this round. X is a worker, a round, one phase of
all tasks, or everything ("nobody slow").

Costs do not add up: if two workers are equally slow, replacing one of them saves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from seqgc.ports import BoolArray, FloatArray
from seqgc.profiles import DelayProfile
from seqgc.rounds import Setting
from seqgc.schemes import Scheme
from seqgc.search import Reading, Rehearsal, replay

__all__ = ["WhatIf", "typical_times"]


def typical_times(times: FloatArray) -> FloatArray:
    """Return the median time (rounds, n) of the other workers in each round.

    A single worker is compared with its own median over all rounds.
    """
    n = times.shape[1]
    if n == 1:
        return np.broadcast_to(np.median(times), times.shape)
    typical = np.empty_like(times)
    for worker in range(n):
        typical[:, worker] = np.median(np.delete(times, worker, axis=1), axis=1)
    return typical


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WhatIf:
    """The replays of one run, with times (rounds, n) that may differ from the recorded times.

    ``profile`` has no censored times. ``alpha`` is 0 if the loads of the run do not change.
    """

    setting: Setting
    profile: DelayProfile
    alpha: float
    num_jobs: int
    models: int | None
    stays: bool  # True if the workers are processes

    @property
    def times(self) -> FloatArray:
        """The recorded times (rounds, n)."""
        return self.profile.times

    def rehearsal(self, setting: Setting, times: FloatArray | None = None) -> Rehearsal:
        """Return the settings of a replay on some times, by default on the recorded times."""
        stays = self.stays and not isinstance(setting.scheme, Scheme)
        profile = self.profile if times is None else _with(self.profile, times)
        return Rehearsal(
            profile=profile,
            num_jobs=self.num_jobs,
            alpha=self.alpha,
            repeat=True,
            models=self.models,
            reading=Reading(resident=stays, per_piece=stays),
        )

    def seconds(
        self, times: FloatArray | None = None, *, setting: Setting | None = None
    ) -> FloatArray:
        """Replay a setting on some times, and return the seconds (rounds,) of each round.

        The default is the setting of the run, and the recorded times.
        """
        setting = setting or self.setting
        return replay(setting, self.rehearsal(setting, times)).round_seconds

    def fixed(self, typical: FloatArray, *, where: BoolArray | None = None) -> FloatArray:
        """Return the times, of which those in the mask ``where`` are at most the typical times.

        By default, all times are limited.
        """
        limited = np.minimum(self.times, typical)
        return limited if where is None else np.where(where, limited, self.times)

    def without_worker(self, workers: Iterable[int], typical: FloatArray) -> FloatArray:
        """Return the times as if these workers had taken at most the typical times."""
        where = np.zeros(self.times.shape, dtype=np.bool_)
        where[:, list(workers)] = True
        return self.fixed(typical, where=where)


def _with(profile: DelayProfile, times: FloatArray) -> DelayProfile:
    return replace(profile, times=times, status=np.zeros(times.shape, dtype=np.int8))
