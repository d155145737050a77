"""The evaluation of one defence: its time, its training, its price and its best learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import median
from typing import Final

import numpy as np

from seqgc.comparison._field import Field
from seqgc.comparison._rows import Metering, Row, Trial
from seqgc.comparison._training import Race, TimedRun, Trained, Trainees, trained
from seqgc.rounds import ClosingRule, Setting
from seqgc.stragglers import over_bound

__all__ = [
    "FEW_SEEDS",
    "BestRate",
    "Evaluator",
    "best_near",
    "best_of",
    "interval_of_median",
    "interval_words",
]

FEW_SEEDS: Final = 3  # number of seeds for the choice of a learning rate
_MOST_DOUBLINGS: Final = 6  # largest distance of a defence's best rate from the common rate
_CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class _End:
    """The seconds, clocks of each model, and US dollars until a training reached the target.

    If the training did not reach the target, all three are infinite.
    """

    seconds: float = math.inf
    clocks: float = math.inf
    usd: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ends:
    """The results of all seeds at one learning rate."""

    each: Sequence[_End]
    staleness: Sequence[float] = ()  # staleness of each mini-task, in clocks
    failed: str = ""  # the first model that failed, and the reason

    @property
    def middle(self) -> _End:
        """The medians over all seeds."""
        names = "seconds", "clocks", "usd"
        return _End(**{name: median(getattr(end, name) for end in self.each) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluator:
    """The timing and training of one defence after another.

    ``common`` is the learning rate for all defences. ``exact`` are each seed's steps to the target
    with exact gradients at this rate. ``tell`` is called with the name of the next step.
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
        if setting.scheme.kind == "exact":  # all exact defences have the same best rate
            timed, at_common = self._time_exact(setting)
            best, at_own = common, at_common
        else:
            timed = self.field.time(setting, clocks=self.field.clocks)
            ends = self._raced(setting)
            at_common = ends[common.rate]
            best, at_own = self._own_best(setting, ends)
        middle, is_there = at_common.middle, at_common.middle.seconds < math.inf
        has_best = at_own.middle.seconds < math.inf
        seconds_per_clock = timed.runtime_s / (len(timed.closed_s) * timed.applied)
        rule = setting.rule.label if setting.rule != ClosingRule() else ""
        between = interval_of_median([end.seconds for end in at_common.each])
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
            best_seconds=at_own.middle.seconds if has_best else None,
            best_is_edge=has_best and best.is_edge,
            staleness_mean=float(np.mean(at_common.staleness)) if at_common.staleness else 0.0,
            staleness_max=max(at_common.staleness, default=0.0),
            wasted=round(timed.load - 1, 9) + 0.0,  # a sum of shares; no -0
            received=timed.received,
            sent=timed.sent,
            failed=at_common.failed,
            seeds_seconds=tuple(end.seconds for end in at_common.each),
        )

    def _raced(self, setting: Setting) -> dict[float, _Ends]:
        """Train at all rates that may be the best, at the same time; return the results by rate.

        At the common rate, all seeds are trained. At other rates, only the first seeds are trained,
        and a training ends when another rate is known to be faster.
        """
        common, few = self.common.rate, min(FEW_SEEDS, len(self.trainees))
        rates = [common]
        if self.trial.lrs is not None:
            rates += [rate for rate in sorted(self.trial.lrs) if rate != common]
        elif min(self.exact) < math.inf:  # otherwise not even exact gradients reach the target
            steps = range(-_MOST_DOUBLINGS, _MOST_DOUBLINGS + 1)
            rates += [common * 2.0**step for step in steps if step]
        seeds = [few] * len(rates)
        seeds[0] = len(self.trainees)
        firsts = [0, *accumulate(seeds)]
        race = Race(
            [range(first, first + few) for first in firsts[:-1]], lasting=range(len(self.trainees))
        )
        trainings = [
            (trainees, rate)
            for rate, count in zip(rates, seeds, strict=True)
            for trainees in self.trainees[:count]
        ]
        results = self._trained(setting, trainings, race=race)
        return {
            rate: self._ends(results[first : first + count])
            for rate, first, count in zip(rates, firsts, seeds, strict=False)
        }

    def _own_best(self, setting: Setting, ends: Mapping[float, _Ends]) -> tuple[BestRate, _Ends]:
        """Return a defence's own best rate, and the result of all seeds at this rate.

        ``ends`` are the results of `_raced`. The rate is chosen with the first seeds.
        """
        common = self.common.rate

        def cost(rate: float) -> float:
            return median(end.seconds for end in ends[rate].each[:FEW_SEEDS])

        if self.trial.lrs is not None:
            best = best_of(cost, sorted(self.trial.lrs))
        elif len(ends) > 1:
            best = best_near(cost, common, most_steps=_MOST_DOUBLINGS)
        else:
            return self.common, ends[common]
        at_own = ends[best.rate]
        if others := self.trainees[len(at_own.each) :]:
            more = self._ends(self._trained(setting, [(each, best.rate) for each in others]))
            at_own = replace(at_own, each=[*at_own.each, *more.each])
        if at_own.middle.seconds < ends[common].middle.seconds or best.rate == common:
            return best, at_own
        is_edge = common in {best.tried[0], best.tried[-1]}
        return replace(best, rate=common, is_edge=is_edge), ends[common]

    def _time_exact(self, setting: Setting) -> tuple[TimedRun, _Ends]:
        """Return the timing of an exact defence, and its results from each seed's steps."""
        lr, target, most = self.common.rate, self.trial.target, self.trial.most
        by_seed = [
            trainees.steps_of(setting, exact, lr=lr, target=target, most=most)
            for trainees, exact in zip(self.trainees, self.exact, strict=True)
        ]
        models, steps = self.field.models, {*by_seed} - {math.inf}
        clocks = {each: int(each) * models for each in steps}
        timed = self.field.times(setting, clocks={self.field.clocks, *clocks.values()})
        ends = {math.inf: _End()}
        for each in steps:
            run = timed[clocks[each]]
            usd = self._usd(run.runtime_s, busy_s=run.busy_s, tasks=run.tasks)
            ends[each] = _End(seconds=run.runtime_s, clocks=each, usd=usd)
        return timed[self.field.clocks], _Ends(each=[ends[each] for each in by_seed])

    def _trained(
        self,
        setting: Setting,
        trainings: Sequence[tuple[Trainees, float]],
        *,
        race: Race | None = None,
    ) -> list[Trained]:
        return trained(
            setting,
            self.field.workers(setting.jobs_per_round),
            trainings,
            target=self.trial.target,
            most=self.trial.most,
            race=race,
        )

    def _ends(self, trainings: Sequence[Trained]) -> _Ends:
        """Return the results of trainings at one rate."""
        ends, staleness, failed = list[_End](), list[float](), ""
        for each in trainings:
            staleness += [round(lack, 9) for lack in each.work.staleness]  # sums of shares
            failed = failed or each.curve.failed
            if (at := each.curve.reaches(self.trial.target)) is None:
                ends.append(_End())
                continue
            seconds, clocks = each.curve.point(at)
            usd = self._usd(seconds, busy_s=each.work.busy_s, tasks=each.work.tasks)
            ends.append(_End(seconds=seconds, clocks=clocks / self.field.models, usd=usd))
        return _Ends(each=ends, staleness=staleness, failed=failed)

    def _usd(self, seconds: float, *, busy_s: float, tasks: int) -> float:
        """Return the price of a run, as defined in the module `seqgc.comparison._compare`."""
        if self.field.kind == "resident":
            return self.metering.usd(worker_s=seconds * self.field.n, requests=self.field.n)
        return self.metering.usd(worker_s=busy_s, requests=tasks)


