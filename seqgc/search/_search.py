"""The search's engine: which candidates are replayed, in which order, and what is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from seqgc.errors import ParameterError
from seqgc.ports import BoolArray, FloatArray, IntArray
from seqgc.rounds import Setting
from seqgc.search._floors import Floors
from seqgc.search._rehearsal import Rehearsal
from seqgc.search._space import SearchSpace, family_of
from seqgc.search.kernel import batch_replay

__all__ = ["Progress", "Score", "Search", "pareto_front"]

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of candidates settled, replayed or pruned, and of all."""

_SAMPLE, _BATCH = 32, 512
# Floors are summed in another order than run times: never prune on a rounding error.
_SLACK = 1 - 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A candidate that was replayed."""

    setting: Setting
    runtime_s: float
    billed_worker_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Share:
    """Schemes of one family closed in one way, with what their runs cost at least; (m,) each."""

    closing: int
    schemes: IntArray
    floors: FloatArray
    bills: FloatArray

    def of(self, rows: IntArray) -> _Share:
        return _Share(
            closing=self.closing,
            schemes=self.schemes[rows],
            floors=self.floors[rows],
            bills=self.bills[rows],
        )


class Search:
    """One search's state. A candidate's number says who wins a tie: the lowest.

    The rehearsal says its number of jobs; ``exact``: whether the candidates that are exact are
    searched, or those that are not. The rest is as in `tune`.
    """

    def __init__(
        self,
        rehearsal: Rehearsal,
        *,
        space: SearchSpace,
        exact: bool,
        top: int,
        pareto: bool,
        prune: bool,
        progress: Progress | None,
    ) -> None:
        self._rehearsal, self._space = rehearsal, space
        self._num_jobs = num_jobs = rehearsal.num_jobs or 1
        self._pareto, self._prune, self._progress = pareto, prune, progress
        profile = rehearsal.profile
        self._schemes = list(space.schemes(profile.num_workers, exact=exact))
        if not self._schemes:
            kind = "exact" if exact else "inexact"
            remedy = "`inexact` admits those that approximate" if exact else "leave `inexact` out"
            rule = f"must admit an {kind} candidate"
            raise ParameterError("schemes", rule, space.families, remedy)
        # Who cuts a batch finer than it has points has no kernel, and no load that others lack.
        filled = [scheme for scheme in self._schemes if not rehearsal.leaves_out(scheme)]
        self._schemes = filled or self._schemes
        self._closings = [c for c in space.closings() if num_jobs % c.jobs_per_round == 0]
        names = [family_of(scheme) for scheme in self._schemes]
        places = {name: place for place, name in enumerate(dict.fromkeys(names))}
        self._families: IntArray = np.array([places[name] for name in names])
        self._floors = Floors(self._schemes, rehearsal)
        self._candidates, self.unfit = self._admitted()
        self.total = sum(map(len, self._candidates))
        if not self.total:
            raise self._nothing_fits()
        shape = (len(self._closings), len(self._schemes))
        self._seconds: FloatArray = np.full(shape, np.inf)
        self._bills: FloatArray = np.full(shape, np.inf)
        self._top_size = top
        self._top: FloatArray = np.zeros(0)  # run times, the fastest first, each once
        self._best: FloatArray = np.full(len(places), np.inf)  # of each family
        self._front: tuple[FloatArray, FloatArray] = (np.zeros(0), np.zeros(0))
        self.evaluated = self._settled = 0

    def run(self) -> None:
        """Replay whatever may be ranked.

        Families that are quickly done come first, and in each the rule that promises most, so that
        what follows meets good incumbents.
        """
        for family in range(len(self._best)):
            shares = self._shares(family)
            for share in shares:  # a few of each, to know what is good
                spread = np.linspace(0, len(share.schemes) - 1, _SAMPLE).astype(np.intp)
                self._replay(share.of(np.unique(spread)))
            for share in shares:
                self._sweep(share.of(np.argsort(share.floors, kind="stable")))

    def _shares(self, family: int) -> list[_Share]:
        shares = []
        for number, candidates in enumerate(self._candidates):
            chosen = candidates[self._families[candidates] == family]
            if len(chosen):
                closing = self._closings[number]
                bundles = self._num_jobs // closing.jobs_per_round
                floors = self._floors.runtimes(closing, bundles=bundles, of=chosen)
                bills = np.zeros(len(chosen))
                if self._pareto:
                    bills = self._floors.bills(closing, bundles=bundles)[chosen]
                shares.append(_Share(closing=number, schemes=chosen, floors=floors, bills=bills))
        return sorted(shares, key=lambda share: float(share.floors.min()))

    def ranking(self) -> list[Score]:
        """Return the best of all and of every family, the fastest first.

        Of those in a family that take the same time to the last bit, which differ in name only,
        the first stands for all.
        """
        seconds = self._seconds.ravel()
        order = np.argsort(seconds, kind="stable")[: self.evaluated]
        families = self._families[order % len(self._schemes)]
        _, best = np.unique(families, return_index=True)
        short = np.flatnonzero(seconds[order] <= self._threshold())
        outcomes = np.stack([families[short], seconds[order[short]]])
        _, first = np.unique(outcomes, axis=1, return_index=True)
        places = np.union1d(best, short[np.sort(first)][: self._top_size])
        return [self._score(int(i)) for i in order[places]]

    def front(self) -> list[Score]:
        """Return the trade between time and bill, the fastest first; empty unless asked for."""
        if not self._pareto:
            return []
        chosen = pareto_front(self._seconds.ravel(), bills=self._bills.ravel())
        return [self._score(int(i)) for i in chosen]

    def _admitted(self) -> tuple[list[IntArray], int]:
        """Return the schemes to look at, by rule, and how many more the profile cannot hold."""
        new: dict[str, BoolArray] = {
            wait_out: np.array(
                [not self._space.repeats(s, wait_out=wait_out) for s in self._schemes], dtype=bool
            )
            for wait_out in self._space.wait_outs
        }
        admitted, unfit = [], 0
        delays, recorded = self._floors.delays, self._rehearsal.profile.num_rounds
        for closing in self._closings:
            k = closing.jobs_per_round
            allowed = new[closing.rule.wait_out] & self._space.has_models(delays, jobs_per_round=k)
            fits = (self._num_jobs // k + delays <= recorded) | self._rehearsal.repeat
            admitted.append(np.flatnonzero(allowed & fits))
            unfit += int(np.count_nonzero(allowed & ~fits))
        return admitted, unfit

    def _nothing_fits(self) -> ParameterError:
        jobs, rounds = self._num_jobs, self._rehearsal.profile.num_rounds
        if self.unfit:
            rule = f"plus the delay must not exceed the profile's {rounds} rounds"
            return ParameterError("jobs", rule, jobs, "take fewer jobs, or --repeat the profile")
        rule = "must admit a candidate: jobs_per_round must divide the jobs and the models"
        return ParameterError("jobs_per_round", rule, self._space.jobs_per_round)

    def _replay(self, share: _Share) -> None:
        """Replay what may be ranked and was not replayed yet."""
        new = np.isinf(self._seconds[share.closing, share.schemes])
        number, chosen = share.closing, share.schemes[new & self._may_be_ranked(share)]
        if not len(chosen):
            return
        closing = self._closings[number]
        replayed = batch_replay(
            [self._schemes[i] for i in chosen],
            self._rehearsal,
            rule=closing.rule,
            jobs_per_round=closing.jobs_per_round,
        )
        seconds = replayed.runtime_s
        shifts = self._floors.billed_shifts(closing.jobs_per_round)[chosen]
        bills = self._billed(replayed.round_seconds, shifts)
        self._seconds[number, chosen], self._bills[number, chosen] = seconds, bills
        self.evaluated += len(chosen)
        self._top = np.unique(np.concatenate([self._top, seconds]))[: self._top_size]
        np.minimum.at(self._best, self._families[chosen], seconds)
        if self._pareto:
            known = np.concatenate([self._front[0], seconds])
            known_bills = np.concatenate([self._front[1], bills])
            rows = pareto_front(known, bills=known_bills)
            self._front = (known[rows], known_bills[rows])

    def _sweep(self, share: _Share) -> None:
        """Replay the rest of a share, sorted by floors, in batches; each may prune the next."""
        for start in range(0, len(share.schemes), _BATCH):
            self._replay(share.of(np.arange(start, min(start + _BATCH, len(share.schemes)))))
        self._settled += len(share.schemes)
        if self._progress is not None:
            self._progress(self._settled, self.total)

    def _may_be_ranked(self, share: _Share) -> BoolArray:
        if not self._prune:
            return np.ones(len(share.schemes), dtype=np.bool_)
        floors = share.floors * _SLACK
        beaten_by = np.maximum(self._best[self._families[share.schemes]], self._threshold())
        kept: BoolArray = floors <= beaten_by
        if self._pareto:
            seconds, bills = self._front
            kept |= ~_dominated(
                floors, bills=share.bills * _SLACK, by_seconds=seconds, by_bills=bills
            )
        return kept

    def _threshold(self) -> float:
        """Seconds above which nothing is among the best of all."""
        return float(self._top[-1]) if len(self._top) == self._top_size else np.inf

    def _billed(self, round_seconds: FloatArray, shifts: FloatArray) -> FloatArray:
        """Worker-seconds (candidates,): every task that was sent, to its end.

        In a round that takes no time nobody had anything to do.
        """
        times = self._rehearsal.profile.times
        worked = round_seconds > 0
        recorded = times.sum(axis=1)[np.arange(worked.shape[1]) % len(times)]
        billed: FloatArray = worked @ recorded + times.shape[1] * shifts * worked.sum(axis=1)
        return billed

    def _score(self, candidate: int) -> Score:
        closing, scheme = divmod(candidate, len(self._schemes))
        return Score(
            setting=Setting(
                scheme=self._schemes[scheme],
                rule=self._closings[closing].rule,
                jobs_per_round=self._closings[closing].jobs_per_round,
            ),
            runtime_s=float(self._seconds[closing, scheme]),
            billed_worker_s=float(self._bills[closing, scheme]),
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

    Examples
    --------
    >>> two = np.array([2.5, 2.5])
    >>> one = np.array([2.0])
    >>> _dominated(two, bills=np.array([5.0, 4.0]), by_seconds=one, by_bills=np.array([5.0]))
    array([ True, False])
    """
    faster = np.searchsorted(by_seconds, seconds, side="left")
    cheapest = np.concatenate([[np.inf], by_bills])  # a front's bills fall as its seconds grow
    return cheapest[faster] <= bills
