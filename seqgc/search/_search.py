"""The search's engine: which candidates are replayed, in which order, and what is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from seqgc.errors import ParameterError
from seqgc.ports import BoolArray, FloatArray, IntArray
from seqgc.rounds import Setting
from seqgc.schemes import entry_of
from seqgc.search._floors import Floors
from seqgc.search._recorded_run import Accuracy, accuracy, replay
from seqgc.search._rehearsal import Rehearsal
from seqgc.search._space import SearchSpace
from seqgc.search._virtual_workers import Reading
from seqgc.search.kernel import batch_replay
from seqgc.stragglers import over_bound

__all__ = ["SLACK", "Progress", "Ranked", "Search", "pareto_front", "with_accuracy"]

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of candidates settled, replayed or pruned, and of all."""

_SAMPLE, _BATCH = 8, 8192
# Floors are summed in another order than run times: never prune on a rounding error.
SLACK = 1 - 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One candidate, and what its run comes to.

    ``runtime_s`` and ``ideal_s`` are seconds on the rounds that the search chose by, of the run and
    of the clairvoyant bound for as many jobs a round; ``holdout_s`` and ``holdout_ideal_s`` the
    same on the rounds that were held out. ``billed_worker_s`` are worker-seconds of all tasks sent,
    in full: a function that is cancelled runs to its end. Where work is dealt, ``reading`` says how
    the rounds were taken; bound and bill are of that.

    Of a scheme that is not exact, ``error`` is the largest error bound of its gradients (see
    `seqgc.ports.Decoding`), on the held-out rounds if there are any, and ``information`` what a
    gradient is worth on average, as a share of an exact one (docs/mathematics.md, 7.1);
    ``holdout_information`` is that of the held-out rounds.
    """

    setting: Setting
    runtime_s: float
    ideal_s: float
    billed_worker_s: float
    holdout_s: float | None = None
    holdout_ideal_s: float | None = None
    error: float | None = None
    reading: Reading = field(default_factory=Reading)
    information: float = 1.0
    holdout_information: float = 1.0

    @property
    def equivalent_s(self) -> float:
        """Seconds until as much information is in as the exact gradients of all jobs have."""
        return _per(self.information, self.runtime_s)

    @property
    def holdout_equivalent_s(self) -> float | None:
        """`equivalent_s` on the held-out rounds, if there are any."""
        if self.holdout_s is None:
            return None
        return _per(self.holdout_information, self.holdout_s)

    @property
    def ratio(self) -> float:
        """`equivalent_s` over the clairvoyant bound, on the held-out rounds if there are any."""
        if self.holdout_equivalent_s is None or self.holdout_ideal_s is None:
            return over_bound(self.equivalent_s, self.ideal_s)
        return over_bound(self.holdout_equivalent_s, self.holdout_ideal_s)


def _per(information: float, seconds: float) -> float:
    return seconds / information if information else np.inf


class Search:
    """One search's state: arrays (closing rules, schemes), infinite where nothing was replayed.

    What is chosen by is ``seen``, which says its number of jobs, and what is judged by ``held``.
    ``exact``: whether the candidates that are exact are searched, or those that are not: these are
    ranked by `Ranked.equivalent_s`. The rest is as in `tune`. A candidate's number says who wins a
    tie: the lowest.
    """

    def __init__(
        self,
        seen: Rehearsal,
        held: Rehearsal | None,
        *,
        space: SearchSpace,
        exact: bool,
        top: int,
        pareto: bool,
        prune: bool,
        progress: Progress | None,
    ) -> None:
        self._seen, self._held, self._space = seen, held, space
        self._exact, self._pareto, self._prune, self._progress = exact, pareto, prune, progress
        self._num_jobs = num_jobs = seen.num_jobs or 1
        self._schemes = list(space.schemes(seen.profile.num_workers, exact=exact))
        if not self._schemes:
            kind = "exact" if exact else "inexact"
            remedy = "`inexact` admits those that approximate" if exact else "leave `inexact` out"
            rule = f"must admit an {kind} candidate"
            raise ParameterError("schemes", rule, space.families, remedy)
        # Who cuts a batch finer than it has points has no kernel, and no load that others lack.
        filled = [scheme for scheme in self._schemes if not seen.leaves_out(scheme)]
        self._schemes = filled or self._schemes
        self._closings = [c for c in space.closings() if num_jobs % c.jobs_per_round == 0]
        names = [entry_of(scheme).name for scheme in self._schemes]
        places = {name: place for place, name in enumerate(dict.fromkeys(names))}
        self._families: IntArray = np.array([places[name] for name in names])
        self._floors = Floors(self._schemes, seen)
        shape = (len(self._closings), len(self._schemes))
        self._seconds: FloatArray = np.full(shape, np.inf)  # ranked by: `Ranked.equivalent_s`
        self._accuracies: dict[tuple[int, int], Accuracy] = {}  # of those that are not exact
        self._bills: FloatArray = np.full(shape, np.inf)
        self._least_s, self._least_bills = np.full(shape, np.inf), np.zeros(shape)
        self._candidates: list[IntArray] = []  # by closing rule
        self.unfit = self._admit()
        self.total = sum(map(len, self._candidates))
        if not self.total and self.unfit:
            rule = f"plus the delay must not exceed the profile's {seen.profile.num_rounds} rounds"
            remedy = "take fewer jobs, or let the profile repeat"
            raise ParameterError("jobs", rule, num_jobs, remedy)
        if not self.total:
            rule = "must admit a candidate: jobs_per_round must divide the jobs and the models"
            raise ParameterError("jobs_per_round", rule, space.jobs_per_round)
        self._top_size = top
        self._top: FloatArray = np.zeros(0)  # run times, the fastest first, each once
        self._best: FloatArray = np.full(len(places), np.inf)  # of each family
        self._front: tuple[FloatArray, FloatArray] = (np.zeros(0), np.zeros(0))
        self.evaluated = 0

    def run(self) -> Search:
        """Replay whatever may be ranked, and return itself.

        Families that are quickly done come first, and in each the rule that promises most, so that
        what follows meets good incumbents.
        """
        settled = 0
        for family in range(len(self._best)):
            shares = [
                (number, candidates[self._families[candidates] == family])
                for number, candidates in enumerate(self._candidates)
            ]
            shares = [(number, chosen) for number, chosen in shares if len(chosen)]
            shares.sort(key=lambda share: float(self._least_s[share].min()))
            for number, chosen in shares:  # a few of each, to know what is good
                spread = np.linspace(0, len(chosen) - 1, _SAMPLE).astype(np.intp)
                self._replay(number, chosen[np.unique(spread)])
            for number, chosen in shares:
                in_order = chosen[np.argsort(self._least_s[number, chosen], kind="stable")]
                for start in range(0, len(chosen), _BATCH):  # each may prune the next
                    self._replay(number, in_order[start : start + _BATCH])
                settled += len(chosen)
                if self._progress is not None:
                    self._progress(settled, self.total)
        return self

    def ranking(self) -> list[Ranked]:
        """Return the best of all and of every family, the fastest first.

        Of those in a family that take the same time to the last bit, which differ in name only,
        the first stands for all.
        """
        seconds = self._seconds.ravel()
        order = np.argsort(seconds, kind="stable")[: self.evaluated]
        families = self._families[order % len(self._schemes)]
        _, best = np.unique(families, return_index=True)
        short = np.flatnonzero(seconds[order] <= self.threshold())
        outcomes = np.stack([families[short], seconds[order[short]]])
        _, first = np.unique(outcomes, axis=1, return_index=True)
        places = np.union1d(best, short[np.sort(first)][: self._top_size])
        return [self._ranked(int(i)) for i in order[places]]

    def front(self) -> list[Ranked]:
        """Return the trade between time and bill, the fastest first; empty unless asked for."""
        if not self._pareto:
            return []
        chosen = pareto_front(self._seconds.ravel(), bills=self._bills.ravel())
        return [self._ranked(int(i)) for i in chosen]

    def _admit(self) -> int:
        """Find the schemes to look at and their floors; return how many the profile cannot hold."""
        delays, unfit = self._floors.delays, 0
        repeats = {
            wait_out: np.array([self._space.repeats(s, wait_out=wait_out) for s in self._schemes])
            for wait_out in self._space.wait_outs
        }
        for number, closing in enumerate(self._closings):
            k = closing.jobs_per_round
            bundles = self._num_jobs // k
            allowed = delays <= self._seen.longest_delay(jobs_per_round=k)
            allowed &= ~repeats[closing.rule.wait_out]
            fits = (bundles + delays <= self._seen.profile.num_rounds) | (self._seen.repeat is True)
            chosen = np.flatnonzero(allowed & fits)
            self._candidates.append(chosen)
            unfit += int(np.count_nonzero(allowed & ~fits))
            floors = self._floors.runtimes(closing, bundles=bundles, of=chosen)
            self._least_s[number, chosen] = floors
            if self._pareto:
                self._least_bills[number] = self._floors.bills(closing, bundles=bundles)
        return unfit

    def _replay(self, number: int, chosen: IntArray) -> None:
        """Replay, closed in one way, what may be ranked and was not replayed yet."""
        new = np.isinf(self._seconds[number, chosen])
        chosen = chosen[new & self._may_be_ranked(number, chosen)]
        if not len(chosen):
            return
        closing = self._closings[number]
        replayed = batch_replay(
            [self._schemes[i] for i in chosen],
            self._seen,
            rule=closing.rule,
            jobs_per_round=closing.jobs_per_round,
        )
        seconds, times = replayed.runtime_s, self._seen.profile.times
        # Billed is every task that was sent, to its end; rounds that take no time have none.
        worked = replayed.round_seconds > 0
        recorded = times.mean(axis=1)[np.arange(worked.shape[1]) % len(times)]
        shifts = self._floors.shifts(replayed.loads, closing.jobs_per_round)
        bills = times.shape[1] * np.where(worked, recorded + shifts, 0.0).sum(axis=1)
        if not self._exact:
            seconds = self._equivalent(number, chosen, seconds)
        self._seconds[number, chosen], self._bills[number, chosen] = seconds, bills
        self.evaluated += len(chosen)
        self._note(chosen, seconds)
        if self._pareto:
            known = np.concatenate([self._front[0], seconds])
            known_bills = np.concatenate([self._front[1], bills])
            rows = pareto_front(known, bills=known_bills)
            self._front = (known[rows], known_bills[rows])

    def _equivalent(self, number: int, chosen: IntArray, seconds: FloatArray) -> FloatArray:
        """Return `Ranked.equivalent_s` of run times; of what cannot be ranked, a lower bound."""
        self._least_s[number, chosen] = seconds  # no gradient is worth more than an exact one
        equivalent = seconds.copy()
        for place in np.argsort(seconds, kind="stable"):
            scheme = int(chosen[place])
            if self._may_be_ranked(number, chosen[place : place + 1]).all():
                found = accuracy(self._setting(number, scheme), self._seen)
                self._accuracies[number, scheme] = found
                equivalent[place] = _per(found.information, seconds[place])
                self._note(chosen[place : place + 1], equivalent[place : place + 1])
        return equivalent

    def _note(self, chosen: IntArray, seconds: FloatArray) -> None:
        """Keep what is best of all, and of each family."""
        self._top = np.unique(np.concatenate([self._top, seconds]))[: self._top_size]
        np.minimum.at(self._best, self._families[chosen], seconds)

    def _may_be_ranked(self, number: int, chosen: IntArray) -> BoolArray:
        if not self._prune:
            return np.ones(len(chosen), dtype=np.bool_)
        floors = self._least_s[number, chosen] * SLACK
        beaten_by = np.maximum(self._best[self._families[chosen]], self.threshold())
        kept: BoolArray = floors <= beaten_by
        if self._pareto:
            seconds, bills = self._front
            least = self._least_bills[number, chosen] * SLACK
            kept |= ~_dominated(floors, bills=least, by_seconds=seconds, by_bills=bills)
        return kept

    def threshold(self) -> float:
        """Return the seconds above which nothing is among the best of all."""
        return float(self._top[-1]) if len(self._top) == self._top_size else np.inf

    def _ranked(self, candidate: int) -> Ranked:
        number, scheme = divmod(candidate, len(self._schemes))
        setting, held = self._setting(number, scheme), self._held
        k, seen = setting.jobs_per_round, self._accuracies.get((number, scheme))
        row = Ranked(
            setting=setting,
            runtime_s=float((self._seconds if seen is None else self._least_s)[number, scheme]),
            ideal_s=self._seen.ideal_s(self._num_jobs, jobs_per_round=k),
            billed_worker_s=float(self._bills[number, scheme]),
            holdout_s=replay(setting, held).runtime_s if held else None,
            holdout_ideal_s=held.ideal_s(self._num_jobs, jobs_per_round=k) if held else None,
        )
        return row if seen is None else with_accuracy(row, seen, held)

    def _setting(self, number: int, scheme: int) -> Setting:
        closing = self._closings[number]
        return Setting(
            scheme=self._schemes[scheme], rule=closing.rule, jobs_per_round=closing.jobs_per_round
        )


def with_accuracy(row: Ranked, seen: Accuracy, held: Rehearsal | None) -> Ranked:
    """Return a row with how good its gradients are, on the held-out rounds if there are any."""
    judged = accuracy(row.setting, held) if held else seen
    return replace(
        row,
        error=judged.error,
        information=seen.information,
        holdout_information=judged.information,
    )


def pareto_front(seconds: FloatArray, *, bills: FloatArray) -> IntArray:
    """Return who is best for some price of time against worker-seconds, the fastest first.

    Of equals the first counts. ``seconds`` and ``bills`` (candidates,); returns indices.

    Examples
    --------
    >>> pareto_front(np.array([2.0, 1.0, 3.0]), bills=np.array([5.0, 9.0, 6.0]))
    array([1, 0])
    """
    order = np.lexsort((np.arange(len(seconds)), bills, seconds))
    cheapest_before = np.minimum.accumulate(np.concatenate([[np.inf], bills[order]]))[:-1]
    return order[bills[order] < cheapest_before]


def _dominated(
    seconds: FloatArray, *, bills: FloatArray, by_seconds: FloatArray, by_bills: FloatArray
) -> BoolArray:
    """Return which candidates (m,) a front (f,), the fastest first, leaves no place for.

    Some of the front is faster at the same bill or a lower one.
    """
    faster = np.searchsorted(by_seconds, seconds, side="left")
    cheapest = np.concatenate([[np.inf], by_bills])  # a front's bills fall as its seconds grow
    return cheapest[faster] <= bills
