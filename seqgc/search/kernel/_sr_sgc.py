"""Kernel of SR-SGC (docs/mathematics.md, sections 3.2, 4 and 6)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from seqgc.ports import BoolArray, IntArray
from seqgc.schemes import SRSGC
from seqgc.search.kernel._arrivals import SmallInts
from seqgc.search.kernel._dispatch import (
    Kernel,
    Need,
    by_thresholds,
    kernel_of,
    necessary_answers,
)
from seqgc.search.kernel._thresholds import (
    AnswerHistory,
    BurstyWindow,
    Codes,
    Conforms,
    Thresholds,
    Window,
    after_last,
)

__all__ = ["SRSGCFeasible"]


class SRSGCFeasible(Thresholds):
    """The thresholds of feasible rounds, which decode the job whose deadline is the open round.

    This job began B rounds ago. The missing results of later jobs can be reattempted in later
    rounds. ``_chosen`` (n, candidates) are the workers that reattempt the job, chosen as by
    `SRSGCSchedule`. ``schemes`` differ only in W, lam and family.
    """

    def __init__(self, schemes: Sequence[SRSGC], history: AnswerHistory, num_jobs: int) -> None:
        self._history, self._num_jobs, self._delay = history, num_jobs, schemes[0].B
        tolerated = [scheme.s for scheme in schemes]
        self._codes = Codes(history.arrivals, tolerated, [scheme.family for scheme in schemes])
        self._wanted_results = history.arrivals.n - np.array(tolerated)
        sizes = [scheme.s + 1 if scheme.family == "rep" else 0 for scheme in schemes]
        self._group_sizes: IntArray = np.array(sizes)  # 0 without groups
        # For each job of the last B rounds: the workers that returned a result in its own round.
        self._returned: list[BoolArray] = []
        # The same for the job whose deadline is the open round.
        self._due: BoolArray = np.zeros(history.shape, dtype=np.bool_)
        self._chosen: BoolArray = np.zeros(history.shape, dtype=np.bool_)

    def idle(self, round: int) -> BoolArray | None:
        """Return a mask of the candidates with no new job, and no job to reattempt."""
        if round < self._num_jobs:
            return None
        idle: BoolArray = np.logical_not(self._chosen.any(axis=0))
        return idle

    def needed(self, round: int) -> SmallInts:
        """Return the number of answers that the job needs.

        If m results are missing to n - s, m workers reattempt the job. Therefore all m workers must
        answer. If the code has covers, fewer answers may complete a cover.
        """
        needed = after_last(self._chosen, self._history.arrivals.rank[round])
        covered = self._codes.covered
        if needed[covered].any():
            still = self._codes.still_needed(round, self._chosen, known=self._due)
            needed[covered] = np.where(needed[covered] > 0, still, 0)
        return needed

    def close(self, round: int) -> None:
        if round < self._num_jobs:
            self._returned.append(~(self._history.stragglers(round) | self._chosen))
        self._chosen = np.zeros_like(self._chosen)
        if round + 1 >= self._delay and self._returned:
            self._choose(self._returned.pop(0))

    def _choose(self, returned: BoolArray) -> None:
        """Choose the first workers that have not returned a result, to reattempt the job.

        With a repetition code, only workers of groups without any result are chosen.
        """
        self._due = returned
        wanting = self._wanted_results - returned.sum(axis=0)
        if len(self._codes.covered):
            wanting[self._codes.covered[self._codes.decode(returned)]] = 0
        some = np.flatnonzero(wanting > 0)
        wanted = ~returned
        sizes = self._group_sizes[some]
        for size in np.unique(sizes[sizes > 0]):
            which = some[sizes == size]
            groups = returned[:, which].reshape(size, -1, len(which)).any(axis=0)
            wanted[:, which] &= ~np.tile(groups, (size, 1))
        so_far = np.cumsum(wanted[:, some], axis=0, dtype=self._history.arrivals.dtype)
        self._chosen[:, some] = wanted[:, some] & (so_far <= wanting[some])


def _conforms(
    schemes: Sequence[SRSGC], history: AnswerHistory, num_jobs: int, *, bursty_only: bool
) -> Conforms:
    """Return the thresholds of rounds that conform.

    In any W rounds, the pattern is bursty, or each round has at most s stragglers, or (with a
    repetition code) each round has an answer in every group.
    """
    lam = np.array([scheme.lam for scheme in schemes], dtype=history.arrivals.dtype)
    models: list[Window] = [BurstyWindow(history, B=schemes[0].B, W=schemes[0].W, lam=lam)]
    if not bursty_only:  # with repetition, at most s stragglers leave an answer in every group
        kinds = ["rep" if scheme.family == "rep" else None for scheme in schemes]
        models.append(Codes(history.arrivals, [scheme.s for scheme in schemes], kinds))
    everybody = np.ones(len(schemes), dtype=np.bool_)
    ends = SRSGCFeasible(schemes, history, num_jobs)
    return Conforms(history, models, span=schemes[0].W, ends=ends, may_be_idle=everybody)


@kernel_of.register
def _(scheme: SRSGC, *, feasible: bool, bursty_only: bool) -> Kernel | None:
    """Return the kernel; if rounds must only be feasible, only the base code and B matter."""
    if scheme.late == "take":
        return None
    if feasible:
        group = (SRSGC, scheme.B)
        decisions = (*group, scheme.family, scheme.s)
        return Kernel(group=group, decisions=decisions, play=by_thresholds(SRSGCFeasible))
    thresholds = partial(_conforms, bursty_only=bursty_only)
    return Kernel(
        group=(SRSGC, scheme.B, scheme.W), decisions=scheme, play=by_thresholds(thresholds)
    )


@necessary_answers.register
def _(scheme: SRSGC, *, conforms: bool) -> Need:
    """Return the answers of rounds that conform.

    They have at most lam stragglers, or (with a repetition code) an answer in every group.
    """
    if not conforms:
        return Need(answers=0)
    code = ("rep", scheme.s) if scheme.family == "rep" else None
    return Need(answers=scheme.n - scheme.lam, code=code)
