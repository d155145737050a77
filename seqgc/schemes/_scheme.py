"""`Scheme`, the frozen parameters of a defence that works in rounds, and `Schedule`, its state.

Theory of operation
-------------------
The state of a schedule depends only on the answers that were passed to it. The schedule decides
which mini-tasks each worker computes (`Schedule.assignment`), and whether the answers of a round
suffice (`Schedule.feasible`, `Schedule.enough`, `Schedule.conforms`). These methods change nothing,
and may be called any number of times. Two methods pass answers to a schedule:

- `Schedule.close_round` closes the open round with a set of answers. Each worker without an answer
  in this set is a straggler of the round.
- `Schedule.take_late` adds a straggler's late answer to a closed round. It may be called only if
  the answer is useful (`Schedule.awaits`), which requires that the schedule takes late answers
  (`Schedule.takes_late`) and that the answer has results of a job in flight. The assignment of the
  open round does not change, but fewer answers may suffice to close the round.

Both methods replace state and never edit it in place. Therefore ``copy.copy(schedule)`` is
independent of the schedule, and a call that raises changes nothing. The state can be stored as JSON
data (`Schedule.snapshot`), and a new schedule of the same scheme continues from this data
(`Schedule.restore`). The size of the data does not depend on the number of closed rounds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import ClassVar, Final

import numpy as np

from seqgc.errors import NotDecodableError, ParameterError, ScheduleError, require_int
from seqgc.ports import BoolArray, Decoding, FloatArray, MiniTask, Payload
from seqgc.schemes._defence import Defence
from seqgc.schemes._state import from_json, to_json
from seqgc.stragglers import StragglerModel

MiniTasks = tuple[MiniTask, ...]
_BOOL = np.dtype(np.bool_)


class Assignment:
    """The mini-tasks of each worker in a round, ordered by slot; () for an idle worker.

    Mini-tasks are created when they are first read. ``busy`` (n,) marks the workers that have
    mini-tasks, and ``tasks_of(worker)`` is called at most once for each busy worker. Its result
    must not change when the round closes.

    This saves time, because the decision when a round closes does not need the mini-tasks, and a
    replay reads none of them. To create the mini-tasks of 256 workers takes longer than to make
    this decision, and the first coded mini-task requires the coefficients of the code, which take
    long to compute.

    Examples
    --------
    >>> import numpy as np
    >>> task = MiniTask(job=0, slot=0, chunks=np.array([0]), coefficients=np.ones(1))
    >>> assignment = Assignment(np.array([True, False]), lambda worker: (task,))
    >>> assignment.idle, [len(tasks) for tasks in assignment]
    (False, [1, 0])
    """

    def __init__(self, busy: BoolArray, tasks_of: Callable[[int], MiniTasks]) -> None:
        self.busy, self.idle = busy, not np.count_nonzero(busy)
        self._tasks_of = tasks_of
        self._tasks: dict[int, MiniTasks] = {}

    def __len__(self) -> int:
        return len(self.busy)

    def __iter__(self) -> Iterator[MiniTasks]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, worker: int) -> MiniTasks:
        worker = range(len(self))[worker]
        if worker not in self._tasks:
            self._tasks[worker] = self._tasks_of(worker) if self.busy[worker] else ()
        return self._tasks[worker]


class Schedule(ABC):
    """The state of a run of a scheme: the tasks of the open round, and the unfinished jobs.

    The run has ``num_jobs`` jobs. `conforms` uses the straggler model ``conformity``; None means
    the scheme's promise.
    """

    batch_size: int | None = None
    """The number of data points in every batch; if None, `loads` returns nominal loads."""

    payload: Payload | None = None
    """The number format of results. Answers suffice only if they can be decoded in spite of its
    rounding errors. If it is None, as in a replay, rounding errors are not considered.
    """

    takes_late: bool = False
    """True if late answers to closed rounds may be useful; see `awaits`."""

    _state_names: ClassVar[tuple[str, ...]] = ()
    """The names of the attributes that a checkpoint must hold: those attributes that `_advance` or
    `_take_late` change and that later rounds read. Attributes that only `decoding` reads need not
    be named.
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
        self._past: BoolArray = np.zeros((0, scheme.n), dtype=np.bool_)  # stragglers by round
        self._excused: BoolArray = np.zeros(scheme.n, dtype=np.bool_)
        self._leaves_out = False

    @property
    def scheme_name(self) -> str:
        """The scheme's name in messages: its spec, or its `repr` if no name is registered."""
        try:
            return self._of.spec
        except ParameterError:
            return repr(self._of)

    @property
    def round(self) -> int:
        """The number of the open round, from 0; ``num_rounds`` if all rounds are closed."""
        return self._round

    @property
    def excused(self) -> BoolArray:
        """A mask (n,) of the workers without data points, which get no task and never straggle."""
        return self._excused

    @property
    def leaves_out(self) -> bool:
        """True if some mini-tasks are never sent, because they have no data points."""
        return self._leaves_out

    def leave_out(self, empty: BoolArray) -> None:
        """Leave out the chunks without data points, which ``empty`` (num_chunks,) marks.

        A mini-task that consists of empty chunks is never sent. It counts as received, because its
        partial gradient is zero. A schedule that does not support this sends such mini-tasks all
        the same, and waits for their results. Raises `ScheduleError` if a round has been closed.
        """
        if self._round:
            raise ScheduleError(
                f"chunks can only be left out before the first round closes, but round "
                f"{self._round} is open: call `leave_out` on a new schedule"
            )
        self._leaves_out = bool(empty.any()) and self._leave_out(empty)

    def assignment(self) -> Assignment:
        """Return the mini-tasks of the open round, except those `leave_out` has removed.

        Raises `ScheduleError` if all rounds are closed.
        """
        self._require_open()
        return self._assign()

    def loads(self) -> FloatArray:
        """Return the fraction of a batch that each worker computes in the open round, (n,).

        By default the loads are `Scheme.loads_of` in every round. Replays compute the times of
        answers from the loads. Raises `ScheduleError` if all rounds are closed.
        """
        self._require_open()
        return self._loads(self.batch_size)

    def conforms(self, responded: BoolArray) -> bool:
        """Return True if the straggler model admits the stragglers up to and including this round.

        ``responded`` (n,) marks the workers that have answered in the open round. Additional
        answers never turn the result from True to False. Only windows of rounds that end with this
        round are checked.
        """
        responded = self._checked(responded)
        return self._model.admits(np.concatenate([self._past, ~responded[None]]))

    def feasible(self, responded: BoolArray) -> bool:
        """Return True if the round can close with these answers without losing a job.

        ``responded`` (n,) marks the workers that have answered. No job is lost if the job whose
        deadline is this round can be decoded, and every other job in flight could be decoded by its
        deadline if no worker straggled in later rounds (docs/mathematics.md, section 6). If
        `payload` is given, decoding must be possible to a useful precision. Additional answers
        never turn the result from True to False.
        """
        return self._feasible(self._checked(responded))

    def enough(self, responded: BoolArray) -> bool:
        """Return True if the round need not wait for further answers.

        This requires that the round can close with the answers ``responded`` (n,) (`feasible`), and
        that the scheme does not wait for more. Additional answers never turn the result from True
        to False. If no further answer can come, the round closes if these answers are `feasible`.
        """
        responded = self._checked(responded)
        return self._feasible(responded) and self._enough(responded)

    def awaits(self, round: int, worker: int) -> bool:
        """Return True if a worker's answer to a closed round would be useful if it came now."""
        is_closed = self.takes_late and 0 <= round < self._round < self.num_rounds
        return is_closed and 0 <= worker < self.n and self._awaits(round, worker)

    def close_round(self, responded: BoolArray) -> tuple[int, ...]:
        """Close the open round with the answers ``responded`` (n,); return the finished jobs.

        Raises `NotDecodableError`, and changes nothing, if a job whose deadline is this round
        cannot be decoded. Raises `ScheduleError` if all rounds are closed.
        """
        responded = self._checked(responded)
        finished = self._advance(responded)
        past = np.concatenate([self._past, ~responded[None]])
        self._past = past[max(0, len(past) + 1 - self._model.window) :]
        self._round += 1
        return finished

    def asked(self, round: int) -> Assignment:
        """Return the mini-tasks of a closed round whose late results would be useful now.

        Raises `ScheduleError` if the schedule takes no late answers.
        """
        return self._asked(round)

    def take_late(self, round: int, worker: int) -> None:
        """Use a worker's late answer to a closed round from now on.

        Raises `ScheduleError`, and changes nothing, if `awaits` is False for the answer.
        """
        if not self.awaits(round, worker):
            raise ScheduleError(
                f"the answer of worker {worker} to round {round} is no longer useful: drop it"
            )
        self._take_late(round, worker)

    def snapshot(self) -> dict[str, object]:
        """Return the state as JSON data, from which `restore` continues.

        The state does not contain the jobs that the latest round has finished: decode these jobs
        before. Raises `ScheduleError` if JSON data cannot hold an attribute, or if a scheme with a
        delay does not say which attributes are its state.
        """
        try:
            own = {name: to_json(value) for name, value in self._snapshot().items()}
        except TypeError as error:
            raise ScheduleError(
                f"the state of {self.scheme_name} cannot be stored: {error} (store numbers, texts, "
                "arrays, and lists, tuples, sets or dicts of these)"
            ) from error
        return {"round": self._round, "past": to_json(self._past), "own": own}

    def restore(self, state: object) -> None:
        """Continue from a `snapshot` that was read back from JSON.

        The snapshot must come from a schedule of the same scheme, with the same batches and
        payload. This schedule may have fewer jobs, if the omitted jobs had not begun.

        Raises
        ------
        ScheduleError
            If a round of this schedule has been closed.
        TypeError, KeyError, ValueError
            If ``state`` is not a snapshot of such a schedule.
        """
        if self._round:
            raise ScheduleError(
                "a schedule can only be restored before its first round closes, but round "
                f"{self._round} is open: restore a new schedule"
            )
        if not isinstance(state, Mapping):
            raise TypeError(f"the state of a schedule must be a mapping; got {state!r}")
        round = require_int("round", state["round"], least=0, most=self.num_rounds)
        past = np.asarray(from_json(state["past"]), dtype=np.bool_).reshape(-1, self.n)
        own = {name: from_json(value) for name, value in state["own"].items()}
        self._past, self._round = past, round
        self._restore(own)

    @abstractmethod
    def decoding(self, job: int, payload: Payload = "float64") -> Decoding:
        """Return the weighted sum of results that is the gradient of a job.

        The job must have been finished by the latest call of `close_round`. ``payload`` is the
        number format of results. It limits how much decoding may amplify their rounding errors.

        Raises
        ------
        ScheduleError
            If the latest `close_round` did not finish ``job``.
        IllConditionedError
            If the answers determine the gradient, but not to a useful precision.
        """

    def _leave_out(self, empty: BoolArray) -> bool:  # noqa: ARG002 (for overriding)
        """Record the empty chunks; return True if some mini-task consists of empty chunks."""
        return False

    def _snapshot(self) -> Mapping[str, object]:
        """Return the state of this class: by default the attributes in `_state_names`, by name.

        The values are None, booleans, numbers, texts, arrays, and lists, tuples, sets or dicts of
        such values. Override this method and `_restore` if attributes have other types.
        """
        if self._of.delay and not self._state_names:
            raise ScheduleError(
                f"{type(self).__name__} has jobs in flight (delay {self._of.delay}), but names no "
                "attributes that a checkpoint must hold: name the attributes that `_advance` "
                "changes in `_state_names`"
            )
        return {name: getattr(self, name) for name in self._state_names}

    def _restore(self, state: Mapping[str, object]) -> None:
        """Set the state that `_snapshot` of another schedule returned; `round` is set already."""
        for name in self._state_names:
            setattr(self, name, state[name])

    def _loads(self, batch_size: int | None) -> FloatArray:
        return self._of.loads_of(batch_size)

    def _enough(self, responded: BoolArray) -> bool:  # noqa: ARG002 (for overriding)
        """Return True if the scheme does not wait for more, given that `_feasible` is True."""
        return True

    def _awaits(self, round: int, worker: int) -> bool:  # noqa: ARG002 (for overriding)
        return False

    def _asked(self, round: int) -> Assignment:
        name = type(self).__name__
        raise ScheduleError(f"{name} takes no late answers: drop the answers to round {round}")

    def _take_late(self, round: int, worker: int) -> None:  # noqa: B027 (for overriding)
        """Use a late answer for which `_awaits` is True."""

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
        line = f"job {job} is due in round {self._round}, but these answers do not decode it"
        return NotDecodableError(f"{line}: wait for more answers", job=job, round=self._round)

    def _not_finished(self, job: int) -> ScheduleError:
        return ScheduleError(
            f"job {job} cannot be decoded now: decode it right after `close_round` returns it"
        )


