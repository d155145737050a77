"""What rounds of SR-SGC need (docs/mathematics.md, sections 3.2, 4 and 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from seqgc.ports import BoolArray, IntArray
from seqgc.schemes import SRSGC, Scheme
from seqgc.search.kernel._arrivals import Arrivals, SmallInts
from seqgc.search.kernel._conditions import Conditions
from seqgc.search.kernel._dispatch import (
    Kernel,
    Need,
    adds_results,
    kernel_of,
    necessary_answers,
    stands_for_others,
)
from seqgc.search.kernel._many_codes import Codes
from seqgc.search.kernel._thresholds import History, Thresholds, after_last
from seqgc.search.kernel._windows import BurstyWindow

__all__ = ["SRSGCConforms", "SRSGCFeasible"]


class Reattempts:
    """Who reattempts the job of B rounds ago (`SRSGCSchedule`).

    ``schemes`` differ in W, lam and family alone.

    Attributes
    ----------
    chosen : (n, candidates) bool
        Who does so in the open round.
    """

    def __init__(self, schemes: Sequence[SRSGC], history: History, *, num_jobs: int) -> None:
        self._history, self._num_jobs, self._delay = history, num_jobs, schemes[0].B
        tolerated = [scheme.s for scheme in schemes]
        self._codes = Codes(history.arrivals, tolerated, [scheme.family for scheme in schemes])
        self._wanted_results = history.arrivals.n - np.array(tolerated)
        # Of the groups; 0 without any.
        sizes = [scheme.s + 1 if scheme.family == "rep" else 0 for scheme in schemes]
        self._sizes: IntArray = np.array(sizes)
        # For the jobs of the last B rounds: who returned the job's result in the job's own round.
        self._returned: list[BoolArray] = []
        self._due: BoolArray = np.zeros(history.shape, dtype=np.bool_)  # the same of the one due
        self.chosen: BoolArray = np.zeros(history.shape, dtype=np.bool_)

    def idle(self, round: int) -> BoolArray | None:
        """Return where nobody has anything to do, (candidates,): nothing new or to reattempt."""
        if round < self._num_jobs:
            return None
        idle: BoolArray = np.logical_not(self.chosen.any(axis=0))
        return idle

    def needed(self, round: int) -> SmallInts:
        """Answers that the job due now needs, (candidates,).

        As many workers reattempt as results are wanting of n - s, so that all of them must answer
        unless the code has covers, one of which may be complete before.
        """
        needed = after_last(self.chosen, self._history.arrivals.rank[round])
        covered = self._codes.covered
        if needed[covered].any():
            still = self._codes.still_needed(round, self.chosen, known=self._due)
            needed[covered] = np.where(needed[covered] > 0, still, 0)
        return needed

    def close(self, round: int) -> None:
        """Move on by a round; the history has been fed."""
        if round < self._num_jobs:
            self._returned.append(~(self._history.stragglers(round) | self.chosen))
        self.chosen = np.zeros_like(self.chosen)
        if round + 1 >= self._delay and self._returned:
            self._choose(self._returned.pop(0))

    def _choose(self, returned: BoolArray) -> None:
        """Choose the first workers, in order, without a result: Rep, in groups without any."""
        self._due = returned
        wanting = self._wanted_results - returned.sum(axis=0)
        if len(self._codes.covered):
            wanting[self._codes.covered[self._codes.decode(returned)]] = 0
        some = np.flatnonzero(wanting > 0)
        wanted = ~returned
        sizes = self._sizes[some]
        for size in np.unique(sizes[sizes > 0]):
            which = some[sizes == size]
            groups = returned[:, which].reshape(-1, size, len(which)).any(axis=1)
            wanted[:, which] &= ~np.repeat(groups, size, axis=0)
        so_far = np.cumsum(wanted[:, some], axis=0, dtype=self._history.arrivals.dtype)
        self.chosen[:, some] = wanted[:, some] & (so_far <= wanting[some])


class SRSGCFeasible(Thresholds):
    """The job due now must be decodable; whatever else is missing can still be reattempted."""

    def __init__(self, schemes: Sequence[SRSGC], arrivals: Arrivals, *, num_jobs: int) -> None:
        self._history = History(arrivals, len(schemes))
        self._reattempts = Reattempts(schemes, self._history, num_jobs=num_jobs)

    def needed(self, round: int) -> IntArray:
        return self._reattempts.needed(round).astype(np.intp)

    def idle(self, round: int) -> BoolArray | None:
        return self._reattempts.idle(round)

    def close(self, round: int, answered: IntArray) -> None:
        self._history.close(round, answered)
        self._reattempts.close(round)


class SRSGCConforms(Thresholds):
    """SR-SGC's pattern must conform.

    Any W rounds are bursty, or in each of them at most s straggle, or (Rep) every group answers in
    each of them; with ``bursty_only``, they are bursty.

    That every job is then decoded in time is Proposition 3.1 of the paper, so feasibility needs no
    look; who reattempts what is followed for the end of the run, where rounds may be idle.
    ``schemes`` differ in lam and family alone.
    """

    def __init__(
        self, schemes: Sequence[SRSGC], arrivals: Arrivals, *, num_jobs: int, bursty_only: bool
    ) -> None:
        self._n, self._length = arrivals.n, schemes[0].W
        self._history = History(arrivals, len(schemes))
        self._reattempts = Reattempts(schemes, self._history, num_jobs=num_jobs)
        lam = np.array([scheme.lam for scheme in schemes], dtype=arrivals.dtype)
        self._bursty = BurstyWindow(self._history, B=schemes[0].B, W=schemes[0].W, lam=lam)
        # What the models of single rounds need, (rounds, candidates), and where they failed last.
        self._of_each_round = [] if bursty_only else _of_each_round(schemes, arrivals)
        self._last_failed = [np.full(len(schemes), -1) for _ in self._of_each_round]

    def needed(self, round: int) -> IntArray:
        needed, first = self._bursty.needed(round), max(0, round - self._length + 1)
        for of_round, last in zip(self._of_each_round, self._last_failed, strict=True):
            option = np.where(last < first, of_round[round], self._n + 1)
            needed = np.minimum(needed, option)
        return needed.astype(np.intp)

    def idle(self, round: int) -> BoolArray | None:
        return self._reattempts.idle(round)

    def close(self, round: int, answered: IntArray) -> None:
        for of_round, last in zip(self._of_each_round, self._last_failed, strict=True):
            last[answered < of_round[round]] = round
        self._history.close(round, answered)
        self._reattempts.close(round)
        self._bursty.close(round)


def _of_each_round(schemes: Sequence[SRSGC], arrivals: Arrivals) -> list[IntArray]:
    """Return the answers that `PerRound` and (Rep) `EveryGroup` need, (rounds, candidates) each."""
    num_rounds = len(arrivals.rank)
    per_round = np.array([scheme.n - scheme.s for scheme in schemes])
    options = [np.broadcast_to(per_round, (num_rounds, len(schemes)))]
    rep = np.array([scheme.family == "rep" for scheme in schemes])
    if rep.any():
        tolerated = [scheme.s for scheme in schemes if scheme.family == "rep"]
        codes = Codes(arrivals, tolerated, ["rep"] * len(tolerated))
        every_group = np.full((num_rounds, len(schemes)), arrivals.n + 1)
        every_group[:, rep] = [codes.needed(round) for round in range(num_rounds)]
        options.append(every_group)
    return options


@kernel_of.register
def _(scheme: SRSGC, conditions: Conditions) -> Kernel:
    """Of SR-SGC, feasibility knows the base code and B alone."""
    if conditions.feasible:
        decisions: tuple[object, ...] = (SRSGC, scheme.B, scheme.family, scheme.s)
        return Kernel(group=(SRSGC, scheme.B), decisions=decisions, thresholds=_thresholds)
    return Kernel(group=(SRSGC, scheme.B, scheme.W), decisions=scheme, thresholds=_thresholds)


def _thresholds(
    schemes: Sequence[Scheme], arrivals: Arrivals, conditions: Conditions
) -> Thresholds:
    sr_sgc = cast("Sequence[SRSGC]", schemes)
    num_jobs = conditions.bundles(sr_sgc[0])
    if conditions.feasible:
        return SRSGCFeasible(sr_sgc, arrivals, num_jobs=num_jobs)
    return SRSGCConforms(sr_sgc, arrivals, num_jobs=num_jobs, bursty_only=conditions.bursty_only)


@necessary_answers.register
def _(scheme: SRSGC, *, conforms: bool) -> Need:
    """Return what conforms: at most lam stragglers or (Rep) an answer in every group."""
    if not conforms:
        return Need(answers=0)
    code = ("rep", scheme.s) if scheme.family == "rep" else None
    return Need(answers=scheme.n - scheme.lam, code=code)


@stands_for_others.register
def _(scheme: SRSGC) -> bool:
    """Whether it has the first W and lam that give s: what is sent depends on B and s alone."""
    return scheme.W == scheme.B + 1 and scheme.lam == min(2 * scheme.s, scheme.n)


@adds_results.register
def _(scheme: SRSGC) -> bool:
    return scheme.family != "cyclic"
