"""Floors under run times: what makes it safe not to replay a candidate.

A round with work to do lasts at least until ``min((1+mu) kappa, slowest)`` (spec, section 6). It
also lasts until nothing is lost, and some losses show at once, whatever happened before:

- GC must decode the round's own job;
- M-SGC must be able to decode the D2 groups of the job that starts in the round, and who misses
  its first chunk cannot answer for the first group any more. (No condition for lam = n.)
- Unless a round closes by ``feasible``, its pattern must conform: GC has at most s stragglers,
  M-SGC and SR-SGC at most lam in any window of either model; or (GC-Rep, SR-SGC-Rep) one answer
  comes in every group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from seqgc.codes import CodeKind, GradientCode, make_code
from seqgc.ports import BoolArray, FloatArray, IntArray
from seqgc.profiles import DelayProfile
from seqgc.schemes import GC, MSGC, SRSGC, Scheme, Uncoded
from seqgc.search._space import Rule
from seqgc.search.kernel import Covers

__all__ = ["Floors"]

_CHUNK = 2048  # candidates at a time: bounds memory


@dataclass(frozen=True, slots=True, kw_only=True)
class _Need:
    """Answers that a round cannot close without: ``answers`` of them, or such as decode ``code``.

    A code is its family and s.
    """

    answers: int | None = None
    code: tuple[CodeKind, int] | None = None


class Floors:
    """Floors under the run time and the bill of every scheme, rule by rule.

    Parameters
    ----------
    schemes
        The candidates.
    profile
        Recorded seconds; begun again when it ends.
    alpha : float
        Seconds per unit of load.
    """

    def __init__(self, schemes: Sequence[Scheme], *, profile: DelayProfile, alpha: float) -> None:
        self.loads: FloatArray = np.array([s.normalized_load for s in schemes])
        self.delays: IntArray = np.array([scheme.delay for scheme in schemes], dtype=np.intp)
        self._alpha, self._base_load = alpha, profile.meta.base_load
        self._workers = profile.num_workers
        # The tail's rounds have work as long as the D2 groups of the last job are not answered.
        self._works_to_the_end: BoolArray = np.array(
            [isinstance(scheme, MSGC) and scheme.lam < scheme.n for scheme in schemes]
        )
        self._table = _Table(np.sort(profile.times, axis=1), profile.times)
        lenient = [self._table.row(_need(scheme, conforms=False)) for scheme in schemes]
        strict = [self._table.row(_need(scheme, conforms=True)) for scheme in schemes]
        self._rows = {False: np.array(lenient), True: np.array(strict)}

    def shifts(self, rule: Rule) -> FloatArray:
        """Seconds (schemes,) that each scheme's load adds to the recorded ones."""
        return self._alpha * (rule.jobs_per_round * self.loads - self._base_load)

    def runtimes(self, rule: Rule, *, bundles: int, of: IntArray) -> FloatArray:
        """Seconds (m,) that no run of ``bundles`` jobs with these schemes (m,) can beat."""
        floors = np.empty(len(of))
        for start in range(0, len(of), _CHUNK):
            part = slice(start, start + _CHUNK)
            floors[part] = self._runtimes(of[part], rule, bundles)
        return floors

    def bills(self, rule: Rule, *, bundles: int) -> FloatArray:
        """Worker-seconds (schemes,) that a run is billed at least, cancelled work included."""
        rounds = bundles + np.where(self._works_to_the_end, self.delays, 0)
        recorded = self._table.totals(int(rounds.max()))
        bills: FloatArray = recorded[rounds] + self._workers * rounds * self.shifts(rule)
        return bills

    def _runtimes(self, part: IntArray, rule: Rule, bundles: int) -> FloatArray:
        shifts = self.shifts(rule)[part, None]
        last = bundles + np.where(self._works_to_the_end, self.delays, 0)[part, None]
        of_round = np.arange(int(last.max()))
        needs = self._table.needs(of_round)[self._rows[rule.wait_out != "feasible"][part]]
        first, slowest = self._table.ends(of_round)
        tolerance = np.minimum(first + rule.mu * (first + shifts), slowest)
        seconds = np.where(of_round < bundles, np.maximum(tolerance, needs), tolerance) + shifts
        total: FloatArray = np.where(of_round < last, seconds, 0.0).sum(axis=1)
        return total


@dataclass(slots=True)
class _Table:
    """When, in each recorded round, what a need asks for had come; one row a need."""

    fastest_first: FloatArray  # (rounds, n)
    times: FloatArray  # (rounds, n)
    _rows: dict[_Need, int] = field(default_factory=dict)
    _seconds: list[FloatArray] = field(default_factory=list)

    def row(self, need: _Need) -> int:
        if need not in self._rows:
            self._rows[need] = len(self._seconds)
            self._seconds.append(self._when(need))
        return self._rows[need]

    def needs(self, of_round: IntArray) -> FloatArray:
        """(needs, rounds) seconds."""
        return np.stack(self._seconds)[:, of_round % len(self.times)]

    def ends(self, of_round: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the times of the first and of the last answer, (rounds,) each."""
        rounds = self.fastest_first[of_round % len(self.times)]
        return rounds[:, 0], rounds[:, -1]

    def totals(self, num_rounds: int) -> FloatArray:
        """Worker-seconds of the first 0, 1, … rounds: (num_rounds + 1,)."""
        each = self.times.sum(axis=1)[np.arange(num_rounds) % len(self.times)]
        return np.concatenate([[0.0], np.cumsum(each)])

    def _when(self, need: _Need) -> FloatArray:
        options: list[FloatArray] = []
        if need.answers is not None:
            options.append(self._answers(need.answers))
        if need.code is not None:
            kind, s = need.code
            code = make_code(kind, self.times.shape[1], s)
            options.append(self._cover(code) if code.covers else self._answers(code.n - s))
        earliest: FloatArray = np.min(options, axis=0)
        return earliest

    def _answers(self, count: int) -> FloatArray:
        return self.fastest_first[:, count - 1] if count > 0 else np.zeros(len(self.times))

    def _cover(self, code: GradientCode) -> FloatArray:
        covers = Covers([code])
        first: FloatArray = covers.first(self.times[:, covers.workers])[:, 0]
        return first


def _need(scheme: Scheme, *, conforms: bool) -> _Need:
    match scheme:
        case Uncoded(n=n):
            return _Need(answers=n)
        case GC(s=s, family="rep") if conforms:
            return _Need(code=("rep", s))
        case GC(n=n, s=s) if conforms:
            return _Need(answers=n - s)
        case GC(s=s, family=family, allow_error=0.0):
            return _Need(code=(family, s))
        case MSGC(n=n, lam=lam) if conforms or lam == n:
            return _Need(answers=n - lam)
        case MSGC(lam=lam, family=family):
            return _Need(code=(family, lam))
        case SRSGC(n=n, lam=lam, family="rep") if conforms:
            return _Need(answers=n - lam, code=("rep", scheme.s))
        case SRSGC(n=n, lam=lam) if conforms:
            return _Need(answers=n - lam)
        case _:
            return _Need(answers=0)