class Scheme(Defence):
    """A defence that works in rounds, and spreads redundant work over workers and rounds.

    To add a scheme, write a frozen dataclass with the field ``n`` that implements the abstract
    methods, and register it under a name (`seqgc.schemes.register`).
    `seqgc.testing.check_scheme` tests whether the class fulfils the contract. If the attribute
    ``late`` is ``drop``, answers to closed rounds are ignored. If it is ``take``, such answers are
    used as long as they are useful.
    """

    late: str = "drop"

    @property
    @abstractmethod
    def tolerated(self) -> int:
        """The number of stragglers that the scheme's code tolerates, such as ``s`` or ``lam``."""

    @property
    @abstractmethod
    def promise(self) -> StragglerModel:
        """The straggler patterns for which every job is decoded by its deadline."""

    @abstractmethod
    def start(self, num_jobs: int, *, conformity: StragglerModel | None = None) -> Schedule:
        """Return the schedule of a run of ``num_jobs`` jobs, which has ``num_jobs + delay`` rounds.

        `Schedule.conforms` uses the straggler model ``conformity``; None means the `promise`.
        """

    def begin(
        self,
        num_jobs: int,
        *,
        conformity: StragglerModel | None = None,
        batches: Iterable[int] = (),
        payload: Payload | None = None,
    ) -> Schedule:
        """Return the schedule of a run (`start`) with known batch sizes and payload format.

        ``batches`` are the batch sizes of the models, in data points. Chunks that are empty in all
        batches are left out (`Schedule.leave_out`). ``payload`` is explained at `Schedule.payload`.
        """
        schedule, sizes = self.start(num_jobs, conformity=conformity), set(batches)
        schedule.payload = payload
        if cuts := [self.cut(size) for size in sizes]:
            schedule.leave_out(np.max(cuts, axis=0) == 0)
        if len(sizes) == 1:
            (schedule.batch_size,) = sizes
        return schedule

    def jobs_in_flight(self, bundles: int) -> int:  # noqa: ARG002 (the same for any number)
        return self.delay + 1

    def jobs_read(self, bundles: int) -> int:
        # A late answer is useful for ``delay`` rounds; its task may read ``delay`` earlier jobs.
        return self.jobs_in_flight(bundles) + (self.delay if self.late == "take" else 0)

    def fitted(self, bundles: int, *, batch: int | None = None) -> Scheme:  # noqa: ARG002
        return self

    @property
    def load_lower_bound(self) -> float:
        """A lower bound on the largest load of any exact scheme with this promise and delay.

        The bound holds for schemes that work for runs of any length. A scheme with a delay that is
        made for runs of a few jobs may have a smaller load (docs/mathematics.md, section 4).
        """
        return self.promise.load_lower_bound(self.n, delay=self.delay)


def by_rounds(defence: Defence, what: str) -> Scheme:
    """Return the defence if it is a `Scheme`; otherwise raise `ParameterError`.

    The message says that ``what`` needs rounds.

    Examples
    --------
    >>> from seqgc.schemes import Deal
    >>> by_rounds(Deal(n=2), "an audit")
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `scheme` must have rounds for an audit; got 'deal' (use \
gc-rep or another scheme; `seqgc scheme` lists them)
    """
    if isinstance(defence, Scheme):
        return defence
    remedy = "use gc-rep or another scheme; `seqgc scheme` lists them"
    raise ParameterError("scheme", f"must have rounds for {what}", defence.spec, remedy)


def require_late(late: str, *, name: str) -> None:
    """Raise `ParameterError` if ``late`` is neither ``take`` nor ``drop``."""
    if late not in ("take", "drop"):
        raise ParameterError("late", f"must be take or drop ({name})", late)
