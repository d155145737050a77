"""Kernel of M-SGC (docs/mathematics.md, sections 3.3, 4 and 6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from seqgc.ports import BoolArray
from seqgc.schemes import MSGC
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
    ArbitraryWindow,
    BurstyWindow,
    Codes,
    Conforms,
    Recent,
    Thresholds,
    Window,
    after_last,
)

__all__ = ["MSGCFeasible"]


class MSGCFeasible(Thresholds):
    """The thresholds of feasible rounds: every job keeps a chance (`MSGCSchedule.feasible`).

    A job in slot d with T - d slots to come is lost permanently if a worker owes it more than
    min(B, T - d) chunks, because the worker makes up for one chunk in each of its adaptive slots,
    W-1 ... T = W-2+B. Also, the workers that owe nothing must suffice to decode the job's next D2
    group; if the slot is adaptive, only workers that answer now count. Before the round, both
    conditions hold with one round less. So all workers that owe min(B, T - d + 1) chunks must
    answer, and enough of the workers that owe nothing to decode.

    ``_missing`` (n, candidates) is the number of D1 chunks that each worker owes the jobs in slots
    W-1, W, ..., W-2+B of the open round. In slots 0 ... W-2 a chunk is missed whenever the worker
    straggles, so that the first array is the count over W-1 rounds; afterwards, every answer makes
    up for one chunk. ``schemes`` differ only in lam and family.
    """

    def __init__(self, schemes: Sequence[MSGC], history: AnswerHistory, num_jobs: int) -> None:
        self._history, self._num_jobs = history, num_jobs
        self._burst, self._first_adaptive = schemes[0].B, schemes[0].W - 1
        self._recent = Recent(history, self._first_adaptive)
        none = np.zeros_like(self._recent.times)
        self._missing: list[SmallInts] = [self._recent.times] + [none] * (self._burst - 1)
        self._uncoded = _uncoded(schemes)
        kinds = [None if scheme.lam == scheme.n else scheme.family for scheme in schemes]
        self._codes = Codes(history.arrivals, [scheme.lam for scheme in schemes], kinds)

    def needed(self, round: int) -> SmallInts:
        arrivals, candidates = self._history.arrivals, self._history.shape[1]
        needed: SmallInts = np.ones(candidates, dtype=arrivals.dtype)
        for most, missing in self._jobs(round):
            np.maximum(needed, after_last(missing >= most, arrivals.rank[round]), out=needed)
            np.maximum(needed, self._codes.needed(round, missing == 0), out=needed)
        return needed

    def idle(self, round: int) -> BoolArray | None:
        """Return the candidates without coded results (lam = n), first attempts and debts."""
        first_attempts = round - (self._first_adaptive - 1) < self._num_jobs
        if first_attempts or not self._uncoded.any():
            return None
        owed = [missing.any(axis=0) for _, missing in self._jobs(round)]
        idle: BoolArray = self._uncoded & ~np.any(owed, axis=0)
        return idle

    def close(self, round: int) -> None:
        answered = ~self._history.stragglers(round)
        later = [missing - (answered & (missing > 0)) for missing in self._missing[:-1]]
        self._recent.close(round)
        self._missing = [self._recent.times, *later]

    def _jobs(self, round: int) -> Iterator[tuple[int, SmallInts]]:
        """Yield, for each binding job, the most chunks that may be missing, and the missing ones.

        Of the jobs in slots up to W-1, the oldest one binds, because more rounds count more
        stragglings. In the first rounds this is job 0, and the count, cut at round 0, covers
        exactly its rounds.
        """
        for later, missing in enumerate(self._missing):
            job = round - self._first_adaptive - later
            if job < self._num_jobs and (job >= 0 or later == 0):
                yield self._burst - later, missing


def _uncoded(schemes: Sequence[MSGC]) -> BoolArray:
    return np.array([scheme.lam == scheme.n for scheme in schemes])


def _conforms(
    schemes: Sequence[MSGC], history: AnswerHistory, num_jobs: int, *, bursty_only: bool
) -> Conforms:
    """Return the thresholds of rounds that conform.

    In its W-1+B rounds, every job sees a bursty or an arbitrary pattern.
    """
    B, W = schemes[0].B, schemes[0].W
    lam = np.array([scheme.lam for scheme in schemes], dtype=history.arrivals.dtype)
    models: list[Window] = []
    if not bursty_only:
        models.append(ArbitraryWindow(history, B=B, W=W, lam=lam))
    # For B = 1 both models say the same: a worker straggles at most once in W rounds.
    if bursty_only or B > 1:
        models.append(BurstyWindow(history, B=B, W=W, lam=lam))
    uncoded, ends = _uncoded(schemes), None
    if uncoded.any():
        few = [scheme for scheme in schemes if scheme.lam == scheme.n]
        ends = MSGCFeasible(few, history.part(uncoded), num_jobs)
    span = W if bursty_only else W - 1 + B
    return Conforms(history, models, span=span, ends=ends, may_be_idle=uncoded)


@kernel_of.register
def _(scheme: MSGC, *, feasible: bool, bursty_only: bool) -> Kernel | None:
    """Return the kernel. If rounds must conform, only the load of the code matters."""
    if scheme.late == "take":
        return None
    group = (MSGC, scheme.B, scheme.W)
    if feasible:
        return Kernel(group=group, decisions=scheme, play=by_thresholds(MSGCFeasible))
    decisions = (*group, scheme.lam, scheme.normalized_load)
    thresholds = partial(_conforms, bursty_only=bursty_only)
    return Kernel(group=group, decisions=decisions, play=by_thresholds(thresholds))


@necessary_answers.register
def _(scheme: MSGC, *, conforms: bool) -> Need:
    """Return what decodes the D2 groups of the job that starts in the round.

    A worker that misses its first chunk cannot answer for the first group. (For lam = n there is no
    group.) A pattern that conforms has at most lam stragglers. The rounds of the tail have work
    until the D2 groups of the last job are answered.
    """
    coded = scheme.lam < scheme.n
    if conforms or not coded:
        return Need(answers=scheme.n - scheme.lam, to_the_end=coded)
    return Need(code=(scheme.family, scheme.lam), to_the_end=True)
