"""`Schedule`: one run of a scheme.

Theory of operation
-------------------
A schedule is a function of what has been received. It is asked who does what
(`Schedule.assignment`) and whether the answers so far suffice (`Schedule.feasible`,
`Schedule.enough`, `Schedule.conforms`), as often as anybody likes. Two methods tell it what has
come:

- `Schedule.close_round`, whose answers a round is closed with. Whoever is not among them is the
  round's straggler.
- `Schedule.take_late`, that a straggler's answer to a closed round has come after all. That is for
  schedules of which `Schedule.takes_late` is true, and only while the answer is of use
  (`Schedule.awaits`): its results belong to a job that is still in flight. What is asked of workers
  in the open round stays as it was; what suffices to close it may be less from then on.

Both replace state and never edit it in place: ``copy.copy(schedule)`` is a snapshot, and a refused
transition changes nothing. So a run is rebuilt from who responded in its rounds, and which late
answers each of them took (`Schedule.repeat`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np

from seqgc.errors import NotDecodableError, ParameterError, ScheduleError, require_int
from seqgc.ports import BoolArray, Decoding, FloatArray, LateAnswer, Payload
from seqgc.schemes._assignment import Assignment
from seqgc.stragglers import StragglerModel

if TYPE_CHECKING:
    from seqgc.schemes._contract import Scheme


_BOOL = np.dtype(np.bool_)


class Schedule(ABC):
    """One run of a scheme: assigns each round's tasks, and knows when a job can be decoded."""

    batch_size: int | None = None
    """Of batches, where all have one size and are cut to whole points; else `loads` are nominal."""

    payload: Payload | None = None
    """The format in which results travel: answers that it leaves too inexact to decode lose a job.

    None: nothing is decoded, as in replay, and only what is here counts.
    """

    takes_late: bool = False
    """Whether answers to closed rounds may be of use; see `awaits`."""

    _reach: int | None = None
    """How many of the latest rounds decide everything that follows, and what they finished.

    None: all of them may. Whoever sets it (>= 1) sees to it that `_begin_at` is enough.
    """

    def __init__(
        self, scheme: Scheme, num_jobs: int, *, conformity: StragglerModel | None = None
    ) -> None:
        self.num_jobs: Final = require_int("num_jobs", num_jobs, least=1)
        self.num_rounds: Final = self.num_jobs + scheme.delay
        self.n: Final = scheme.n
        self._of: Final = scheme
        self._model = scheme.promise if conformity is None else conformity
        self._round = 0
        self._known: Collection[int] | None = None  # jobs that the open round is known to finish
        self._past: BoolArray = np.zeros((0, scheme.n), dtype=np.bool_)  # stragglers, latest last
        self._excused: BoolArray = np.zeros(scheme.n, dtype=np.bool_)
        self._leaves_out = False

    @property
    def scheme_name(self) -> str:
        """The scheme of this run, for messages: its spec, or its `repr` if it has none."""
        try:
            return self._of.spec
        except ParameterError:  # it is not registered
            return repr(self._of)

    @property
    def round(self) -> int:
        """The round that is open, 0-based; ``num_rounds`` once all are closed."""
        return self._round

    @property
    def excused(self) -> BoolArray:
        """(n,) who has no data point at all: asked for nothing, and never a straggler."""
        return self._excused

    @property
    def leaves_out(self) -> bool:
        """Whether some mini-task is never sent because it has no data point."""
        return self._leaves_out

    def leave_out(self, empty: BoolArray) -> None:
        """Say which chunks hold no data point, (num_chunks,), before the first round closes.

        A mini-task with nothing but such chunks is never sent, and counts as received: the partial
        gradient is zero. (A schedule that does not do so sends it, and waits for the zeros.)
        `ScheduleError`: a round is closed already.
        """
        if self._round:
            raise ScheduleError("chunks are left out before the first round, or not at all")
        self._leaves_out = bool(empty.any()) and self._leave_out(empty)

    def assignment(self) -> Assignment:
        """Who does what in the open round (trivial mini-tasks left out); idempotent."""
        self._require_open()
        return self._assign()

    def loads(self) -> FloatArray:
        """Return the share of a batch that each worker has in the open round, (n,).

        Unless the scheme says more, it is the same in every round: `Scheme.loads_of`. This is what
        replays charge, and what live runs are dispatched with (`seqgc.ports.Dispatch`).
        """
        self._require_open()
        return self._loads(self.batch_size)

    def conforms(self, responded: BoolArray) -> bool:
        """Whether the pattern so far, this round included, fits the scheme's straggler model.

        More answers never hurt. Only windows that end with this round are judged: the earlier ones
        were, when they closed.
        """
        responded = self._checked(responded)
        return self._model.admits(np.concatenate([self._past, ~responded[None]]))

    def feasible(self, responded: BoolArray) -> bool:
        """Whether closing the round with these answers loses no job; more answers never hurt.

        That is, if nobody straggled from then on, every job in flight would be decoded by its
        deadline, and the job due now can be decoded (docs/mathematics.md, section 6); to a useful
        precision where there is a `payload`.
        """
        return self._feasible(self._checked(responded))

    def enough(self, responded: BoolArray) -> bool:
        """Whether the scheme would have the round closed: feasible, and all in that it waits for.

        More answers never hurt. A round that can get no more closes on what is `feasible`.
        """
        responded = self._checked(responded)
        return self._feasible(responded) and self._enough(responded)

    def awaits(self, round: int, worker: int) -> bool:
        """Whether a worker's answer to a closed round, if it came now, would be of use."""
        is_closed = self.takes_late and 0 <= round < self._round < self.num_rounds
        return is_closed and 0 <= worker < self.n and self._awaits(round, worker)

    def close_round(self, responded: BoolArray) -> tuple[int, ...]:
        """Close the open round with the answers (n,) to be used; return the jobs that it finished.

        `NotDecodableError`: the job due now cannot be decoded, and nothing has changed;
        `ScheduleError`: every round is closed already.
        """
        responded = self._checked(responded)
        finished = self._advance(responded)
        past = np.concatenate([self._past, ~responded[None]])
        self._past = past[max(0, len(past) + 1 - self._model.window) :]
        self._round += 1
        return finished

    def asked(self, round: int) -> Assignment:
        """Return what those were asked for, in a closed round, whose answers are of use now.

        Of other workers it says nothing, and leaves out mini-tasks whose results are of no use.
        """
        return self._asked(round)

    def take_late(self, round: int, worker: int) -> None:
        """Count a worker's answer to a closed round from now on.

        `ScheduleError`: nobody `awaits` it, and nothing has changed.
        """
        if not self.awaits(round, worker):
            line = f"nobody awaits the answer of worker {worker} to round {round}: drop it"
            raise ScheduleError(line)
        self._take_late(round, worker)

    def repeat(
        self,
        answers: Sequence[BoolArray],
        late: Mapping[int, Sequence[LateAnswer]] = MappingProxyType({}),
        finished: Mapping[int, Collection[int]] = MappingProxyType({}),
    ) -> None:
        """Close the first rounds as they were closed before, on these answers (n,) each.

        ``late`` says which late answers each round took, if any, and ``finished`` which jobs it
        finished, where that is known: it need not be judged again then. It takes time for those
        rounds alone on which something still depends, and these raise what `close_round` does.
        `ScheduleError`: a round is closed already.
        """
        if self._round:
            raise ScheduleError("rounds are repeated before any other closes, or not at all")
        first = 0 if self._reach is None else max(0, len(answers) - self._reach)
        window = answers[max(0, len(answers) + 1 - self._model.window) : first]
        past = [~self._checked(responded) for responded in window]
        self._past = np.array(past, dtype=np.bool_).reshape(-1, self.n)
        self._round = first
        self._begin_at(first)
        for number in range(first, len(answers)):
            for round, worker in late.get(number, ()):
                if self.awaits(round, worker):  # else it is of a job before those begun with
                    self._take_late(round, worker)
            self._known = finished.get(number)
            self.close_round(answers[number])
        self._known = None

    @abstractmethod
    def decoding(self, job: int, payload: Payload = "float64") -> Decoding:
        """Return the gradient of a job that the latest `close_round` finished, as a sum.

        ``payload``, the format in which results travel, says how much amplification is bearable.
        `ScheduleError`: the latest `close_round` did not finish ``job``; `IllConditionedError`: the
        answers determine the gradient, but not to a useful precision.
        """

    def _leave_out(self, empty: BoolArray) -> bool:  # noqa: ARG002 (for overriding)
        """Take note of chunks without data points; say whether a mini-task has no others."""
        return False

    def _begin_at(self, round: int) -> None:  # noqa: B027 (for overriding)
        """Begin at a round instead of the first, as if no earlier job had been: see `_reach`."""

    def _loads(self, batch_size: int | None) -> FloatArray:
        return self._of.loads_of(batch_size)

    def _enough(self, responded: BoolArray) -> bool:  # noqa: ARG002 (for overriding)
        """Whether answers that are feasible are all that the scheme would wait for."""
        return True

    def _awaits(self, round: int, worker: int) -> bool:  # noqa: ARG002 (for overriding)
        return False

    def _asked(self, round: int) -> Assignment:
        line = f"nobody awaits an answer to round {round}: {type(self).__name__} takes none late"
        raise ScheduleError(line)

    def _take_late(self, round: int, worker: int) -> None:  # noqa: B027 (for overriding)
        """Count an awaited answer."""

    @abstractmethod
    def _assign(self) -> Assignment: ...

    @abstractmethod
    def _feasible(self, responded: BoolArray) -> bool: ...

    @abstractmethod
    def _advance(self, responded: BoolArray) -> tuple[int, ...]: ...

    def _require_open(self) -> None:
        if self._round >= self.num_rounds:
            raise ScheduleError(f"all {self.num_rounds} rounds are closed: start a new schedule")

    def _checked(self, responded: BoolArray) -> BoolArray:
        self._require_open()
        is_mask = isinstance(responded, np.ndarray) and responded.dtype == _BOOL
        if not is_mask or responded.shape != (self.n,):
            value = (getattr(responded, "dtype", type(responded).__name__), np.shape(responded))
            raise ParameterError("responded", f"must be a boolean array ({self.n},)", value)
        return responded | self._excused

    def _late(self, job: int) -> NotDecodableError:
        what = f"job {job} is due in round {self._round} and cannot be decoded"
        return NotDecodableError(f"{what}: wait for more answers", job=job, round=self._round)

    def _not_finished(self, job: int) -> ScheduleError:
        return ScheduleError(f"job {job} was not finished by the round closed last: decode it then")


def require_late(late: str, *, name: str) -> None:
    """Refuse what says neither that late answers are taken nor that they are dropped."""
    if late not in ("take", "drop"):
        raise ParameterError("late", f"must be take or drop ({name})", late)
