"""What a search may know of a scheme beyond its contract, by dispatch on its type.

All of it is optional: it saves time, and decides nothing. A scheme that says nothing is replayed in
general, one candidate after another.

- `necessary_answers` says what its rounds cannot close without, so that candidates which cannot win
  are not replayed; and `least_loads`, what workers have at least, where it differs by round.
- `kernel_of` says how thousands are replayed at once (see `_batch`).
- `conforms_as_feasible` and `stands_for_others` keep one candidate from being replayed under two
  names.
- `adds_results` says which decode well among thousands of workers.

The scheme's own file in this folder registers them: ``@necessary_answers.register``.
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
from seqgc.search.kernel._thresholds import History, Thresholds

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
    """Answers that a round cannot close without: ``answers`` of them, or such as decode ``code``.

    A code is its kind and s. ``to_the_end``: rounds of the tail have work too, whoever answers.
    """

    answers: int | None = None
    code: tuple[str, int] | None = None
    to_the_end: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stage:
    """What the candidates of a block are replayed on, ``num_rounds`` rounds of it."""

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
        """Return the seconds (..., n) that workers take at loads, as `Rehearsal.times_of` does."""
        profile, row = self.rehearsal.profile, round % self.rehearsal.profile.num_rounds
        times: FloatArray = profile.times[row] + self.shifts(loads)
        if times.min() <= 0:
            profile.times_at(self.jobs_per_round * float(loads.min()), alpha=self.rehearsal.alpha)
        return times


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Played:
    """What becomes of rounds, (rounds, candidates): seconds, and if beyond ``(1+mu) * kappa``.

    ``loads``: what workers have, on average; None: in every round what `Scheme.loads_of` says.
    """

    seconds: FloatArray
    waited_out: BoolArray
    loads: FloatArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """How one candidate is replayed together with others.

    ``group`` is what schemes must agree on to be replayed together. ``decisions`` is what decides:
    schemes that agree on it have one load and the same closings. ``play`` replays some candidates:
    ``(schemes of one group, stage) -> Played``; `by_thresholds` makes it where workers have equal
    loads.
    """

    group: Hashable
    decisions: Hashable
    play: Callable[..., Played]


def by_thresholds(make: Callable[..., Thresholds]) -> Callable[..., Played]:
    """Return what replays candidates by ``make(schemes, history, num_jobs)``, their thresholds."""

    def play(schemes: Sequence[Scheme], stage: Stage) -> Played:
        loads = np.array([scheme.loads_of(stage.rehearsal.batch)[0] for scheme in schemes])
        history = History(stage.arrivals, len(schemes))
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
    """Return what no round of the scheme closes without; ``conforms``: if it must conform."""
    return Need(answers=0)


@singledispatch
def least_loads(scheme: Scheme, batch: int | None) -> FloatArray:
    """Return what workers have at least, (n,), in the rounds in which jobs begin."""
    return scheme.loads_of(batch)


@singledispatch
def kernel_of(scheme: Scheme, *, feasible: bool, bursty_only: bool) -> Kernel | None:  # noqa: ARG001
    """Return how the scheme is replayed with others; None: in general, by itself.

    ``feasible``: rounds wait only until no job is lost, and nobody asks what conforms. If somebody
    does, ``bursty_only`` says that the bursty model alone conforms.
    """
    return None


@singledispatch
def adds_results(scheme: Scheme) -> bool:  # noqa: ARG001
    """Whether every gradient is a plain sum of results, which decodes well whoever answers."""
    return True


@adds_results.register
def _(scheme: SRSGC | MSGC) -> bool:
    return scheme.family != "cyclic"


@singledispatch
def conforms_as_feasible(scheme: Scheme) -> bool:  # noqa: ARG001
    """Whether no other answers than those that conform are feasible."""
    return False


@singledispatch
def stands_for_others(scheme: Scheme) -> bool:  # noqa: ARG001
    """Whether, closed by ``feasible``, no earlier candidate does the same under another name."""
    return True
