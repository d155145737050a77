"""Optional facts about a scheme that make a search faster, by dispatch on its type.

None of them changes a decision. A scheme without them is replayed in general, one candidate after
another.

- `necessary_answers` gives the answers that its rounds cannot close without, so that hopeless
  candidates are not replayed; `least_loads` gives the least loads of its workers, if they differ by
  round.
- `kernel_of` tells how thousands of candidates are replayed at once (see `_batch`).
- `conforms_as_feasible` and `stands_for_others` keep a candidate from being replayed under two
  names.
- `adds_results` selects the schemes that decode well among thousands of workers.

The file of each scheme in this package registers them: ``@necessary_answers.register``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import singledispatch

import numpy as np

from seqgc.ports import BoolArray, FloatArray
from seqgc.rounds import ClosingRule
from seqgc.schemes import MSGC, SRSGC, Scheme
from seqgc.search._rehearsal import Rehearsal
from seqgc.search.kernel._arrivals import Arrivals, Closings
from seqgc.search.kernel._thresholds import AnswerHistory, Thresholds

__all__ = [
    "Kernel",
    "Need",
    "Played",
    "Stage",
    "adds_results",
    "by_thresholds",
    "conforms_as_feasible",
    "kernel_of",
    "least_loads",
    "necessary_answers",
    "stands_for_others",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The answers that a round cannot close without: ``answers`` of them, or enough for ``code``.

    A code is its kind and s. If ``to_the_end`` is true, the rounds of the tail have work too,
    whichever workers answer.
    """

    answers: int | None = None
    code: tuple[str, int] | None = None
    to_the_end: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stage:
    """The data on which the candidates of a block are replayed for ``num_rounds`` rounds."""

    rehearsal: Rehearsal
    arrivals: Arrivals
    num_rounds: int
    rule: ClosingRule
    jobs_per_round: int

    def shifts(self, loads: FloatArray) -> FloatArray:
        """Return the seconds that loads (m,) add, as `DelayProfile.times_at` computes them."""
        meta, k = self.rehearsal.profile.meta, self.jobs_per_round
        shifts: FloatArray = self.rehearsal.slope * (k * loads - meta.base_load)
        return shifts

    def times(self, round: int, loads: FloatArray) -> FloatArray:
        """Return the seconds (..., n) of workers with these loads, as `Rehearsal.times_of` does."""
        profile, row = self.rehearsal.profile, round % self.rehearsal.profile.num_rounds
        times: FloatArray = profile.times[row] + self.shifts(loads)
        if times.min() <= 0:
            profile.times_at(self.jobs_per_round * float(loads.min()), alpha=self.rehearsal.alpha)
        return times


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Played:
    """The outcome of rounds: their seconds, and whether they exceed ``(1+mu) * kappa``.

    All arrays are (rounds, candidates). ``loads`` are mean loads of a worker; None: the loads of
    every round are `Scheme.loads_of`.
    """

    seconds: FloatArray
    waited_out: BoolArray
    loads: FloatArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """The way to replay one candidate together with others.

    Schemes are replayed together if they agree on ``group``. Schemes that agree on ``decisions``
    have the same load and the same closings. ``play`` replays candidates: ``(schemes of one group,
    stage) -> Played``. `by_thresholds` makes such a function if all workers have equal loads.
    """

    group: Hashable
    decisions: Hashable
    play: Callable[..., Played]


def by_thresholds(make: Callable[..., Thresholds]) -> Callable[..., Played]:
    """Return a ``play`` function that follows thresholds: ``make(schemes, history, num_jobs)``."""

    def play(schemes: Sequence[Scheme], stage: Stage) -> Played:
        loads = np.array([scheme.loads_of(stage.rehearsal.batch)[0] for scheme in schemes])
        history = AnswerHistory(stage.arrivals, len(schemes))
        thresholds = make(schemes, history, stage.num_rounds - schemes[0].delay)
        closings = Closings(
            stage.arrivals, stage.shifts(loads), num_rounds=stage.num_rounds, rule=stage.rule
        )
        for round in range(stage.num_rounds):
            idle = thresholds.idle(round)
            history.close(closings.close(round, thresholds.needed(round), idle=idle))
            thresholds.close(round)
        return Played(seconds=closings.seconds, waited_out=closings.waited_out)

    return play


@singledispatch
def necessary_answers(scheme: Scheme, *, conforms: bool) -> Need:  # noqa: ARG001
    """Return the need of every round of the scheme; ``conforms``: of rounds that must conform."""
    return Need(answers=0)


@singledispatch
def least_loads(scheme: Scheme, batch: int | None) -> FloatArray:
    """Return the least loads of the workers, (n,), in rounds in which jobs begin."""
    return scheme.loads_of(batch)


@singledispatch
def kernel_of(scheme: Scheme, *, feasible: bool, bursty_only: bool) -> Kernel | None:  # noqa: ARG001
    """Return the scheme's kernel; None: it is replayed by itself.

    ``feasible``: rounds wait only until no job is lost, and conformity does not matter. Otherwise,
    ``bursty_only`` means that only the bursty model conforms.
    """
    return None


@singledispatch
def adds_results(scheme: Scheme) -> bool:  # noqa: ARG001
    """Return whether every gradient is a plain sum of results, which decodes well in any case."""
    return True


@adds_results.register
def _(scheme: SRSGC | MSGC) -> bool:
    return scheme.family != "cyclic"


@singledispatch
def conforms_as_feasible(scheme: Scheme) -> bool:  # noqa: ARG001
    """Return whether a set of answers is feasible only if it conforms."""
    return False


@singledispatch
def stands_for_others(scheme: Scheme) -> bool:  # noqa: ARG001
    """Return whether this is the first of several candidates that ``feasible`` closes alike."""
    return True
