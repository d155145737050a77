"""`Scheme` (frozen parameters of a defence by rounds) and `Schedule` (one run's state)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from seqgc.codes import GradientCode
from seqgc.errors import (
    IllConditionedError,
    NotDecodableError,
    ParameterError,
    ScheduleError,
    require_int,
)
from seqgc.ports import BoolArray, Decoding, Payload
from seqgc.schemes._assignment import Assignment
from seqgc.schemes._defence import Defence
from seqgc.stragglers import StragglerModel


class Scheme(Defence):
    """How redundancy is spread over workers and rounds; frozen, picklable, ``eval(repr(x)) == x``.

    A scheme of your own is a frozen dataclass with the field ``n``, registered under a name
    (`seqgc.schemes.register`); `seqgc.testing.check_scheme` says whether it keeps this contract.
    """

    @property
    @abstractmethod
    def tolerated(self) -> int:
        """Stragglers that the scheme's inner gradient code tolerates (``s``, or lam for M-SGC)."""

    @property
    @abstractmethod
    def promise(self) -> StragglerModel:
        """The straggler patterns under which no job is ever late."""

    @abstractmethod
    def start(self, num_jobs: int, *, conformity: StragglerModel | None = None) -> Schedule:
        """Begin a run of ``num_jobs`` jobs, which takes ``num_jobs + delay`` rounds.

        ``conformity`` is what `Schedule.conforms` judges by, instead of the scheme's own promise.
        """

    def begin(
        self,
        num_jobs: int,
        *,
        conformity: StragglerModel | None = None,
        batches: Iterable[int] = (),
    ) -> Schedule:
        """Return `start`'s schedule, without what batches of these sizes put no point into."""
        schedule = self.start(num_jobs, conformity=conformity)
        if cuts := [self.cut(batch) for batch in batches]:
            schedule.leave_out(np.max(cuts, axis=0) == 0)
        return schedule

    def jobs_in_flight(self, bundles: int) -> int:  # noqa: ARG002 (it does not depend on them)
        return self.delay + 1

    def fitted(self, bundles: int) -> Scheme:  # noqa: ARG002 (it leaves nothing open)
        return self

    @property
    def load_lower_bound(self) -> float:
        """Lower bound on the load of any exact scheme with this one's promise and delay."""
        return self.promise.load_lower_bound(self.n, delay=self.delay)


def by_rounds(defence: Defence, what: str) -> Scheme:
    """Return a defence that is a scheme; `ParameterError` if ``what`` needs one and it is none.

    Examples
    --------
    >>> from seqgc.schemes import Deal
    >>> by_rounds(Deal(n=2), "an audit")
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `scheme` must have rounds for an audit; got 'deal' (deal has \
none: take gc-rep or another one that `seqgc scheme` explains)
    """
    if isinstance(defence, Scheme):
        return defence
    remedy = "deal has none: take gc-rep or another one that `seqgc scheme` explains"
    raise ParameterError("scheme", f"must have rounds for {what}", defence.spec, remedy)


class Schedule(ABC):
    """One run of a scheme: assigns each round's tasks, and knows when a job can be decoded.

    `close_round` is the only mutator once a run is under way. It replaces state and never edits it
    in place, so that ``copy.copy(schedule)`` is a snapshot, and a refused transition changes
    nothing.
    """

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
        self._model = scheme.promise if conformity is None else conformity
        self._allow_error = 0.0
        self._round = 0
        self._past: BoolArray = np.zeros((0, scheme.n), dtype=np.bool_)  # stragglers, latest last
        self._excused: BoolArray = np.zeros(scheme.n, dtype=np.bool_)
        self._leaves_out = False

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
        deadline, and the job due now can be decoded (docs/mathematics.md, section 6).
        """
        return self._feasible(self._checked(responded))

    def decodes_well(self, responded: BoolArray, payload: Payload = "float64") -> bool:
        """Whether what closing the round would settle, for good, decodes to a useful precision."""
        try:
            for code, answers in self._settles(self._checked(responded)):
                code.usable_vector(answers, payload, allow_error=self._allow_error)
        except (IllConditionedError, NotDecodableError):
            return False
        return True

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

    def repeat(self, answers: Sequence[BoolArray]) -> None:
        """Close the first rounds as they were closed before, on these answers (n,) each.

        It takes time for those rounds alone on which something still depends, and these raise what
        `close_round` does. `ScheduleError`: a round is closed already.
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
            self.close_round(answers[number])

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

    @abstractmethod
    def _assign(self) -> Assignment: ...

    @abstractmethod
    def _feasible(self, responded: BoolArray) -> bool: ...

    @abstractmethod
    def _settles(self, responded: BoolArray) -> list[tuple[GradientCode, BoolArray]]:
        """Return codes and answers (n,) that suffice, and that no later round adds to."""

    @abstractmethod
    def _advance(self, responded: BoolArray) -> tuple[int, ...]: ...

    def _require_open(self) -> None:
        if self._round >= self.num_rounds:
            raise ScheduleError(f"all {self.num_rounds} rounds are closed: start a new schedule")

    def _checked(self, responded: BoolArray) -> BoolArray:
        self._require_open()
        is_mask = isinstance(responded, np.ndarray) and responded.dtype == np.bool_
        if not is_mask or responded.shape != (self.n,):
            value = (getattr(responded, "dtype", type(responded).__name__), np.shape(responded))
            raise ParameterError("responded", f"must be a boolean array ({self.n},)", value)
        return responded | self._excused

    def _late(self, job: int) -> NotDecodableError:
        what = f"job {job} is due in round {self._round} and cannot be decoded"
        return NotDecodableError(f"{what}: wait for more answers", job=job, round=self._round)

    def _not_finished(self, job: int) -> ScheduleError:
        return ScheduleError(f"job {job} was not finished by the round closed last: decode it then")
