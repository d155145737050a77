"""A worker that is asked over a connection: what it computes next, and when an answer leaves.

One thread computes; between any two mini-tasks it looks what the master has said meanwhile, so that
a task which was cancelled is not begun, or not gone on with. An answer that is not due yet is kept
while the next task is begun: injected delays stand for slow responses, not for a busy processor.
They do not overlap: the delay of a task begins when the one before it has been answered.

Where another thread reads the connection, it is that one that takes in what the master says, while
a gradient is computed: so what was not begun can be handed back at any time.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
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
from seqgc.worker._workloads import told_of

__all__ = ["Connection", "TaskServer"]

Asked: TypeAlias = TaskMessage | InvokeMessage
Answer: TypeAlias = "Callable[[Asked, Callable[[], bool]], bytes | None]"
"""``answer(message, cancelled)``: the results' frame; None if they were cancelled on the way."""


class Connection(Protocol):
    """What frames come and go by."""

    @property
    def ended(self) -> bool:
        """Whether the master has gone: nothing more will come, or be taken."""

    def receive(self, timeout_s: float) -> Sequence[bytes | bytearray]:
        """Return what has come; wait for the first frame for so many seconds at most.

        Nothing where another thread has had it taken in already (`TaskServer.take_in`).
        """

    def send(self, frame: bytes) -> None:
        """Send a frame; return once the master has taken it, or never will."""


class TaskServer:
    """Computes tasks one after the other; answers wait for their time without holding it up.

    ``answer`` makes the frame of a task's results; what it raises is told as the task's failure.
    Frames are those of a run, ``sealed`` or not. ``tasks`` and ``failures`` count what was done.
    """

    def __init__(
        self, connection: Connection, answer: Answer, *, run_id: str, sealed: bool = True
    ) -> None:
        self.tasks = self.failures = 0
        self._connection, self._answer = connection, answer
        self._run_id, self._sealed = run_id, sealed
        self._todo: deque[tuple[float, Asked]] = deque()
        self._due: list[tuple[float, int, tuple[int, int], bytes]] = []  # a heap, by time and order
        self._free_at = -math.inf  # when the last delayed answer leaves, or has left
        self._order = itertools.count()
        self._cancelled: set[int] = set()  # rounds
        self._at_work: tuple[int, int] | None = None  # round, attempt
        self._leaving: tuple[int, int] | None = None  # whose answer is on its way
        self._lock = threading.Lock()  # guards all but the counts

    def serve(self) -> None:
        """Answer until the master has gone."""
        while not self._connection.ended:
            with self._lock:
                idle_s = self._due[0][0] - time.monotonic() if self._due else math.inf
                idle_s = 0.0 if self._todo else max(0.0, idle_s)
            self._listen(idle_s)
            if (next_ := self._next()) is not None:
                self._work(*next_)
            while (frame := self._next_due()) is not None:
                self._connection.send(frame)
                with self._lock:
                    self._leaving = None

    def take_in(self, frame: bytes | bytearray) -> bytes | None:
        """Take note of what the master says; return what to reply, if anything; thread-safe.

        `WireError` if the frame is none that a master sends.
        """
        message = decode(frame, run_id=self._run_id, sealed=self._sealed)
        with self._lock:
            match message:
                case TaskMessage() | InvokeMessage():
                    self._todo.append((time.monotonic(), message))
                case CancelMessage(round=round):
                    self._cancelled.add(round)
                    self._todo = deque(e for e in self._todo if _task(e[1]).round != round)
                    self._due = [entry for entry in self._due if entry[2][0] != round]
                    heapq.heapify(self._due)
                    if self._free_at > time.monotonic():
                        self._free_at = max((entry[0] for entry in self._due), default=-math.inf)
                case LeaveMessage(worker=worker):
                    return self._hand_back(worker)
        return None

    def _hand_back(self, worker: int) -> bytes:
        """Forget the tasks that were not begun; say which others are still to be answered."""
        self._todo.clear()
        keeps = [task for *_, task, _ in self._due]
        keeps += [task for task in (self._at_work, self._leaving) if task is not None]
        return self._encoded(LeaveMessage(worker=worker, keeps=keeps))

    def _listen(self, timeout_s: float) -> None:
        """Take in what the master has said, or says within the timeout."""
        for frame in self._connection.receive(timeout_s):
            if (reply := self.take_in(frame)) is not None:
                self._connection.send(reply)

    def _next(self) -> tuple[float, Asked] | None:
        """Return the task to begin, and when it was received."""
        with self._lock:
            if not self._todo:
                return None
            received, message = self._todo.popleft()
            self._at_work = _task(message).round, _task(message).attempt
            self._cancelled.clear()  # what was cancelled before this task came is not this task
            return received, message

    def _next_due(self) -> bytes | None:
        """Return an answer whose time has come."""
        with self._lock:
            if self._due and self._due[0][0] <= time.monotonic():
                *_, self._leaving, frame = heapq.heappop(self._due)
                return frame
        return None

    def _work(self, received: float, message: Asked) -> None:
        """Compute a task and put its answer down for its time; failures are told at once."""
        task, request = _task(message), _request(message)
        self.tasks += 1
        try:
            frame = self._answer(message, lambda: self._unwanted(task))
            when = received
            if request.delay_s:
                with self._lock:
                    when = max(received, self._free_at) + request.delay_s
        except BaseException as error:
            if not is_own_interrupt(error):
                reraise_stop(error)
            self.failures += 1
            why, final = told_of(error)
            frame = self._encoded(request.failure(why, final=final))
            when = received
        unwanted = self._unwanted(task)
        with self._lock:
            self._at_work = None
            if frame is not None and not (unwanted or task.round in self._cancelled):
                entry = (when, next(self._order), (task.round, task.attempt), frame)
                heapq.heappush(self._due, entry)
                if when > received:
                    self._free_at = max(when, time.monotonic())

    def _unwanted(self, task: Task) -> bool:
        self._listen(0.0)
        with self._lock:
            return self._connection.ended or task.round in self._cancelled

    def _encoded(self, message: LeaveMessage | FailureMessage) -> bytes:
        return encode(message, run_id=self._run_id, sealed=self._sealed)


def _request(message: Asked) -> TaskMessage:
    return message.request if isinstance(message, InvokeMessage) else message


def _task(message: Asked) -> Task:
    return _request(message).task
