"""A search that replays candidates in batches, and skips candidates that cannot be among the best.

A candidate need not be replayed if a lower bound of its run time, its *floor*, is too high. A round
with work lasts at least until ``min((1+mu) kappa, slowest)``. It also lasts until the answers have
arrived that every round of the scheme needs (`necessary_answers`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from seqgc.codes import make_code
from seqgc.errors import ParameterError
from seqgc.ports import BoolArray, FloatArray, IntArray
from seqgc.rounds import Setting
from seqgc.schemes import Scheme, entry_of
from seqgc.search._rehearsal import Reading, Rehearsal
from seqgc.search._replay import Accuracy, accuracy, replay
from seqgc.search._space import Closing, SearchSpace
from seqgc.search.kernel import Covers, Need, batch_replay, least_loads, necessary_answers
from seqgc.stragglers import over_bound

__all__ = [
    "SLACK",
    "Floors",
    "Progress",
    "PrunedSearch",
    "Ranked",
    "Stop",
    "pareto_front",
    "with_accuracy",
]

Progress: TypeAlias = Callable[[int, int], None]
"""A function that is called with the number of candidates replayed or pruned, and the total."""

Stop: TypeAlias = Callable[[], bool]
"""A function that returns True when a search must end with the candidates replayed so far."""

_SAMPLE, _BATCH = 8, 8192
# Floors and run times are summed in different orders: never prune because of a rounding error.
SLACK = 1 - 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """One candidate and the outcome of its run.

    ``runtime_s`` is the run time, and ``ideal_s`` is the clairvoyant bound for the same number of
    jobs per round, both in seconds, on the rounds by which the search chooses. ``holdout_s`` and
    ``holdout_ideal_s`` are the same quantities on the held-out rounds. ``billed_worker_s`` are the
    worker-seconds of all tasks to their end, because a cancelled function runs to its end. For a
    scheme that deals work, these figures depend on ``reading``, the interpretation of the
    recording.

    For a scheme that is not exact, ``error`` is the largest error bound of its gradients (see
    `seqgc.ports.Decoding`), on the held-out rounds if there are any. ``information`` is the mean
    value of a gradient as a fraction of that of an exact gradient (docs/mathematics.md, 7.1), and
    ``holdout_information`` is the same on the held-out rounds.
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
        """The run time divided by `information`: the time for the value of exact gradients."""
        return _per(self.information, self.runtime_s)

    @property
    def holdout_equivalent_s(self) -> float | None:
        """`equivalent_s` on the held-out rounds; None if there are no held-out rounds."""
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


