"""Optional facts about a scheme that make a search faster, by dispatch on the type of the scheme.

These facts do not change a decision. If a scheme has none, its candidates are replayed one after
another by the general replay.

- `necessary_answers` returns the answers without which a round never closes, so that slow
  candidates need not be replayed. `least_loads` returns the least loads of the workers, if loads
  differ between rounds.
- `kernel_of` returns the function that replays thousands of candidates together (see `_batch`), and
  the decisions of a candidate, so that candidates with equal decisions are replayed only once.
- `adds_results` selects the schemes that decode well with thousands of workers.

Each module of a scheme in this package registers its facts: ``@necessary_answers.register``.
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
    "kernel_of",
    "least_loads",
    "necessary_answers",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The answers without which a round never closes: a number, or enough to decode ``code``.

    ``code`` is the kind of a code and its s. If both are given, either suffices. If ``to_the_end``
    is True, the rounds after the first round of the last job have work too, whichever workers
    answer.
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
        """Return the seconds that loads (m,) add to times, as in `DelayProfile.times_at`."""
        meta, k = self.rehearsal.profile.meta, self.jobs_per_round
        shifts: FloatArray = self.rehearsal.slope * (k * loads - meta.base_load)
        return shifts

    def times(self, round: int, loads: FloatArray) -> FloatArray:
        """Return the seconds (..., n) of workers with these loads, as in `Rehearsal.times_of`."""
        profile, row = self.rehearsal.profile, round % self.rehearsal.profile.num_rounds
        times: FloatArray = profile.times[row] + self.shifts(loads)
        if times.min() <= 0:
            profile.times_at(self.jobs_per_round * float(loads.min()), alpha=self.rehearsal.alpha)
        return times


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Played:
    """The outcome of a block of candidates; all arrays are (rounds, candidates).

    ``seconds`` are the durations of rounds, and ``waited_out`` is True if a round stays open beyond
    ``(1+mu) * kappa``. ``loads`` are mean loads of a worker; None means those of `Scheme.loads_of`
    in every round.
    """

    seconds: FloatArray
    waited_out: BoolArray
    loads: FloatArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """The method to replay a scheme together with other schemes.

    Schemes with equal ``group`` are replayed together. Schemes with equal ``decisions`` have the
    same load and the same closing times. ``play(schemes, stage)`` replays schemes of one group, and
    returns `Played`. If all workers have equal loads, `by_thresholds` returns such a function.
    """

    group: Hashable
    decisions: Hashable
    play: Callable[..., Played]


def by_thresholds(make: Callable[..., Thresholds]) -> Callable[..., Played]:
    """Return the ``play`` function that closes rounds by ``make(schemes, history, num_jobs)``."""

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
    """Return the answers that every round of the scheme needs.

    If ``conforms`` is True, rounds must also conform to the straggler model.
    """
    return Need(answers=0)


@singledispatch
def least_loads(scheme: Scheme, batch: int | None) -> FloatArray:
    """Return the least loads of the workers, (n,), in rounds in which jobs begin."""
    return scheme.loads_of(batch)


@singledispatch
def kernel_of(scheme: Scheme, *, feasible: bool, bursty_only: bool) -> Kernel | None:  # noqa: ARG001
    """Return the scheme's kernel; None if the scheme must be replayed separately.

    If ``feasible`` is True, rounds wait only until no job is lost, and conformity does not matter.
    Otherwise rounds must conform; if ``bursty_only`` is True, to the bursty model alone.
    """
    return None


@singledispatch
def adds_results(scheme: Scheme) -> bool:  # noqa: ARG001
    """Return True if every gradient is a plain sum of results, which always decodes well."""
    return True


@adds_results.register
def _(scheme: SRSGC | MSGC) -> bool:
    return scheme.family != "cyclic"
