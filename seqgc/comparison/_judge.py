"""What one defence comes to in a comparison: timed, trained and paid for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

import numpy as np

from seqgc.comparison._curve import Trainees
from seqgc.comparison._field import Field
from seqgc.comparison._rates import BestRate, best_near, best_of
from seqgc.comparison._rows import Metering, Row, Trial
from seqgc.comparison._run import trained
from seqgc.rounds import ClosingRule, Setting
from seqgc.stragglers import over_bound

__all__ = ["FEW_SEEDS", "Judge", "interval_of_median", "interval_words"]

FEW_SEEDS: Final = 3  # by which learning rates are chosen
_MOST_STEPS: Final = 3  # to a defence's own best rate, at most 8 times the common one
_CONFIDENCE: Final = 0.95


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
    """Times and trains one defence after the other.

    ``common`` is the learning rate that all defences share. ``exact`` are the steps to the target
    with exact gradients at that rate, for each seed. ``tell`` is called with the next step, in
    words.
    """

    field: Field
    trial: Trial
    metering: Metering
    trainees: Sequence[Trainees]  # of each seed
    common: BestRate
    exact: Sequence[float]
    bound_s: float  # per clock
    tell: Callable[[str], None]

    def row(self, setting: Setting) -> Row:
        """Time and train a defence, and return its row."""
        spec, common = setting.scheme.spec, self.common
        self.tell(spec)
        course = self.field.course(setting, clocks=self.field.clocks)
        if setting.scheme.kind == "exact":  # the best rate is the same for all of them
            seen = own = self._exactly(setting, self.exact)
            best = common
        else:
            seen = self._trained(setting, common.rate)
            best, own = self._own_best(setting, seen)
        middle, is_there = seen.middle, seen.middle.seconds < math.inf
        has_best = own.middle.seconds < math.inf
        seconds_per_clock = course.runtime_s / (len(course.closed_s) * course.applied)
        rule = setting.rule.label if setting.rule != ClosingRule() else ""
        between = interval_of_median([end.seconds for end in seen.each])
        return Row(
            defence=spec,
            rule=rule,
            kind=setting.scheme.kind,
            jobs_per_round=setting.jobs_per_round,
            seconds_per_clock=seconds_per_clock,
            over_bound=over_bound(seconds_per_clock, self.bound_s),
            clocks_to_target=round(middle.clocks, 9) if is_there else None,
            seconds_to_target=middle.seconds if is_there else None,
            seconds_between=between if is_there else None,
            usd=middle.usd if is_there else None,
            best_lr=best.rate if has_best else None,
            best_seconds=own.middle.seconds if has_best else None,
            best_is_edge=has_best and best.is_edge,
            staleness_mean=float(np.mean(seen.lacks)) if seen.lacks else 0.0,
            staleness_max=max(seen.lacks, default=0.0),
            wasted=round(course.load - 1, 9) + 0.0,  # sums of shares; no -0
            failed=seen.failed,
        )

    def _own_best(self, setting: Setting, seen: _Ends) -> tuple[BestRate, _Ends]:
        """Return a defence's own best rate, found with the first seeds, and the outcome at it.

        The outcome is that of all seeds. ``seen`` is the outcome at the common rate.
        """
        limit_s = math.inf

        def cost(lr: float) -> float:  # infinite if it is no faster than an earlier rate
            nonlocal limit_s
            ends = seen
            if lr != self.common.rate:
                ends = self._trained(setting, lr, seeds=FEW_SEEDS, until_s=limit_s)
            seconds = median(end.seconds for end in ends.each[:FEW_SEEDS])
            limit_s = min(limit_s, seconds)
            return seconds

        if self.trial.lrs is not None:
            best = best_of(cost, sorted(self.trial.lrs, key=lambda lr: lr != self.common.rate))
        elif min(self.exact) < math.inf:
            best = best_near(cost, self.common.rate, most_steps=_MOST_STEPS)
        else:  # not even exact gradients reach the target
            return self.common, seen
        own = seen if best.rate == self.common.rate else self._trained(setting, best.rate)
        if own.middle.seconds < seen.middle.seconds:
            return best, own
        is_edge = self.common.rate in {best.tried[0], best.tried[-1]}
        return replace(best, rate=self.common.rate, is_edge=is_edge), seen

    def _exactly(self, setting: Setting, steps: Sequence[float]) -> _Ends:
        """Read off when the last model has taken each seed's steps."""
        ends = {math.inf: _End()}
        for each in {*steps} - {math.inf}:
            course = self.field.course(setting, clocks=int(each) * self.field.models)
            usd = self._usd(course.runtime_s, busy_s=course.busy_s, tasks=course.tasks)
            ends[each] = _End(seconds=course.runtime_s, clocks=float(each), usd=usd)
        return _Ends(each=[ends[each] for each in steps])

    def _trained(
        self, setting: Setting, lr: float, *, seeds: int | None = None, until_s: float = math.inf
    ) -> _Ends:
        """Train with each seed, or the first ``seeds`` of them, up to a time."""
        ends, lacks, failed = list[_End](), list[float](), ""
        for trainees in self.trainees[:seeds]:
            self.tell(f"{setting.scheme.spec} at {lr:g}, seed {len(ends) + 1}")
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


def interval_words(seeds: int) -> str:
    """Return in words what `interval_of_median` gives for so many seeds."""
    if (1 - _CONFIDENCE) * 2**seeds >= 2:
        return "an interval that holds the median with 95 % confidence"
    return "from the best seed to the worst"


def interval_of_median(values: Sequence[float]) -> tuple[float, float]:
    """Return an interval for the median of the distribution that the values are drawn from.

    With six values or more it holds the median with 95 % confidence; with fewer it is from the
    least value to the greatest. A value lies below the median with probability 1/2, so that the
    number of values below it is binomial. The k least and the k greatest values are left out if the
    probability that at most k values lie below the median is at most 2.5 %.

    Examples
    --------
    >>> interval_of_median([3.0, 1.0, 2.0]), interval_of_median(range(10))
    ((1.0, 3.0), (1, 8))
    """
    order, n, k = sorted(values), len(values), 1
    while 2 * sum(math.comb(n, below) for below in range(k + 1)) <= (1 - _CONFIDENCE) * 2**n:
        k += 1
    return order[k - 1], order[n - k]
