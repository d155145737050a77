"""The common part of all backends: checks, messages of tasks, and the queue of events."""

from __future__ import annotations

import hashlib
import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Self, TypeAlias

from seqgc.errors import ParameterError, SkewError, WorkerError, one_line, require_int
from seqgc.ports import Arrival, Clock, Failure, Payload, Task, payload_format
from seqgc.wire import FailureMessage, ResultMessage, TaskMessage

__all__ = [
    "LONGEST_WAIT_S",
    "Delays",
    "EventBackend",
    "Messaging",
    "MonotonicClock",
    "Owed",
    "TaskDelays",
    "TaskKey",
    "event_of",
    "failure_of",
]

LONGEST_WAIT_S: Final = 3600.0
"""Seconds; then a backend waits again. No system call takes infinity, some at most 24 days."""

_AWAY_S: Final = 0.5  # as long as everything goes well, looks are milliseconds apart
_MOMENT_S: Final = 0.1

Delays: TypeAlias = Callable[[int, int], float]
"""``delays(round, worker)``: the least response time of a first attempt, seconds."""

TaskDelays: TypeAlias = Callable[[Task], float]
"""``delays(task)``: the least response time of a task, seconds."""


class MonotonicClock:
    """Seconds of `time.monotonic`."""

    def now(self) -> float:
        """Return the time, seconds."""
        return time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class Messaging:
    """The common contents of a run's messages, and the format of its results.

    Parameters
    ----------
    run_id
        Written into every frame; frames of another run are refused. Functions keep what they make
        for a run by it: no two runs on the same functions may share one.
    rounding_name
        Seeds stochastic rounding, with round, worker, attempt and slot, so that a repeated run of
        that name rounds the same results alike; ``run_id`` unless given.
    code
        Names the code that the run uses, at most 100 characters; written into every frame.
    delays
        ``delays(round, worker)``, seconds: the answer leaves the worker no earlier than this after
        the task was received (the response time as a whole, not an addition to computing). First
        attempts only: a repeated attempt stands for a fresh environment. None: no delays.
    task_delays
        The same of every single task, instead; where work is dealt, an attempt is none of a round.
    payload
        The format in which results travel (see `seqgc.ports`); workers round, events hold what
        comes out of it. None: the results' own dtype.
    stochastic_rounding
        Round to ``payload`` stochastically.

    Raises
    ------
    ParameterError
        If there is no such ``payload``, or none is given to round to stochastically.

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
            rule = "must be given where `stochastic_rounding` is: nothing is rounded else"
            raise ParameterError("payload", rule, self.payload)

    @property
    def seed(self) -> int | None:
        """Of stochastic rounding, 0 to ``2**48``; None if nothing is rounded so."""
        if not self.stochastic_rounding:
            return None
        name = self.run_id if self.rounding_name is None else self.rounding_name
        # Not `hash`, which differs from process to process.
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "little")

    def message(self, task: Task) -> TaskMessage:
        """Return a task's message; raises `ParameterError` if its delay is no time."""
        delay_s = 0.0
        if self.task_delays is not None:
            delay_s = float(self.task_delays(task))
        elif self.delays is not None and task.attempt == 0:
            delay_s = float(self.delays(task.round, task.worker))
        if not 0 <= delay_s < math.inf:
            where = f"round {task.round}, worker {task.worker}"
            raise ParameterError("delays", f"must be finite seconds >= 0 ({where})", delay_s)
        return TaskMessage(
            task=task,
            delay_s=delay_s,
            payload=self.payload,
            rounding_seed=self.seed,
            code=self.code,
        )