class PrunedSearch:
    """The state of one search.

    Results are in arrays (closing rules, schemes), whose values are infinite before a replay.
    ``seen`` has the number of jobs and the rounds by which the search chooses; ``held`` has the
    held-out rounds. If ``exact`` is True, the candidates are the exact schemes; otherwise they are
    the other schemes, which are ranked by `Ranked.equivalent_s`. The other arguments are as in
    `tune`. In a tie, the candidate with the lowest number wins.
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
        stop: Stop,
    ) -> None:
        self._seen, self._held, self._space = seen, held, space
        self._exact, self._pareto, self._prune = exact, pareto, prune
        self._progress, self._stop = progress, stop
        self._num_jobs = num_jobs = seen.num_jobs or 1
        self._schemes = list(space.schemes(seen.profile.num_workers, exact=exact))
        if not self._schemes:
            kind = "exact" if exact else "inexact"
            remedy = "set `inexact` to admit approximations" if exact else "leave `inexact` out"
            rule = f"must admit an {kind} candidate"
            raise ParameterError("schemes", rule, space.families, remedy)
        # A scheme that cuts a batch into more pieces than points has no kernel. It is left out,
        # because other schemes have the same loads.
        filled = [scheme for scheme in self._schemes if not seen.leaves_out(scheme)]
        self._schemes = filled or self._schemes
        self._closings = [c for c in space.closings() if num_jobs % c.jobs_per_round == 0]
        names = [entry_of(scheme).name for scheme in self._schemes]
        places = {name: place for place, name in enumerate(dict.fromkeys(names))}
        self._families: IntArray = np.array([places[name] for name in names])
        self._floors = Floors(self._schemes, seen)
        shape = (len(self._closings), len(self._schemes))
        self._seconds: FloatArray = np.full(shape, np.inf)  # `Ranked.equivalent_s`
        self._accuracies: dict[tuple[int, int], Accuracy] = {}  # only of inexact candidates
        self._bills: FloatArray = np.full(shape, np.inf)
        self._least_s, self._least_bills = np.full(shape, np.inf), np.zeros(shape)
        self._candidates: list[IntArray] = []  # by closing rule
        self.unfit = self._admit()
        self.total = sum(map(len, self._candidates))
        if not self.total and self.unfit:
            rule = f"plus the delay must not exceed the profile's {seen.profile.num_rounds} rounds"
            remedy = "take fewer jobs, or repeat the profile"
            raise ParameterError("jobs", rule, num_jobs, remedy)
        if not self.total:
            rule = "must admit a candidate: jobs_per_round must divide the jobs and the models"
            raise ParameterError("jobs_per_round", rule, space.jobs_per_round)
        self._top_size = top
        self._top: FloatArray = np.zeros(0)  # run times, the fastest first, each once
        self._best: FloatArray = np.full(len(places), np.inf)  # shortest run time of each family
        self._front: tuple[FloatArray, FloatArray] = (np.zeros(0), np.zeros(0))
        self.evaluated = 0

    def run(self) -> PrunedSearch:
        """Replay all candidates that may be ranked, or until ``stop``, and return ``self``.

        Families with few candidates are replayed first, and within a family the rules with the
        lowest floors. Good results are then known early, and most other candidates can be pruned.
        """
        settled = 0
        for family in range(len(self._best)):
            shares = [
                (number, candidates[self._families[candidates] == family])
                for number, candidates in enumerate(self._candidates)
            ]
            shares = [(number, chosen) for number, chosen in shares if len(chosen)]
            shares.sort(key=lambda share: float(self._least_s[share].min()))
            for number, chosen in shares:  # a sample of each rule, for a good threshold
                spread = np.linspace(0, len(chosen) - 1, _SAMPLE).astype(np.intp)
                self._replay(number, chosen[np.unique(spread)])
            for number, chosen in shares:
                in_order = chosen[np.argsort(self._least_s[number, chosen], kind="stable")]
                for start in range(0, len(chosen), _BATCH):  # each batch may prune the next
                    self._replay(number, in_order[start : start + _BATCH])
                settled += len(chosen)
                if self._progress is not None and not self._stop():
                    self._progress(settled, self.total)
        return self

    def ranking(self) -> list[Ranked]:
        """Return the ``top`` best candidates, and the best of each family, in order of run time.

        Of candidates of one family with exactly the same time, only the first is included.
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
        """Return the Pareto front in order of run time; an empty list if it was not requested."""
        if not self._pareto:
            return []
        chosen = pareto_front(self._seconds.ravel(), bills=self._bills.ravel())
        return [self._ranked(int(i)) for i in chosen]

    def _admit(self) -> int:
        """Determine the candidates and floors.

        Return the number of candidates that are left out because they need a longer profile.
        """
        delays, unfit = self._floors.delays, 0
        for number, closing in enumerate(self._closings):
            k = closing.jobs_per_round
            bundles = self._num_jobs // k
            allowed = delays <= self._seen.longest_delay(jobs_per_round=k)
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
        """Replay the chosen schemes that are new and may be ranked, under one closing rule.

        Nothing is replayed if the search must stop, unless nothing has been replayed yet.
        """
        if self.evaluated and self._stop():
            return
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
        # Every task is billed to its end; a round that takes no time has no task.
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
        """Return `Ranked.equivalent_s` for the chosen schemes' run times ``seconds``.

        If a scheme cannot be ranked, the result is a lower bound.
        """
        self._least_s[number, chosen] = seconds  # no gradient is worth more than an exact one
        equivalent = seconds.copy()
        for place in np.argsort(seconds, kind="stable"):
            scheme = int(chosen[place])
            if self._may_be_ranked(number, chosen[place : place + 1]).all():
                gradients = accuracy(self._setting(number, scheme), self._seen)
                self._accuracies[number, scheme] = gradients
                equivalent[place] = _per(gradients.information, seconds[place])
                self._note(chosen[place : place + 1], equivalent[place : place + 1])
        return equivalent

    def _note(self, chosen: IntArray, seconds: FloatArray) -> None:
        """Update the best run times overall, and of each family."""
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
        """Return the run time above which a candidate is not among the ``top`` best."""
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
    """Return a row with the accuracy of its gradients, on the held-out rounds if there are any."""
    judged = accuracy(row.setting, held) if held else seen
    return replace(
        row,
        error=judged.error,
        information=seen.information,
        holdout_information=judged.information,
    )


