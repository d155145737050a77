"""A worker that is asked over a connection: what it computes next, and when an answer leaves.

One thread computes; between any two mini-tasks it takes in what the master has said meanwhile, so
that a task which was cancelled is not begun, or not gone on with. An answer that is not due yet is
kept while the next task is begun: injected delays stand for slow responses, not for a busy
processor.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from seqgc.ports import Task
from seqgc.wire import CancelMessage, InvokeMessage, LeaveMessage, TaskMessage, decode, encode

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
        """Return the frames that have come; wait for the first for so many seconds at most."""

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
        self._order = itertools.count()
        self._cancelled: set[int] = set()  # rounds
        self._at_work: tuple[int, int] | None = None  # round, attempt

    def serve(self) -> None:
        """Answer until the master has gone."""
        while not self._connection.ended:
            idle_s = self._due[0][0] - time.monotonic() if self._due else math.inf
            self._listen(0.0 if self._todo else max(0.0, idle_s))
            if self._todo:
                self._work(*self._todo.popleft())
            while self._due and self._due[0][0] <= time.monotonic():
                self._connection.send(heapq.heappop(self._due)[-1])

    def _listen(self, timeout_s: float) -> None:
        """Take in what the master has said, or says within the timeout."""
        for frame in self._connection.receive(timeout_s):
            match decode(frame, run_id=self._run_id, sealed=self._sealed):
                case TaskMessage() | InvokeMessage() as message:
                    self._todo.append((time.monotonic(), message))
                case CancelMessage(round=round):
                    self._cancelled.add(round)
                    self._todo = deque(e for e in self._todo if _task(e[1]).round != round)
                    self._due = [entry for entry in self._due if entry[2][0] != round]
                    heapq.heapify(self._due)
                case LeaveMessage(worker=worker):
                    self._hand_back(worker)

    def _hand_back(self, worker: int) -> None:
        """Forget the tasks that were not begun; say which others are still to be answered."""
        self._todo.clear()
        keeps = [task for *_, task, _ in self._due]
        keeps += [] if self._at_work is None else [self._at_work]
        self._send(LeaveMessage(worker=worker, keeps=keeps))

    def _work(self, received: float, message: Asked) -> None:
        """Compute a task and put its answer down for its time; failures are told at once."""
        task, request = _task(message), _request(message)
        address = self._at_work = task.round, task.attempt
        self._cancelled.clear()  # what was cancelled before this task came is not this task
        self.tasks += 1
        try:
            frame = self._answer(message, lambda: self._unwanted(task))
            if frame is None or self._unwanted(task):
                return
            when = received + request.delay_s
        except Exception as error:
            self.failures += 1
            when, failure = received, request.failure(f"{type(error).__name__}: {error}")
            frame = encode(failure, run_id=self._run_id, sealed=self._sealed)
        finally:
            self._at_work = None
        heapq.heappush(self._due, (when, next(self._order), address, frame))

    def _unwanted(self, task: Task) -> bool:
        self._listen(0.0)
        return self._connection.ended or task.round in self._cancelled

    def _send(self, message: LeaveMessage) -> None:
        self._connection.send(encode(message, run_id=self._run_id, sealed=self._sealed))


def _request(message: Asked) -> TaskMessage:
    return message.request if isinstance(message, InvokeMessage) else message


def _task(message: Asked) -> Task:
    return _request(message).task
