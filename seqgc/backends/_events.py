"""The common part of all backends: checks, messages of tasks, and the queue of events."""

from __future__ import annotations

import hashlib
import itertools
import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Self, TypeAlias

from seqgc.errors import ParameterError, SkewError, WorkerError, one_line, require_int
from seqgc.ports import (
    Arrival,
    Clock,
    Failure,
    Notice,
    PartialArrival,
    Payload,
    Task,
    payload_format,
)
from seqgc.wire import FailureMessage, ResultMessage, TaskMessage

__all__ = [
    "LONGEST_WAIT_S",
    "Delays",
    "EventBackend",
    "Messaging",
    "MonotonicClock",
    "Owed",
    "PausableClock",
    "TaskDelays",
    "TaskKey",
    "event_of",
    "failure_of",
    "partial_event_of",
]

LONGEST_WAIT_S: Final = 3600.0
"""The longest wait in one system call, in seconds; a backend then waits again.

No system call accepts an infinite wait, and some accept at most 24 days.
"""
_AWAY_S: Final = 0.5  # time without a look for events after which the master counts as away
_MOMENT_S: Final = 0.1  # time that a thread that was stopped may need to stamp an event

Delays: TypeAlias = Callable[[int, int], float]
"""``delays(round, worker)``: the least response time of a first attempt, in seconds."""

TaskDelays: TypeAlias = Callable[[Task], float]
"""``delays(task)``: the least response time of a task, in seconds."""


class MonotonicClock:
    """The clock of `time.monotonic`."""

    def now(self) -> float:
        return time.monotonic()


