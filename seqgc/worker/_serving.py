"""A worker that gets its tasks over a connection, computes them in order and sends the answers.

A process of this machine may serve several workers of the run, one task after the other, while
other processes are absent.

One thread computes. Between any two mini-tasks it reads the master's new messages, so that it does
not begin or continue a cancelled task. An injected delay imitates a slow response, not a busy
processor. Therefore an answer waits until its delay has passed while the next task is computed.
Delays do not overlap: the delay of a task begins after the previous task has been answered. If a
task is answered in parts, the delays of its parts begin at the same time.

In a resident function, another thread reads the messages while a gradient is computed. Tasks that
have not begun can then be handed back to the master at any time.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from seqgc._fault import is_own_interrupt
from seqgc.errors import reraise_stop
from seqgc.ports import Task
from seqgc.wire import (
    CancelMessage,
    FailureMessage,
    InvokeMessage,
    LeaveMessage,
    TaskMessage,
    decode,
    encode,
)
from seqgc.worker._timing import TIMER
from seqgc.worker._workloads import failure_of

__all__ = ["Connection", "StayReport", "TaskServer"]

Request: TypeAlias = TaskMessage | InvokeMessage
Answer: TypeAlias = "Callable[[Request, Callable[[], bool]], Iterable[tuple[float, bytes]]]"
"""``answer(message, cancelled)`` computes a task, and yields its answers.

Each of them is the delay of the answer in seconds, see `TaskMessage`, and a frame of results. A
task that was cancelled has no further answers.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StayReport:
    """A summary of a resident function's stay, for logs. ``reason`` says why the stay ended."""

    reply: dict[str, object]  # the JSON object to return
    run_id: str
    worker: int
    reason: str
    tasks: int
    failures: int
    stayed_s: float


class Connection(Protocol):
    """A way to exchange frames with the master."""

    @property
    def ended(self) -> bool:
        """True if the connection to the master has ended."""

    def receive(self, timeout_s: float) -> Sequence[bytes | bytearray]:
        """Return the frames that have arrived.

        If no frame has arrived, wait for one for at most ``timeout_s`` seconds. If another thread
        passes the frames to `TaskServer.take_in`, return no frames.
        """

    def send(self, frame: bytes) -> None:
        """Send a frame; wait until it is sent or the connection has ended."""