def interval_words(seeds: int) -> str:
    """Return a description of the interval from `interval_of_median` for this number of seeds."""
    if (1 - _CONFIDENCE) * 2**seeds >= 2:
        return "an interval that holds the median with 95 % confidence"
    return "from the best seed to the worst"


def interval_of_median(values: Sequence[float]) -> tuple[float, float]:
    """Return a confidence interval for the median of the distribution of the values.

    For six or more values, the interval contains the median with 95 % confidence; for fewer values,
    it reaches from the smallest value to the largest. A value is below the median with probability
    1/2; therefore the number of values below the median is binomial. The k smallest and the k
    largest values are excluded if the probability that at most k values are below the median is at
    most 2.5 %.

    Examples
    --------
    >>> interval_of_median([3.0, 1.0, 2.0]), interval_of_median(range(10))
    ((1.0, 3.0), (1, 8))
    """
    order, n, k = sorted(values), len(values), 1
    while 2 * sum(math.comb(n, below) for below in range(k + 1)) <= (1 - _CONFIDENCE) * 2**n:
        k += 1
    return order[k - 1], order[n - k]


@dataclass(frozen=True, slots=True, kw_only=True)
class BestRate:
    """The best of the learning rates ``tried``, which are in ascending order.

    If ``is_edge`` is True, the best rate is the smallest or the largest of them, and a rate beyond
    may be better.
    """

    rate: float
    is_edge: bool
    tried: tuple[float, ...]


def best_of(cost: Callable[[float], float], rates: Sequence[float]) -> BestRate:
    """Return the rate with the least cost.

    Examples
    --------
    >>> best_of(lambda rate: abs(rate - 5), [1.0, 2.0, 4.0])
    BestRate(rate=4.0, is_edge=True, tried=(1.0, 2.0, 4.0))
    """
    return _chosen({rate: cost(rate) for rate in rates})


def best_near(cost: Callable[[float], float], start: float, *, most_steps: int = 6) -> BestRate:
    """Return the rate with the least cost among ``start`` times powers of two.

    As long as the smallest or the largest rate has the least cost, another rate is tried beyond it,
    at most ``most_steps`` on each side. If training fails at a rate, ``cost`` must return infinity.

    Examples
    --------
    >>> best_near(lambda rate: abs(rate - 5), 1.0)
    BestRate(rate=4.0, is_edge=False, tried=(0.5, 1.0, 2.0, 4.0, 8.0))
    >>> best_near(lambda rate: -rate, 1.0, most_steps=2)
    BestRate(rate=4.0, is_edge=True, tried=(0.5, 1.0, 2.0, 4.0))
    """
    costs = {step: cost(start * 2.0**step) for step in (0, -1, 1)}
    while True:
        least, low, high = min(costs.values()), min(costs), max(costs)
        ends = [(low, low - 1), (high, high + 1)]
        wider = [
            beyond for end, beyond in ends if costs[end] <= least and abs(beyond) <= most_steps
        ]
        if not wider:
            return _chosen({start * 2.0**step: costs[step] for step in costs})
        for step in wider:
            costs[step] = cost(start * 2.0**step)


def _chosen(costs: dict[float, float]) -> BestRate:
    """Return the best rate; in a tie, an inner rate wins, then a smaller rate."""
    tried = tuple(sorted(costs))
    ends = {tried[0], tried[-1]}
    rate = min(tried, key=lambda each: (costs[each], each in ends))
    return BestRate(rate=rate, is_edge=rate in ends, tried=tried)
