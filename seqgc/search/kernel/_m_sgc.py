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
    """The thresholds of feasible rounds, after which every job can be decoded in time.

    The condition is the same as in `MSGCSchedule.feasible`. A worker can make up for one missed
    chunk in each of a job's adaptive slots, W-1 ... T = W-2+B. Therefore a job in slot d, which has
    T - d slots to come, is lost if a worker owes it more than min(B, T - d) chunks. The job is also
    lost if the workers that owe nothing do not suffice to decode its next D2 group; if slot d is
    adaptive, only the workers that answer in this round count. Before the round, both conditions
    hold for the previous slot. Therefore the round needs the answers of all workers that owe
    min(B, T - d + 1) chunks, and enough answers of workers that owe nothing to decode the group.

    ``_missing`` (n, candidates) is the number of D1 chunks that each worker owes the jobs in slots
    W-1, W, ..., W-2+B of the open round. In slots 0 ... W-2, a worker owes a chunk for each round
    in which it straggles; the first array therefore counts straggling over W-1 rounds. In later
    slots, every answer makes up for one chunk. ``schemes`` differ only in lam and family.
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
        """Return a mask of the candidates in which no worker has a task.

        These candidates have no coded results (lam = n), no first attempts, and no owed chunks.
        """
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
        """Yield min(B, T - d + 1) and the missing chunks (n, candidates) of each relevant job.

        Of the jobs in slots up to W-1, only the oldest job is relevant, because it counts
        straggling over the most rounds. In the first rounds this is job 0, whose rounds begin with
        round 0.
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

    In the W-1+B rounds of every job, the pattern must be bursty or arbitrary (`MSGC.promise`).
    """
    B, W = schemes[0].B, schemes[0].W
    lam = np.array([scheme.lam for scheme in schemes], dtype=history.arrivals.dtype)
    models: list[Window] = []
    if not bursty_only:
        models.append(ArbitraryWindow(history, B=B, W=W, lam=lam))
    # For B = 1 both models are equal: a worker straggles at most once in W rounds.
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
    """Return the kernel.

    If rounds must conform, the family of the code matters only for the load.
    """
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
    """Return the answers that decode the D2 groups of the job that begins in the round.

    A worker that misses its first chunk cannot return a result for the first group. (If lam = n,
    there is no group.) A pattern that conforms has at most lam stragglers. The rounds after the
    beginning of the last job have work until its D2 groups are answered.
    """
    coded = scheme.lam < scheme.n
    if conforms or not coded:
        return Need(answers=scheme.n - scheme.lam, to_the_end=coded)
    return Need(code=(scheme.family, scheme.lam), to_the_end=True)
