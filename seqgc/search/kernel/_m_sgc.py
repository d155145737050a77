"""What rounds of M-SGC need (docs/mathematics.md, sections 3.3, 4 and 6)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np

from seqgc.ports import BoolArray, IntArray
from seqgc.schemes import MSGC, Scheme
from seqgc.search.kernel._arrivals import Arrivals, SmallInts
from seqgc.search.kernel._conditions import Conditions
from seqgc.search.kernel._dispatch import Kernel, Need, adds_results, kernel_of, necessary_answers
from seqgc.search.kernel._many_codes import Codes
from seqgc.search.kernel._thresholds import History, Recent, Thresholds, after_last
from seqgc.search.kernel._windows import ArbitraryWindow, BurstyWindow

__all__ = ["MSGCConforms", "MSGCFeasible"]


class Backlog:
    """How many D1 chunks each worker still owes, for the jobs in flight.

    Attributes
    ----------
    missing : list of (n, candidates) int
        Of the jobs in slots W-1, W, ..., W-2+B of the open round. In slots 0 ... W-2 a chunk is
        missed whenever the worker straggles, so that the first is the count over W-1 rounds;
        afterwards every answer makes up for one.
    """

    def __init__(self, history: History, *, B: int, W: int) -> None:
        self._history = history
        self._recent = Recent(history, W - 1)
        none = np.zeros_like(self._recent.times)
        self.missing: list[SmallInts] = [self._recent.times] + [none] * (B - 1)

    def close(self, round: int) -> None:
        """Move on by a round; the history has been fed."""
        answered = ~self._history.stragglers(round)
        later = [missing - (answered & (missing > 0)) for missing in self.missing[:-1]]
        self._recent.close(round)
        self.missing = [self._recent.times, *later]


class MSGCConforms(Thresholds):
    """M-SGC's pattern must conform.

    In its life of W-1+B rounds every job sees a bursty pattern or an arbitrary one; with
    ``bursty_only``, any W rounds are bursty.

    That every job can then be finished in time is Proposition 3.2 of the paper, so feasibility
    needs no look. ``schemes`` differ in lam and family alone.
    """

    def __init__(
        self, schemes: Sequence[MSGC], arrivals: Arrivals, *, num_jobs: int, bursty_only: bool
    ) -> None:
        n, B, W = schemes[0].n, schemes[0].B, schemes[0].W
        self._n, self._burst = n, B
        self._history = History(arrivals, len(schemes))
        lam = np.array([scheme.lam for scheme in schemes], dtype=arrivals.dtype)
        # For B = 1 the two models are one: a worker straggles at most once in W rounds.
        self._arbitrary = None
        if not bursty_only:
            self._arbitrary = ArbitraryWindow(self._history, B=B, W=W, lam=lam)
        self._bursty = None
        if bursty_only or B > 1:
            self._bursty = BurstyWindow(self._history, B=B, W=W, lam=lam)
        self._for_bursty: SmallInts = np.full(len(schemes), n + 1, dtype=arrivals.dtype)
        self._last_not_bursty = np.full(len(schemes), -1)
        self._idle = _Idle(schemes, arrivals, num_jobs=num_jobs)

    def needed(self, round: int) -> IntArray:
        """Return the least number of answers under either model.

        The bursty one holds for a job's life if all of its windows of W rounds fit: those that
        ended in the B-1 rounds before, and this one. (Earlier in the run that asks for windows
        which are not whole inside the life; they are parts of ones that are asked for anyhow.)
        """
        if self._bursty is not None:
            self._for_bursty = self._bursty.needed(round)
        if self._arbitrary is None:
            return self._for_bursty.astype(np.intp)
        since = max(0, round - self._burst + 1)
        bursty = np.where(self._last_not_bursty < since, self._for_bursty, self._n + 1)
        return np.minimum(self._arbitrary.needed(round), bursty).astype(np.intp)

    def idle(self, round: int) -> BoolArray | None:
        return self._idle.idle(round)

    def close(self, round: int, answered: IntArray) -> None:
        self._last_not_bursty[answered < self._for_bursty] = round
        self._history.close(round, answered)
        for window in (self._bursty, self._arbitrary):
            if window is not None:
                window.close(round)
        self._idle.close(round, answered)


class MSGCFeasible(Thresholds):
    """Closing a round must leave every job of M-SGC a chance (`MSGCSchedule.feasible`).

    A job in slot d with T - d slots to come is lost for good if a worker owes it more than
    min(B, T - d) chunks: it makes up for one in each of its adaptive slots, W-1 ... T = W-2+B. And
    the workers that owe nothing must suffice to decode its next D2 group, those of them that
    answer now if the slot is adaptive. Before the round both hold with one round less. So of the
    workers that owe min(B, T - d + 1) all must answer, and of those that owe nothing as many as
    decode.

    ``schemes`` differ in lam and family alone.
    """

    def __init__(self, schemes: Sequence[MSGC], arrivals: Arrivals, *, num_jobs: int) -> None:
        self._in_flight = _InFlight(schemes[0], num_jobs=num_jobs)
        self._uncoded = np.array([scheme.lam == scheme.n for scheme in schemes])
        self._history = History(arrivals, len(schemes))
        self._backlog = Backlog(self._history, B=schemes[0].B, W=schemes[0].W)
        kinds = [None if scheme.lam == scheme.n else scheme.family for scheme in schemes]
        self._codes = Codes(arrivals, [scheme.lam for scheme in schemes], kinds)

    def needed(self, round: int) -> IntArray:
        rank = self._history.arrivals.rank[round]
        needed = np.ones(self._history.shape[1], dtype=np.intp)
        for most, missing in self._in_flight.jobs(round, self._backlog.missing):
            np.maximum(needed, after_last(missing >= most, rank), out=needed)
            np.maximum(needed, self._codes.needed(round, missing == 0), out=needed)
        return needed

    def idle(self, round: int) -> BoolArray | None:
        if not (self._in_flight.begins_nothing(round) and self._uncoded.any()):
            return None
        return self._uncoded & self._in_flight.nothing_missing(round, self._backlog.missing)

    def close(self, round: int, answered: IntArray) -> None:
        self._history.close(round, answered)
        self._backlog.close(round)


class _Idle:
    """Where M-SGC has nothing to do: nowhere but at the end of a run with lam = n.

    There are no coded results then, so that a round without first attempts, in which no job in
    flight misses a chunk, leaves every worker without a task.
    """

    def __init__(self, schemes: Sequence[MSGC], arrivals: Arrivals, *, num_jobs: int) -> None:
        self._uncoded = np.array([scheme.lam == scheme.n for scheme in schemes])
        self._in_flight = _InFlight(schemes[0], num_jobs=num_jobs)
        self._history = History(arrivals, int(self._uncoded.sum()))
        self._backlog = Backlog(self._history, B=schemes[0].B, W=schemes[0].W)

    def idle(self, round: int) -> BoolArray | None:
        """See `Thresholds.idle`."""
        if not (self._in_flight.begins_nothing(round) and self._uncoded.any()):
            return None
        idle = self._uncoded.copy()
        idle[idle] = self._in_flight.nothing_missing(round, self._backlog.missing)
        return idle

    def close(self, round: int, answered: IntArray) -> None:
        """See `Thresholds.close`."""
        if self._uncoded.any():
            self._history.close(round, answered[self._uncoded])
            self._backlog.close(round)


class _InFlight:
    """Which jobs of M-SGC are in flight in a round."""

    def __init__(self, scheme: MSGC, *, num_jobs: int) -> None:
        self._burst, self._first_adaptive, self._num_jobs = scheme.B, scheme.W - 1, num_jobs

    def begins_nothing(self, round: int) -> bool:
        """Whether no job is in one of the slots 0 ... W-2, those of the first attempts."""
        return round - (self._first_adaptive - 1) >= self._num_jobs

    def jobs(self, round: int, missing: Sequence[SmallInts]) -> Iterator[tuple[int, SmallInts]]:
        """Yield, for each job that binds, the most chunks it bears missing, and the missing ones.

        Of the jobs in slots up to W-1 the oldest binds: who straggled in the latest rounds is the
        more, the more rounds one counts. (In the first rounds it is job 0, and the backlog, cut at
        round 0, counts just its rounds.)
        """
        if round - self._first_adaptive < self._num_jobs:
            yield self._burst, missing[0]
        for later in range(1, self._burst):
            if 0 <= round - self._first_adaptive - later < self._num_jobs:
                yield self._burst - later, missing[later]

    def nothing_missing(self, round: int, missing: Sequence[SmallInts]) -> BoolArray:
        """Whether no job in an adaptive slot misses a chunk, (candidates,)."""
        complete = np.ones(missing[0].shape[1], dtype=np.bool_)
        for slot, chunks in enumerate(missing, start=self._first_adaptive):
            if 0 <= round - slot < self._num_jobs:
                complete &= ~chunks.any(axis=0)
        return complete


@kernel_of.register
def _(scheme: MSGC, conditions: Conditions) -> Kernel:
    """Of M-SGC's code, conformity knows the load alone."""
    if conditions.feasible:
        decisions: tuple[object, ...] = (scheme,)
    else:
        decisions = (MSGC, scheme.B, scheme.W, scheme.lam, scheme.normalized_load)
    return Kernel(group=(MSGC, scheme.B, scheme.W), decisions=decisions, thresholds=_thresholds)


def _thresholds(
    schemes: Sequence[Scheme], arrivals: Arrivals, conditions: Conditions
) -> Thresholds:
    m_sgc = cast("Sequence[MSGC]", schemes)
    num_jobs = conditions.bundles(m_sgc[0])
    if conditions.feasible:
        return MSGCFeasible(m_sgc, arrivals, num_jobs=num_jobs)
    return MSGCConforms(m_sgc, arrivals, num_jobs=num_jobs, bursty_only=conditions.bursty_only)


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


@adds_results.register
def _(scheme: MSGC) -> bool:
    return scheme.family != "cyclic"
