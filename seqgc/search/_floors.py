"""Floors under run times: what makes it safe not to replay a candidate.

A round with work to do lasts at least until ``min((1+mu) kappa, slowest)``. It also lasts until
nothing is lost, and some losses show at once, whatever happened before: `necessary_answers` says
which, scheme by scheme.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqgc.codes import make_code
from seqgc.ports import FloatArray, IntArray
from seqgc.schemes import Scheme
from seqgc.search._rehearsal import Rehearsal
from seqgc.search._space import Closing
from seqgc.search.kernel import Covers, Need, least_loads, necessary_answers

__all__ = ["Floors"]

_CHUNK = 2048  # candidates at a time: bounds memory


class Floors:
    """Floors under the run time and the bill of every scheme, rule by rule.

    The rehearsal's profile is repeated when it ends.
    """

    def __init__(self, schemes: Sequence[Scheme], rehearsal: Rehearsal) -> None:
        self._times = times = rehearsal.profile.times
        self._alpha, self._base_load = rehearsal.slope, rehearsal.profile.meta.base_load
        cuts = [(least_loads(s, rehearsal.batch), rehearsal.leaves_out(s)) for s in schemes]
        self._least: FloatArray = np.array([loads.min() for loads, _ in cuts])
        self._mean: FloatArray = np.array([loads.mean() for loads, _ in cuts])
        self.delays: IntArray = np.array([scheme.delay for scheme in schemes], dtype=np.intp)
        needs = {
            conforms: [  # what is left out need not be answered
                Need(answers=0) if leaves_out else necessary_answers(scheme, conforms=conforms)
                for scheme, (_, leaves_out) in zip(schemes, cuts, strict=True)
            ]
            for conforms in (False, True)
        }
        # Rounds after the last bundle's first in which there is work, whoever answers.
        self._tail = np.where([need.to_the_end for need in needs[False]], self.delays, 0)
        rows: dict[Need, int] = {}
        self._rows = {
            conforms: np.array([rows.setdefault(need, len(rows)) for need in of_schemes])
            for conforms, of_schemes in needs.items()
        }
        fastest_first = np.sort(times, axis=1)
        self._first, self._slowest = fastest_first[:, 0], fastest_first[:, -1]
        self._needed_s: FloatArray = np.stack([_come(need, times, fastest_first) for need in rows])

    def shifts(self, loads: FloatArray, jobs_per_round: int) -> FloatArray:
        """Seconds that loads (shares of a model's batch) add to a worker's time."""
        return self._alpha * (jobs_per_round * loads - self._base_load)

    def bills(self, closing: Closing, *, bundles: int) -> FloatArray:
        """Worker-seconds (schemes,) that a run is billed at least, cancelled work included."""
        rounds = bundles + self._tail
        each = self._times.sum(axis=1)[np.arange(rounds.max()) % len(self._times)]
        recorded = np.concatenate([[0.0], np.cumsum(each)])  # of the first 0, 1, ... rounds
        shifts = self.shifts(self._mean, closing.jobs_per_round)
        bills: FloatArray = recorded[rounds] + self._times.shape[1] * rounds * shifts
        return bills

    def runtimes(self, closing: Closing, *, bundles: int, of: IntArray) -> FloatArray:
        """Seconds (m,) that no run of ``bundles`` jobs with these schemes (m,) can beat."""
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
        # A recorded round takes the same whenever it is played again: count how often it is.
        played = np.bincount(np.arange(bundles) % rounds, minlength=rounds)
        total: FloatArray = (np.maximum(tolerance, needs) + shifts) @ played
        tail = self._tail[part]
        for later in range(int(tail.max())):
            recorded = (bundles + later) % rounds
            total += np.where(later < tail, tolerance[:, recorded] + shifts[:, 0], 0.0)
        return total


def _come(need: Need, times: FloatArray, fastest_first: FloatArray) -> FloatArray:
    """Return when, in each recorded round, what a need asks for had come (rounds,)."""
    options, count = [], need.answers
    if need.code is not None:
        kind, s = need.code
        code = make_code(kind, times.shape[1], s)
        if code.covers:
            covers = Covers([code])
            options.append(covers.first(times[:, covers.workers])[:, 0])
        else:  # any n - s answers will do
            count = code.n - s if count is None else min(count, code.n - s)
    if count is not None:
        options.append(fastest_first[:, count - 1] if count > 0 else np.zeros(len(times)))
    earliest: FloatArray = np.min(options, axis=0)
    return earliest
