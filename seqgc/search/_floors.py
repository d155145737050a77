"""Floors under run times: what makes it safe not to replay a candidate.

A round with work to do lasts at least until ``min((1+mu) kappa, slowest)``. It also lasts until
nothing is lost, and some losses show at once, whatever happened before: `necessary_answers` says
which, scheme by scheme.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from seqgc.codes import GradientCode, make_code
from seqgc.ports import BoolArray, FloatArray, IntArray
from seqgc.schemes import Scheme
from seqgc.search._rehearsal import Rehearsal
from seqgc.search._space import Closing
from seqgc.search.kernel import Covers, Need, necessary_answers

__all__ = ["Floors"]

_CHUNK = 2048  # candidates at a time: bounds memory


class Floors:
    """Floors under the run time and the bill of every scheme, rule by rule.

    Parameters
    ----------
    schemes
        The candidates.
    rehearsal
        What they run on; its profile is repeated when it ends.
    """

    def __init__(self, schemes: Sequence[Scheme], rehearsal: Rehearsal) -> None:
        profile = rehearsal.profile
        cuts = [(s.loads_of(rehearsal.batch), rehearsal.leaves_out(s)) for s in schemes]
        loads = [each for each, _ in cuts]
        self.loads: FloatArray = np.array([each.max() for each in loads])
        self._least: FloatArray = np.array([each.min() for each in loads])
        self._mean: FloatArray = np.array([each.mean() for each in loads])
        self.delays: IntArray = np.array([scheme.delay for scheme in schemes], dtype=np.intp)
        self._alpha, self._base_load = rehearsal.slope, profile.meta.base_load
        self._workers = profile.num_workers
        needs = {
            conforms: [  # what is left out need not be answered
                Need(answers=0) if leaves_out else necessary_answers(scheme, conforms=conforms)
                for scheme, (_, leaves_out) in zip(schemes, cuts, strict=True)
            ]
            for conforms in (False, True)
        }
        self._works_to_the_end: BoolArray = np.array([n.to_the_end for n in needs[False]])
        self._table = _Table(np.sort(profile.times, axis=1), profile.times)
        self._rows = {
            conforms: np.array([self._table.row(need) for need in of_schemes])
            for conforms, of_schemes in needs.items()
        }

    def billed_shifts(self, jobs_per_round: int) -> FloatArray:
        """Seconds (schemes,) that a scheme's load adds to a worker's time, on average."""
        return self._alpha * (jobs_per_round * self._mean - self._base_load)

    def runtimes(self, closing: Closing, *, bundles: int, of: IntArray) -> FloatArray:
        """Seconds (m,) that no run of ``bundles`` jobs with these schemes (m,) can beat."""
        floors = np.empty(len(of))
        for start in range(0, len(of), _CHUNK):
            part = slice(start, start + _CHUNK)
            floors[part] = self._runtimes(of[part], closing, bundles)
        return floors

    def bills(self, closing: Closing, *, bundles: int) -> FloatArray:
        """Worker-seconds (schemes,) that a run is billed at least, cancelled work included."""
        rounds = bundles + np.where(self._works_to_the_end, self.delays, 0)
        recorded = self._table.totals(int(rounds.max()))
        bills: FloatArray = recorded[rounds] + self._workers * rounds * self.billed_shifts(
            closing.jobs_per_round
        )
        return bills

    def _runtimes(self, part: IntArray, closing: Closing, bundles: int) -> FloatArray:
        least = closing.jobs_per_round * self._least[part, None]
        shifts = self._alpha * (least - self._base_load)
        last = bundles + np.where(self._works_to_the_end, self.delays, 0)[part, None]
        of_round = np.arange(int(last.max()))
        needs = self._table.needs(of_round)[self._rows[closing.rule.wait_out != "feasible"][part]]
        first, slowest = self._table.ends(of_round)
        tolerance = np.minimum(first + closing.rule.mu * (first + shifts), slowest)
        seconds = np.where(of_round < bundles, np.maximum(tolerance, needs), tolerance) + shifts
        total: FloatArray = np.where(of_round < last, seconds, 0.0).sum(axis=1)
        return total


@dataclass(slots=True)
class _Table:
    """When, in each recorded round, what a need asks for had come; one row a need."""

    fastest_first: FloatArray  # (rounds, n)
    times: FloatArray  # (rounds, n)
    _rows: dict[Need, int] = field(default_factory=dict)
    _seconds: list[FloatArray] = field(default_factory=list)

    def row(self, need: Need) -> int:
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

    def _when(self, need: Need) -> FloatArray:
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