def pareto_front(seconds: FloatArray, *, bills: FloatArray) -> IntArray:
    """Return the indices of the candidates on the Pareto front, in order of ``seconds``.

    A candidate is on the front if no other is both faster and cheaper. ``seconds`` and ``bills``
    (worker-seconds) are (candidates,). If candidates are equal, only the first is on the front.

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
    """Return a mask (m,) of the candidates that are slower and not cheaper than one on a front.

    The front (f,) is sorted by seconds.
    """
    faster = np.searchsorted(by_seconds, seconds, side="left")
    cheapest = np.concatenate([[np.inf], by_bills])  # a front's bills fall as its seconds grow
    return cheapest[faster] <= bills


_CHUNK = 2048  # number of candidates computed at a time, which bounds the memory


class Floors:
    """Lower bounds of the run time and the bill of every scheme, for each closing rule.

    When the profile of the rehearsal ends, it is repeated.
    """

    def __init__(self, schemes: Sequence[Scheme], rehearsal: Rehearsal) -> None:
        self._times = times = rehearsal.profile.times
        self._alpha, self._base_load = rehearsal.slope, rehearsal.profile.meta.base_load
        cuts = [(least_loads(s, rehearsal.batch), rehearsal.leaves_out(s)) for s in schemes]
        self._least: FloatArray = np.array([loads.min() for loads, _ in cuts])
        self._mean: FloatArray = np.array([loads.mean() for loads, _ in cuts])
        self.delays: IntArray = np.array([scheme.delay for scheme in schemes], dtype=np.intp)
        needs = {
            conforms: [  # a task that is never sent need not be answered
                Need(answers=0) if leaves_out else necessary_answers(scheme, conforms=conforms)
                for scheme, (_, leaves_out) in zip(schemes, cuts, strict=True)
            ]
            for conforms in (False, True)
        }
        # The number of rounds after the first round of the last bundle that certainly have work.
        self._tail = np.where([need.to_the_end for need in needs[False]], self.delays, 0)
        rows: dict[Need, int] = {}
        self._rows = {
            conforms: np.array([rows.setdefault(need, len(rows)) for need in of_schemes])
            for conforms, of_schemes in needs.items()
        }
        fastest_first = np.sort(times, axis=1)
        self._first, self._slowest = fastest_first[:, 0], fastest_first[:, -1]
        needed_s = [_met_at(need, times, fastest_first) for need in rows]
        self._needed_s: FloatArray = np.stack(needed_s)

    def shifts(self, loads: FloatArray, jobs_per_round: int) -> FloatArray:
        """Return the seconds that loads (fractions of a model's batch) add to recorded times."""
        return self._alpha * (jobs_per_round * loads - self._base_load)

    def bills(self, closing: Closing, *, bundles: int) -> FloatArray:
        """Return lower bounds (schemes,) on the worker-seconds of a run, with cancelled work."""
        rounds = bundles + self._tail
        each = self._times.sum(axis=1)[np.arange(rounds.max()) % len(self._times)]
        recorded = np.concatenate([[0.0], np.cumsum(each)])  # the first 0, 1, ... rounds
        shifts = self.shifts(self._mean, closing.jobs_per_round)
        bills: FloatArray = recorded[rounds] + self._times.shape[1] * rounds * shifts
        return bills

    def runtimes(self, closing: Closing, *, bundles: int, of: IntArray) -> FloatArray:
        """Return lower bounds (m,) on the seconds of ``bundles`` jobs with schemes ``of`` (m,)."""
        floors = np.empty(len(of))
        for start in range(0, len(of), _CHUNK):
            part = slice(start, start + _CHUNK)
            floors[part] = self._runtimes(of[part], closing, bundles)
        return floors

    def _runtimes(self, part: IntArray, closing: Closing, bundles: int) -> FloatArray:
        least = closing.jobs_per_round * self._least[part, None]
        shifts = self.shifts(least, 1)
        rows = self._rows[closing.rule.wait_out != "feasible"][part]
        needs, first, rounds = self._needed_s[rows], self._first, len(self._times)
        tolerance = np.minimum(first + closing.rule.mu * (first + shifts), self._slowest)
        # A recorded round takes the same time in every repetition: count the repetitions.
        played = np.bincount(np.arange(bundles) % rounds, minlength=rounds)
        total: FloatArray = (np.maximum(tolerance, needs) + shifts) @ played
        tail = self._tail[part]
        for later in range(int(tail.max())):
            recorded = (bundles + later) % rounds
            total += np.where(later < tail, tolerance[:, recorded] + shifts[:, 0], 0.0)
        return total


def _met_at(need: Need, times: FloatArray, fastest_first: FloatArray) -> FloatArray:
    """Return the times (rounds,), in seconds, at which a need is met in each recorded round."""
    options, count = [], need.answers
    if need.code is not None:
        kind, s = need.code
        code = make_code(kind, times.shape[1], s)
        if code.covers:
            covers = Covers([code])
            options.append(covers.first(times[:, covers.workers])[:, 0])
        else:  # any n - s answers suffice
            count = code.n - s if count is None else min(count, code.n - s)
    if count is not None:
        options.append(fastest_first[:, count - 1] if count > 0 else np.zeros(len(times)))
    earliest: FloatArray = np.min(options, axis=0)
    return earliest