class PausableClock:
    """A clock that can be paused. All threads may use it.

    A backend pauses the clock of its run while it has no worker at all. No policy then waits for a
    time limit, and no policy has to know the reason.

    Examples
    --------
    >>> from seqgc.testing import HandWoundClock
    >>> time = HandWoundClock(100.0)
    >>> clock = PausableClock(time)
    >>> clock.pause(); time.wind(60.0); clock.now()
    100.0
    >>> clock.resume(); time.wind(1.0); clock.now()
    101.0
    """

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._paused_at: float | None = None
        self._paused_s = 0.0  # in all earlier pauses

    def now(self) -> float:
        with self._lock:
            now = self._clock.now() if self._paused_at is None else self._paused_at
            return now - self._paused_s

    @property
    def is_paused(self) -> bool:
        return self._paused_at is not None

    def pause(self) -> None:
        """Let time stand still, unless it does already."""
        with self._lock:
            if self._paused_at is None:
                self._paused_at = self._clock.now()

    def resume(self) -> None:
        """Let time pass again."""
        with self._lock:
            if self._paused_at is not None:
                self._paused_s += self._clock.now() - self._paused_at
                self._paused_at = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Messaging:
    """The common contents of a run's messages, and the format of its results.

    Parameters
    ----------
    run_id
        The run's id, which is in every frame; frames of another run raise an error. Functions store
        objects of a run by this id: two runs on the same functions must have different ids.
    rounding_name
        The seed of stochastic rounding, together with round, worker, attempt and slot. Runs with
        the same name round equal results equally. The default is ``run_id``.
    code
        The name of the code that the run uses, at most 100 characters; it is in every frame.
    delays
        ``delays(round, worker)`` are the least seconds from the arrival of a task at the worker to
        the departure of its answer. The time of computing is included, not added. Only first
        attempts are delayed: a repeated attempt stands for a new environment. None: no delays.
    task_delays
        ``task_delays(task)`` are the same seconds for each task, instead of ``delays``. Use it if
        work is dealt, because attempts then do not belong to rounds. If a task asks for an answer
        to each item, the first k items have the delay of a task with their load
        (docs/mathematics.md, section 7). With ``delays``, all items have the delay of the task.
    payload
        The format in which results travel (see `seqgc.ports`). Workers round results to this
        format, and events contain the rounded results. None: the results' own dtype.
    stochastic_rounding
        True to round to ``payload`` stochastically.

    Raises
    ------
    ParameterError
        If ``payload`` is unknown, or is None although ``stochastic_rounding`` is True.

    Examples
    --------
    >>> messaging = Messaging(delays=lambda round, worker: 0.5, payload="bfloat16")
    >>> messaging.message(Task(round=3, worker=1, attempt=0, items=())).delay_s
    0.5
    """

    run_id: str = "run"
    rounding_name: str | None = None
    code: str = ""
    delays: Delays | None = None
    task_delays: TaskDelays | None = None
    payload: Payload | None = None
    stochastic_rounding: bool = False

    def __post_init__(self) -> None:
        if self.payload is not None:
            payload_format(self.payload)
        elif self.stochastic_rounding:
            rule = "must be given with `stochastic_rounding`, because results are rounded to it"
            raise ParameterError("payload", rule, self.payload)

    @property
    def seed(self) -> int | None:
        """The seed of stochastic rounding, from 0 to ``2**48``; None if it is off."""
        if not self.stochastic_rounding:
            return None
        name = self.run_id if self.rounding_name is None else self.rounding_name
        # Do not use `hash`, which differs between processes.
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "little")

    def message(self, task: Task) -> TaskMessage:
        """Return a task's message; raise `ParameterError` if its delay is invalid."""
        delay_s = self._delay_s(task)
        part_delays_s: tuple[float, ...] = ()
        if task.item_loads:
            loads = itertools.accumulate(task.item_loads[:-1])
            parts_s = [min(delay_s, self._delay_s(replace(task, load=load))) for load in loads]
            part_delays_s = tuple(itertools.accumulate([*parts_s, delay_s], max))
        return TaskMessage(
            task=task,
            delay_s=delay_s,
            part_delays_s=part_delays_s,
            payload=self.payload,
            rounding_seed=self.seed,
            code=self.code,
        )

    def _delay_s(self, task: Task) -> float:
        delay_s = 0.0
        if self.task_delays is not None:
            delay_s = float(self.task_delays(task))
        elif self.delays is not None and task.attempt == 0:
            delay_s = float(self.delays(task.round, task.worker))
        if not 0 <= delay_s < math.inf:
            where = f"round {task.round}, worker {task.worker}"
            raise ParameterError("delays", f"must be finite seconds >= 0 ({where})", delay_s)
        return delay_s


