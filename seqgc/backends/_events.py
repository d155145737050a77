"""What every backend does with events: queue them, hand them out in time, refuse when closed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from seqgc.backends._tasks import MonotonicClock, TaskMessages, check_worker
from seqgc.errors import WorkerError
from seqgc.ports import Arrival, Clock, Failure, Task
from seqgc.wire import FailureMessage, ResultMessage, TaskMessage

__all__ = ["EventBackend", "event_of", "failure_of"]


class EventBackend(ABC):
    """Most of a `seqgc.ports.Backend`, and a context manager that closes it.

    A backend queues its events by `_tell`, in the order of their times.

    Parameters
    ----------
    messages
        Makes the messages of its tasks.
    clock
        What events are stamped with; None: `time.monotonic`.
    """

    def __init__(self, messages: TaskMessages, *, clock: Clock | None) -> None:
        self._messages: Final = messages
        self._clock: Final[Clock] = MonotonicClock() if clock is None else clock
        self._events: Final[deque[Arrival | Failure]] = deque()
        self._closed = False

    @property
    def n(self) -> int:
        """Number of workers."""
        return self._messages.n

    def receive(self, until: float) -> Arrival | Failure | None:
        """Return the next event whose ``at`` is at most ``until``; None once ``until`` has passed.

        Events are returned in the order of their times. One that came after ``until`` stays for a
        later call: who asks about a deadline gets what kept it, not what this call happened to see.

        Raises
        ------
        WorkerError
            If the backend is closed.
        """
        self._check_open()
        while True:
            left = until - self._clock.now()  # read first: what came before it is collected below
            self._collect(0.0 if self._events else max(0.0, left))
            if self._events or not left > 0:  # nor is NaN a time to wait for
                break
        if self._events and self._events[0].at <= until:
            return self._events.popleft()
        return None

    def close(self) -> None:
        """End the backend and all that it has started; harmless if done already."""
        self._closed = True
        self._events.clear()
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- what a backend brings ------------------------------------------------------------------

    @abstractmethod
    def _collect(self, timeout_s: float) -> None:
        """Queue what has come in, waiting for it at most ``timeout_s`` seconds."""

    @abstractmethod
    def _end(self) -> None:
        """Release everything; called by every `close`, of which the first may be interrupted."""

    # ---- what it uses ---------------------------------------------------------------------------

    def _tell(self, event: Arrival | Failure) -> None:
        self._events.append(event)

    def _requests(self, round: int, tasks: Sequence[Task]) -> list[TaskMessage]:
        """Return the messages of a dispatch, refused if one is wrong or the backend closed."""
        self._check_open()
        return [self._messages.message(round, task) for task in tasks]

    def _check_cancel(self, workers: Sequence[int]) -> None:
        self._check_open()
        for worker in workers:
            check_worker(worker, self.n)

    def _check_open(self) -> None:
        if self._closed:
            raise WorkerError("the backend is closed: make a new one")


def event_of(answer: ResultMessage | FailureMessage, *, at: float) -> Arrival | Failure:
    r"""Return the event that a worker's answer is, read at ``at``.

    Examples
    --------
    >>> from seqgc.wire import Subject
    >>> subject = Subject(round=2, worker=1, attempt=0)
    >>> event_of(FailureMessage(subject=subject, reason="no\nfile"), at=5.0).reason
    'no file'
    """
    address = answer.subject.address
    if isinstance(answer, FailureMessage):
        return failure_of(address, at=at, reason=answer.reason)
    round, worker, attempt = address
    return Arrival(round=round, worker=worker, attempt=attempt, at=at, results=answer.results)


def failure_of(address: tuple[int, int, int], *, at: float, reason: str) -> Failure:
    """Return that a task (round, worker, attempt) failed, for a reason made one line."""
    round, worker, attempt = address
    line = " ".join(reason.split())
    return Failure(round=round, worker=worker, attempt=attempt, at=at, reason=line)
