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
from seqgc.comparison._run import trained
from seqgc.rounds import ClosingRule, Setting
from seqgc.stragglers import over_bound

__all__ = ["Judge"]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class _End:
    """When a training was at the target, after how many clocks of a model, and what it has cost.

    All are infinite if it never was.
    """

    seconds: float = math.inf
    clocks: float = math.inf
    usd: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """What the trainings of all seeds came to at some learning rate, each in turn."""

    each: Sequence[_End]
    lacks: Sequence[float] = ()  # how stale gradients were
    failed: str = ""  # the first model that did, and why

    @property
    def middle(self) -> _End:
        """The medians."""
        names = "seconds", "clocks", "usd"
        return _End(**{name: median(getattr(end, name) for end in self.each) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judge:
    """Times and trains one defence after the other."""

    field: Field
    trial: Trial
    metering: Metering
    trainees: Sequence[Trainees]  # of each seed
    exact: dict[float, list[float]]  # steps to the target, by learning rate and seed
    bound_s: float  # per clock

    def row(self, setting: Setting, *, common: float) -> Row:
        """Return what a defence comes to."""
        course = self.field.course(setting, clocks=self.field.clocks)
        if setting.scheme.kind == "exact":
            ends = {lr: self._exactly(setting, self.exact[lr]) for lr in self.trial.lrs}
        else:
            ends = {common: self._trained(setting, common)}
            for lr in self.trial.lrs:
                if lr not in ends:  # no longer than what is better
                    limit_s = min(known.middle.seconds for known in ends.values())
                    ends[lr] = self._trained(setting, lr, until_s=limit_s)
        seen, middle = ends[common], ends[common].middle
        is_there = middle.seconds < math.inf
        best = min(ends, key=lambda lr: ends[lr].middle.seconds)
        best_s = ends[best].middle.seconds
        seconds_per_clock = course.runtime_s / (len(course.closed_s) * course.applied)
        rule = setting.rule.label if setting.rule != ClosingRule() else ""
        return Row(
            defence=setting.scheme.spec,
            rule=rule,
            kind=setting.scheme.kind,
            jobs_per_round=setting.jobs_per_round,
            seconds_per_clock=seconds_per_clock,
            over_bound=over_bound(seconds_per_clock, self.bound_s),
            clocks_to_target=round(middle.clocks, 9) if is_there else None,
            seconds_to_target=middle.seconds if is_there else None,
            seconds_between=(min(seen.each).seconds, max(seen.each).seconds) if is_there else None,
            usd=middle.usd if is_there else None,
            best_lr=best if best_s < math.inf else None,
            best_seconds=best_s if best_s < math.inf else None,
            staleness_mean=float(np.mean(seen.lacks)) if seen.lacks else 0.0,
            staleness_max=max(seen.lacks, default=0.0),
            wasted=round(course.load - 1, 9) + 0.0,  # sums of shares; no -0
            failed=seen.failed,
        )

    def _exactly(self, setting: Setting, steps: Sequence[float]) -> _Ends:
        """Read off when the last model has taken each seed's steps."""
        ends = {math.inf: _End()}
        for each in {*steps} - {math.inf}:
            course = self.field.course(setting, clocks=int(each) * self.field.models)
            usd = self._usd(course.runtime_s, busy_s=course.busy_s, tasks=course.tasks)
            ends[each] = _End(seconds=course.runtime_s, clocks=float(each), usd=usd)
        return _Ends(each=[ends[each] for each in steps])

    def _trained(self, setting: Setting, lr: float, *, until_s: float = math.inf) -> _Ends:
        """Train with each seed, up to a time."""
        ends, lacks, failed = list[_End](), list[float](), ""
        for trainees in self.trainees:
            run = trained(
                setting,
                self.field.workers(setting.jobs_per_round),
                trainees,
                lr=lr,
                target=self.trial.target,
                most=self.trial.most,
                until_s=until_s,
            )
            lacks += [round(each, 9) for each in run.staleness]  # sums of shares
            failed = failed or run.curve.failed
            if (at := run.curve.reaches(self.trial.target)) is None:
                ends.append(_End())
                continue
            seconds, clocks = run.curve.point(at)
            usd = self._usd(seconds, busy_s=run.busy_s, tasks=run.tasks)
            ends.append(_End(seconds=seconds, clocks=clocks / self.field.models, usd=usd))
        return _Ends(each=ends, lacks=lacks, failed=failed)

    def _usd(self, seconds: float, *, busy_s: float, tasks: int) -> float:
        """Return what a run costs: see the head of `seqgc.comparison._compare`."""
        if self.field.kind == "resident":
            return self.metering.usd(worker_s=seconds * self.field.n, requests=self.field.n)
        return self.metering.usd(worker_s=busy_s, requests=tasks)