class TaskServer:
    """A server that computes tasks one after the other, and sends each answer after its delay.

    ``answer`` computes the frames of a task's results; if it raises an error, the task has failed.
    All frames belong to the run ``run_id`` and have a digest if ``sealed``. ``tasks`` is the number
    of all tasks that were begun, and ``failures`` the number of tasks that failed.
    """

    def __init__(
        self, connection: Connection, answer: Answer, *, run_id: str, sealed: bool = True
    ) -> None:
        self.tasks = self.failures = 0
        self._connection, self._answer = connection, answer
        self._run_id, self._sealed = run_id, sealed
        self._todo: deque[tuple[float, Request]] = deque()
        self._due: list[tuple[float, int, Task, bytes]] = []  # a heap, by time and order
        self._free_at = -math.inf  # when the delay of the last delayed answer ends
        self._order = itertools.count()
        self._cancelled: set[tuple[int, int]] = set()  # rounds and workers
        self._at_work: Task | None = None
        self._leaving: Task | None = None  # the task whose answer is being sent
        self._lock = threading.Lock()  # guards everything but the counts

    def serve(self) -> None:
        """Compute and answer tasks until the connection has ended."""
        while not self._connection.ended:
            with self._lock:
                idle_s = self._due[0][0] - time.monotonic() if self._due else math.inf
                idle_s = 0.0 if self._todo else max(0.0, idle_s)
            self._listen(idle_s)
            if (next_ := self._next()) is not None:
                self._work(*next_)
            self._send_due()

    def take_in(self, frame: bytes | bytearray) -> bytes | None:
        """Process a message of the master; return the frame of a reply, or None.

        Any thread may call this. Raise `WireError` if the frame is not valid.
        """
        message = decode(frame, run_id=self._run_id, sealed=self._sealed)
        with self._lock:
            match message:
                case TaskMessage() | InvokeMessage():
                    self._todo.append((time.monotonic(), message))
                case CancelMessage(round=round, worker=worker):
                    over = round, worker
                    self._cancelled.add(over)
                    self._todo = deque(e for e in self._todo if _subject(_task(e[1])) != over)
                    self._due = [entry for entry in self._due if _subject(entry[2]) != over]
                    heapq.heapify(self._due)
                    if self._free_at > time.monotonic():
                        self._free_at = max((entry[0] for entry in self._due), default=-math.inf)
                case LeaveMessage(worker=worker):
                    return self._hand_back(worker)
        return None

    def _hand_back(self, worker: int) -> bytes:
        """Drop the tasks that have not begun; return a message that lists the remaining tasks."""
        self._todo.clear()
        tasks = [*(task for *_, task, _ in self._due), self._at_work, self._leaving]
        keeps = list(dict.fromkeys((t.round, t.attempt) for t in tasks if t is not None))
        return self._encoded(LeaveMessage(worker=worker, keeps=keeps))

    def _listen(self, timeout_s: float) -> None:
        for frame in self._connection.receive(timeout_s):
            if (reply := self.take_in(frame)) is not None:
                self._connection.send(reply)

    def _next(self) -> tuple[float, Request] | None:
        with self._lock:
            if not self._todo:
                return None
            received, message = self._todo.popleft()
            self._at_work = _task(message)
            self._cancelled.clear()  # earlier cancellations concerned other tasks
            return received, message

    def _next_due(self) -> bytes | None:
        with self._lock:
            if self._due and self._due[0][0] <= time.monotonic():
                *_, self._leaving, frame = heapq.heappop(self._due)
                return frame
        return None

    def _send_due(self) -> None:
        """Send the answers whose delays are over."""
        while (frame := self._next_due()) is not None:
            self._connection.send(frame)
            with self._lock:
                self._leaving = None

    def _work(self, received: float, message: Request) -> None:
        """Compute a task, and queue its answers until their delays end.

        A failure has no delay of its own: it comes after the answers that the task already has.
        """
        task, request = _task(message), _request(message)
        self.tasks += 1
        since, when = math.nan, received  # the beginning of the delays, the time of the last answer
        TIMER.begin(waited_s=time.monotonic() - received)
        try:
            for delay_s, frame in self._answer(message, lambda: self._unwanted(task)):
                if delay_s:
                    with self._lock:
                        since = max(received, self._free_at) if math.isnan(since) else since
                    when = since + delay_s
                self._queue(task, frame, when, is_delayed=when > received)
        except BaseException as error:
            if not is_own_interrupt(error):
                reraise_stop(error)
            self.failures += 1
            why, final = failure_of(error)
            frame = self._encoded(request.failure(why, final=final))
            self._queue(task, frame, when, is_delayed=when > received)
        with self._lock:
            self._at_work = None

    def _queue(self, task: Task, frame: bytes, when: float, *, is_delayed: bool) -> None:
        """Queue an answer to be sent at the time ``when``, unless its task has been cancelled."""
        unwanted = self._unwanted(task)
        with self._lock:
            if not (unwanted or _subject(task) in self._cancelled):
                heapq.heappush(self._due, (when, next(self._order), task, frame))
                if is_delayed:
                    self._free_at = max(when, time.monotonic())

    def _unwanted(self, task: Task) -> bool:
        self._send_due()
        self._listen(0.0)
        with self._lock:
            return self._connection.ended or _subject(task) in self._cancelled

    def _encoded(self, message: LeaveMessage | FailureMessage) -> bytes:
        return encode(message, run_id=self._run_id, sealed=self._sealed)


def _request(message: Request) -> TaskMessage:
    return message.request if isinstance(message, InvokeMessage) else message


def _task(message: Request) -> Task:
    return _request(message).task


def _subject(task: Task) -> tuple[int, int]:
    """Return what a `CancelMessage` names: the round and the worker of a task."""
    return task.round, task.worker
