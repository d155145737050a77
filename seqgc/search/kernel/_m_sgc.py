"""What rounds of M-SGC need (docs/mathematics.md, sections 3.3, 4 and 6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from seqgc.ports import BoolArray
from seqgc.schemes import MSGC
from seqgc.search.kernel._arrivals import SmallInts
from seqgc.search.kernel._codes import Codes
from seqgc.search.kernel._dispatch import (
    Kernel,
    Need,
    by_thresholds,
    kernel_of,
    necessary_answers,
)
from seqgc.search.kernel._thresholds import History, Recent, Thresholds, after_last
from seqgc.search.kernel._windows import ArbitraryWindow, BurstyWindow, Conforms, Window

__all__ = ["MSGCFeasible"]


class MSGCFeasible(Thresholds):
    """Closing a round must leave every job of M-SGC a chance (`MSGCSchedule.feasible`).

    A job in slot d with T - d slots to come is lost for good if a worker owes it more than
    min(B, T - d) chunks: it makes up for one in each of its adaptive slots, W-1 ... T = W-2+B. And
    the workers that owe nothing must suffice to decode its next D2 group, those of them that
    answer now if the slot is adaptive. Before the round both hold with one round less. So of the
    workers that owe min(B, T - d + 1) all must answer, and of those that owe nothing as many as
    decode.

    ``_missing`` (n, candidates) is how many D1 chunks each worker owes the jobs in slots W-1, W,
    ..., W-2+B of the open round. In slots 0 ... W-2 a chunk is missed whenever the worker
    straggles, so that the first is the count over W-1 rounds; afterwards every answer makes up for
    one. ``schemes`` differ in lam and family alone.
    """

    def __init__(self, schemes: Sequence[MSGC], history: History, num_jobs: int) -> None:
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
        """Return where there are no coded results (lam = n), no first attempts, and no debts."""
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
        """Yield, for each job that binds, the most chunks it bears missing, and the missing ones.

        Of the jobs in slots up to W-1 the oldest binds: who straggled in the latest rounds is the
        more, the more rounds one counts. (In the first rounds it is job 0, and the count, cut at
        round 0, is just of its rounds.)
        """
        for later, missing in enumerate(self._missing):
            job = round - self._first_adaptive - later
            if job < self._num_jobs and (job >= 0 or later == 0):
                yield self._burst - later, missing


def _uncoded(schemes: Sequence[MSGC]) -> BoolArray:
    return np.array([scheme.lam == scheme.n for scheme in schemes])


def _conforms(
    schemes: Sequence[MSGC], history: History, num_jobs: int, *, bursty_only: bool
) -> Conforms:
    """In its life of W-1+B rounds every job sees a bursty pattern or an arbitrary one."""
    B, W = schemes[0].B, schemes[0].W
    lam = np.array([scheme.lam for scheme in schemes], dtype=history.arrivals.dtype)
    models: list[Window] = []
    if not bursty_only:
        models.append(ArbitraryWindow(history, B=B, W=W, lam=lam))
    # For B = 1 the two models are one: a worker straggles at most once in W rounds.
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
    """Of M-SGC's code, conformity knows the load alone."""
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

    Who misses its first chunk cannot answer for the first group any more. (For lam = n there is no
    group.) A pattern that conforms has at most lam stragglers. The tail's rounds have work as long
    as the D2 groups of the last job are not answered.
    """
    coded = scheme.lam < scheme.n
    if conforms or not coded:
        return Need(answers=scheme.n - scheme.lam, to_the_end=coded)
    return Need(code=(scheme.family, scheme.lam), to_the_end=True)