class EventBackend(ABC):
    """Most of a `seqgc.ports.Backend` of ``n`` workers, and a context manager that closes it.

    Its events, queued by `_tell` in the order of their times, are stamped by ``clock`` (None:
    `time.monotonic`). A dispatch is refused as a whole, before any of its tasks is sent.

    Raises
    ------
    ParameterError
        If ``n`` is not positive, a worker does not exist, a task is another round's, or its delay
        is no time.
    WireError
        If a task cannot be sent.
    WorkerError
        If the backend is closed.
    """

    def __init__(self, n: int, *, messaging: Messaging | None, clock: Clock | None) -> None:
        self.n: Final = require_int("n", n, least=1)
        self._messaging: Final = messaging or Messaging()
        self._clock: Final[Clock] = clock or MonotonicClock()
        # With the earliest time when each may have come, which is what it is late by.
        self._events: Final[deque[tuple[float, Arrival | Failure]]] = deque()
        # When the last look began and ended, or was to end; and since when all is unread.
        self._looked_at, self._back_at, self._unread_since = -math.inf, -math.inf, math.inf
        self._was_away = False  # for a long time until the present look, which waits for nothing
        self._closed = False

    _reads_elsewhere: ClassVar[bool] = True
    """Whether threads or processes of the backend's own read what comes, and it asks them."""

    def receive(self, until: float) -> Arrival | Failure | None:
        """Return the next event that may have come by ``until``; None once ``until`` has passed.

        Events are returned in the order of their times. An event that came after ``until`` is kept
        for a later call, so that a deadline does not depend on when this method is called. If the
        master was busy or stopped for half a second while ``until`` passed, the arrival times of
        the events that it finds afterwards are not known. They count as in time, although their
        ``at``, the time of reading, is after ``until``.
        """
        self._check_open()
        while not self._look(until) and not self._events:
            pass
        if any(came_at <= until for came_at, _ in self._events):  # mostly the first; in their order
            return self._events.popleft()[1]
        return None

    def close(self) -> None:
        """End the backend and all that it has started; harmless if done already."""
        self._closed = True
        self._events.clear()
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- what a backend brings ------------------------------------------------------------------

    @abstractmethod
    def _collect(self, timeout_s: float) -> None:
        """Queue what has come in, waiting for it at most ``timeout_s`` seconds; see `_look`."""

    @abstractmethod
    def _end(self) -> None:
        """Release everything; called by every `close`, of which the first may be interrupted."""

    # ---- what it uses ---------------------------------------------------------------------------

    def _look(self, until: float = -math.inf) -> bool:
        """Queue what has come in; if nothing has, wait for it till ``until``.

        Return True if ``until`` has passed. A master that waits reads events when they come. A
        master that has been away finds events that may have come at any time since its last look
        began. (The end of that look does not count, because the master may have been stopped while
        it waited.) A few milliseconds are not an absence: a run closes its rounds by the stamps, as
        a replay does.
        """
        now = self._clock.now()  # read first: what came before it is collected below
        left = until - now
        wait_s = 0.0 if self._events else max(0.0, left)
        self._was_away = not wait_s and now - self._back_at >= _AWAY_S
        self._unread_since = self._looked_at if self._was_away else math.inf
        self._looked_at = now
        self._collect(wait_s)
        if wait_s and self._clock.now() - (now + wait_s) >= _AWAY_S:
            # It was stopped while it waited: what it has read now may have come meanwhile.
            self._was_away, self._unread_since = True, now
            for _ in range(len(self._events)):
                came_at, event = self._events.popleft()
                self._events.append((min(came_at, now), event))
        if self._was_away and self._reads_elsewhere and not left > _AWAY_S:  # else there is time
            self._catch_up()
        self._back_at = min(now + wait_s, self._clock.now())
        self._unread_since = math.inf
        return not left > 0  # nor is NaN a time to wait for

    def _catch_up(self) -> None:
        """Continue to read while events come in: the threads that read them were stopped too."""
        count, give_up_at = -1, self._clock.now() + _AWAY_S
        while count < len(self._events) and (left := give_up_at - self._clock.now()) > 0:
            count = len(self._events)
            self._collect(min(left, _MOMENT_S))

    def _tell(self, event: Arrival | Failure, *, is_own: bool = False) -> None:
        """Queue an event. If it was stamped before this look began, its time is exact.

        An event that the backend itself causes, such as a restart, counts as in time.
        """
        moment_s = _MOMENT_S if self._was_away else 0.0  # who has stamped it was stopped, too
        was_seen = event.at < self._looked_at - moment_s
        came_at = event.at if was_seen else min(event.at, self._unread_since)
        self._events.append((-math.inf if is_own else came_at, event))

    def _requests(self, round: int, tasks: Sequence[Task]) -> list[TaskMessage]:
        """Return the messages of a dispatch, refused if one is wrong or the backend closed."""
        self._check_workers([task.worker for task in tasks])
        if strange := [task.round for task in tasks if task.round != round]:
            raise ParameterError("tasks", f"must all be of round {round}", strange[0])
        return [self._messaging.message(task) for task in tasks]

    def _check_workers(self, workers: Sequence[int]) -> None:
        """Refuse workers that do not exist, and everything once the backend is closed."""
        self._check_open()
        for worker in workers:
            if not 0 <= worker < self.n:
                raise ParameterError("worker", f"must satisfy 0 <= worker < {self.n}", worker)

    def _check_open(self) -> None:
        if self._closed:
            raise WorkerError("the backend is closed: make a new one")


def event_of(answer: ResultMessage | FailureMessage, *, at: float) -> Arrival | Failure:
    r"""Return the event that a worker's answer is, read at ``at``; `SkewError` if it is final.

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
    )


def failure_of(
    address: tuple[int, int, int],
    *,
    at: float,
    reason: str | BaseException,
    model: str | None = None,
) -> Failure:
    """Return the failure of a task (round, worker, attempt), with its reason or error in one line.

    If the process that computed the task has died, ``model`` is the model that it was computing, or
    empty if that is not known.
    """
    round, worker, attempt = address
    text = reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}"
    text += f" while it computed model {model!r}" if model else ""
    return Failure(
        round=round, worker=worker, attempt=attempt, at=at, reason=one_line(text), model=model
    )


TaskKey: TypeAlias = tuple[int, int]
"""A task's round and attempt: with the worker, who is known here, its address."""

_LATE = 64  # cancelled tasks whose answers may come: one was begun, and reads on


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
        """Record an answer; return True if it is an event.

        An answer to a task that was not sent, or that was answered before, is not an event.
        """
        task = (event.round, event.attempt)
        if task in self.tasks:
            self.tasks.discard(task)
            return True
        if task in self.late:
            self.late.remove(task)
            return isinstance(event, Arrival)  # what is cancelled may fail: its weights are gone
        return False

    def lose(self) -> list[TaskKey]:
        """Remove all tasks; return the tasks that will not be answered, in order."""
        lost = sorted(self.tasks)
        self.tasks.clear()
        self.late.clear()
        return lost
