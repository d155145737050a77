"""What one defence comes to in a comparison: timed, trained and paid for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from seqgc.comparison._curve import Trainees
from seqgc.comparison._field import Field
from seqgc.comparison._rows import Metering, Row, Trial
from seqgc.comparison._run import Course, trained
from seqgc.rounds import Setting

__all__ = ["Judge"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reached:
    """The target, at some learning rate: after how many clocks of a model, and when.

    ``least_s`` and ``most_s`` are with the seeds that take shortest and longest.
    """

    clocks: float
    seconds: float
    least_s: float
    most_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judge:
    """Times and trains one defence after the other."""

    field: Field
    trial: Trial
    metering: Metering
    trainees: Sequence[Trainees]  # of each seed
    exact: dict[float, list[int]]  # steps to the target, by learning rate and seed
    bound_s: float  # per clock

    def row(self, setting: Setting, *, common: float) -> Row:
        """Return what a defence comes to."""
        field, lacks = self.field, list[float]()
        course = field.course(setting, clocks=field.clocks)
        if setting.scheme.kind == "exact":
            reached = {lr: self._exactly(setting, self.exact[lr]) for lr in self.trial.lrs}
        else:
            reached = {common: self._trained(setting, common, lacks)}
            for lr in self.trial.lrs:
                if lr not in reached:  # no longer than what is better
                    known = [each.seconds for each in reached.values() if each is not None]
                    limit_s = min(known, default=math.inf)
                    reached[lr] = self._trained(setting, lr, until_s=limit_s)
        seen, clocks = reached[common], len(course.closed_s) * course.applied
        seconds_per_clock = course.runtime_s / clocks
        able = {lr: each.seconds for lr, each in reached.items() if each is not None}
        best = min(able, key=able.__getitem__, default=None)
        return Row(
            defence=setting.scheme.spec,
            kind=setting.scheme.kind,
            jobs_per_round=setting.jobs_per_round,
            seconds_per_clock=seconds_per_clock,
            over_bound=seconds_per_clock / self.bound_s,
            clocks_to_target=None if seen is None else seen.clocks,
            seconds_to_target=None if seen is None else seen.seconds,
            seconds_between=None if seen is None else (seen.least_s, seen.most_s),
            usd=None if seen is None else self._usd(course, seen),
            best_lr=best,
            best_seconds=None if best is None else able[best],
            staleness_mean=float(np.mean(lacks)) if lacks else 0.0,
            staleness_max=max(lacks, default=0.0),
            wasted=round(course.load - 1, 9) + 0.0,  # sums of shares; no -0
        )

    def _exactly(self, setting: Setting, steps: Sequence[int]) -> _Reached | None:
        """Read off when the last model has taken so many steps, the median of the seeds."""
        clocks, models, most = int(median(steps)), self.field.models, self.trial.most
        if clocks >= most:
            return None
        seconds = {
            each: self.field.course(setting, clocks=each * models).runtime_s
            for each in {min(steps), clocks, max(steps)} - {most}
        }
        return _Reached(
            clocks=float(clocks),
            seconds=seconds[clocks],
            least_s=seconds[min(steps)],
            most_s=seconds.get(max(steps), math.inf),
        )

    def _trained(
        self,
        setting: Setting,
        lr: float,
        lacks: list[float] | None = None,
        *,
        until_s: float = math.inf,
    ) -> _Reached | None:
        """Train with each seed, up to a time; note in ``lacks`` how stale its gradients were."""
        ends = list[tuple[float, float]]()
        for trainees in self.trainees:
            curve, staleness = trained(
                setting,
                self.field.workers(setting.jobs_per_round),
                trainees,
                lr=lr,
                target=self.trial.target,
                most=self.trial.most,
                until_s=until_s,
            )
            if lacks is not None:
                lacks += staleness
            at = curve.reaches(self.trial.target)
            ends.append((math.inf, math.inf) if at is None else curve.point(at))
        seconds, clocks = (median(each) for each in zip(*ends, strict=True))
        if math.isinf(seconds):
            return None
        return _Reached(
            clocks=clocks / self.field.models,
            seconds=seconds,
            least_s=min(ends)[0],
            most_s=max(ends)[0],
        )

    def _usd(self, course: Course, reached: _Reached) -> float:
        """Return what the run up to the target costs: see this module's head."""
        n, clocks = self.field.n, reached.clocks * self.field.models
        if self.field.kind == "resident":
            return self.metering.usd(worker_s=reached.seconds * n, requests=n)
        share = clocks / len(course.closed_s)
        requests = round(course.tasks * share)
        return self.metering.usd(worker_s=course.busy_s * share, requests=requests)