class EventBackend(ABC):
    """The common part of a `seqgc.ports.Backend` of ``n`` workers, and a context manager.

    The context manager closes the backend. Events are queued by `_tell` in the order of their
    times, and stamped by ``clock`` (None: `time.monotonic`). If a dispatch raises an error, none of
    its tasks has been sent.

    Raises
    ------
    ParameterError
        If ``n`` is not positive, a worker does not exist, a task belongs to another round, or a
        delay is negative or not finite.
    WireError
        If a task cannot be sent.
    WorkerError
        If the backend is closed.
    """

    def __init__(self, n: int, *, messaging: Messaging | None, clock: Clock | None) -> None:
        self.n: Final = require_int("n", n, least=1)
        self._messaging: Final = messaging or Messaging()
        self._clock: Final[Clock] = clock or MonotonicClock()
        # Each event with the earliest time at which it may have come, which decides if it is late.
        self._events: Final[deque[tuple[float, Arrival | PartialArrival | Failure]]] = deque()
        self._notices: Final[deque[Notice]] = deque()
        # When the last look for events began, when it ended or should have ended, and the time
        # since which incoming events were not read.
        self._looked_at, self._back_at, self._unread_since = -math.inf, -math.inf, math.inf
        self._was_away = False  # True if the master did not look for events for a long time
        self._closed = False

    _reads_elsewhere: ClassVar[bool] = True
    """True if other threads or processes read the answers, and `_collect` asks these threads."""

    def receive(self, until: float) -> Arrival | PartialArrival | Failure | Notice | None:
        """Return the next event that may have come by ``until``; None if ``until`` has passed.

        Notices about the workers come first.

        Events are returned in the order of their times. An event that came after ``until`` is
        returned by a later call, so that a deadline does not depend on the time of this call. If
        the master was busy or stopped for half a second while ``until`` passed, the arrival times
        of the events that it reads afterwards are not known. They count as in time, although their
        ``at``, the time of reading, is after ``until``.
        """
        self._check_open()
        while not (self._notices or self._look(until) or self._events):
            pass
        if self._notices:
            return self._notices.popleft()
        if any(came_at <= until for came_at, _ in self._events):  # usually the first event
            return self._events.popleft()[1]
        return None

    def close(self) -> None:
        """End the backend, and everything that it started; further calls do nothing."""
        self._closed = True
        self._events.clear()
        self._notices.clear()
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- methods that a backend defines ---------------------------------------------------------

    @abstractmethod
    def _collect(self, timeout_s: float) -> None:
        """Queue the incoming events; wait for the first of them at most ``timeout_s`` seconds."""

    @abstractmethod
    def _end(self) -> None:
        """Release all resources; may be called again, because a call may be interrupted."""

    # ---- methods that a backend uses ------------------------------------------------------------

    def _look(self, until: float = -math.inf) -> bool:
        """Queue the incoming events; if there is no event, wait for one until ``until``.

        Return True if ``until`` has passed. Normally the stamp of an event is taken as its exact
        time: a run closes its rounds by the stamps, as a replay does. If the master has not looked
        for half a second, an event may be older than its stamp. It may then have come at any time
        since the last look began, because the master may have been stopped while it waited.
        """
        now = self._clock.now()  # read first: events that came before this time are collected below
        left = until - now
        wait_s = 0.0 if self._events else max(0.0, left)
        self._was_away = not wait_s and now - self._back_at >= _AWAY_S
        self._unread_since = self._looked_at if self._was_away else math.inf
        self._looked_at = now
        self._collect(wait_s)
        if wait_s and self._clock.now() - (now + wait_s) >= _AWAY_S:
            # The master was stopped while it waited: the events may have come in the meantime.
            self._was_away, self._unread_since = True, now
            for _ in range(len(self._events)):
                came_at, event = self._events.popleft()
                self._events.append((min(came_at, now), event))
        if self._was_away and self._reads_elsewhere and not left > _AWAY_S:  # `until` is near
            self._catch_up()
        self._back_at = min(now + wait_s, self._clock.now())
        self._unread_since = math.inf
        return not left > 0  # True for NaN too

    def _catch_up(self) -> None:
        """Continue to read while events come in: the threads that read them were stopped too."""
        count, give_up_at = -1, self._clock.now() + _AWAY_S
        while count < len(self._events) and (left := give_up_at - self._clock.now()) > 0:
            count = len(self._events)
            self._collect(min(left, _MOMENT_S))

    def _tell(self, event: Arrival | PartialArrival | Failure, *, is_own: bool = False) -> None:
        """Queue an event; if its stamp is before the beginning of this look, its time is exact.

        ``is_own`` is True for an event that the backend itself causes, such as a failure by a
        restart. It counts as in time.
        """
        moment_s = _MOMENT_S if self._was_away else 0.0  # the stamping thread was stopped, too
        was_seen = event.at < self._looked_at - moment_s
        came_at = event.at if was_seen else min(event.at, self._unread_since)
        self._events.append((-math.inf if is_own else came_at, event))

    def _requests(self, round: int, tasks: Sequence[Task]) -> list[TaskMessage]:
        """Return the messages of a dispatch; raise if a task is invalid, or the backend closed."""
        self._check_workers([task.worker for task in tasks])
        if strange := [task.round for task in tasks if task.round != round]:
            raise ParameterError("tasks", f"must all be of round {round}", strange[0])
        return [self._messaging.message(task) for task in tasks]

    def _check_workers(self, workers: Sequence[int]) -> None:
        """Raise if a worker does not exist, or if the backend is closed."""
        self._check_open()
        for worker in workers:
            if not 0 <= worker < self.n:
                raise ParameterError("worker", f"must satisfy 0 <= worker < {self.n}", worker)

    def _check_open(self) -> None:
        if self._closed:
            raise WorkerError("the backend is closed: make a new one")


def event_of(answer: ResultMessage | FailureMessage, *, at: float) -> Arrival | Failure:
    r"""Return the event for a worker's last answer to a task, which was read at ``at``.

    Raises
    ------
    SkewError
        If the answer is a final failure: the worker's code or data differ from the master's.

    Examples
    --------
    >>> from seqgc.wire import Subject
    >>> subject = Subject(round=2, worker=1, attempt=0)
    >>> event_of(FailureMessage(subject=subject, reason="no\nfile"), at=5.0).reason
    'no file'
    """
    if isinstance(answer, FailureMessage):
        if answer.final:
            round, worker, _ = answer.subject.address
            raise SkewError(answer.reason, round=round, worker=worker)
        return failure_of(answer.subject.address, at=at, reason=answer.reason)
    round, worker, attempt = answer.subject.address
    return Arrival(
        round=round,
        worker=worker,
        attempt=attempt,
        at=at,
        results=answer.results,
        flaws=answer.flaws,
        phases=answer.phases,
    )


def partial_event_of(answer: ResultMessage, *, at: float) -> PartialArrival:
    """Return the event for an answer that is not the last one, which was read at ``at``."""
    round, worker, attempt = answer.subject.address
    (slot,) = answer.results
    return PartialArrival(
        round=round, worker=worker, attempt=attempt, at=at, slot=slot, results=answer.results
    )


def failure_of(
    address: tuple[int, int, int],
    *,
    at: float,
    reason: str | BaseException,
    model: str | None = None,
) -> Failure:
    """Return the `Failure` of the task ``address`` (round, worker, attempt).

    ``reason`` is a text or an error, which is reduced to one line. If the process that computed the
    task has died, ``model`` is the model that it was computing, or empty if the model is not known.
    """
    round, worker, attempt = address
    text = reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}"
    text += f" while it computed model {model!r}" if model else ""
    return Failure(
        round=round, worker=worker, attempt=attempt, at=at, reason=one_line(text), model=model
    )


TaskKey: TypeAlias = tuple[int, int]
"""The round and attempt of a task, which identify it among the tasks of one worker."""
_LATE = 64  # number of recently cancelled tasks of a worker whose answers may still come


@dataclass(slots=True)
class Owed:
    """The unanswered tasks of a process or function, and its recently cancelled tasks."""

    tasks: set[TaskKey] = field(default_factory=set)
    late: deque[TaskKey] = field(default_factory=lambda: deque(maxlen=_LATE))

    def cancel(self, round: int, *, unsent: Container[TaskKey] = ()) -> bool:
        """Cancel the tasks of a round; return True if any of them had been sent."""
        over = {task for task in self.tasks if task[0] == round}
        self.tasks -= over
        sent = [task for task in over if task not in unsent]
        self.late.extend(sent)
        return bool(sent)

    def settle(self, event: Arrival | Failure) -> bool:
        """Record an answer; return True if the master must receive it.

        The master does not receive an answer to a task that was never sent or is already answered,
        nor the failure of a cancelled task.
        """
        task = (event.round, event.attempt)
        if task in self.tasks:
            self.tasks.discard(task)
            return True
        if task in self.late:
            self.late.remove(task)
            return isinstance(event, Arrival)  # a cancelled task may fail without its weights
        return False

    def lose(self) -> list[TaskKey]:
        """Remove all tasks; return the unanswered tasks in order."""
        lost = sorted(self.tasks)
        self.tasks.clear()
        self.late.clear()
        return lost
