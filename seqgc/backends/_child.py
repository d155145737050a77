"""What runs inside a worker process: read tasks, compute, answer when it is time."""

from __future__ import annotations

import heapq
import itertools
import math
import os
import pickle
import select
import signal
import socket
import threading
import time
from collections import deque
from multiprocessing import parent_process

from seqgc.backends._channel import Channel
from seqgc.backends._events import LONGEST_WAIT_S
from seqgc.ports import Task
from seqgc.wire import CancelMessage, ReadyMessage, TaskMessage, decode, encode
from seqgc.worker import Compute, run_task

__all__ = ["main"]


def main(end: socket.socket, worker: int, run_id: str, max_bytes: int) -> None:
    """Serve tasks until the master is gone; its first frame is a pickled `ComputeFactory`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # stopping is the master's decision
    threading.Thread(target=_die_with_master, daemon=True).start()
    channel = Channel(end, max_bytes=max_bytes)
    frames: list[bytearray] = []
    while not frames:
        if channel.ended:
            return
        _wait(channel, select.POLLIN)
        frames = channel.pull()  # one: the master sends no other before it hears from us
    try:
        # Not from the wire: the master's own object over its own socket pair, as multiprocessing
        # passes arguments itself, but unpickled here, where a module that cannot be imported is a
        # cause that can be told.
        compute: Compute = pickle.loads(frames.pop())()  # noqa: S301
    except Exception as error:
        ready = ReadyMessage(worker=worker, problem=f"{type(error).__name__}: {error}")
        _send(channel, encode(ready, run_id=run_id, sealed=False))
        raise SystemExit(1) from None  # the master knows: no traceback on the terminal
    _send(channel, encode(ReadyMessage(worker=worker), run_id=run_id, sealed=False))
    _Server(channel, compute, run_id).serve()


def _die_with_master() -> None:
    """Exit once the master is gone, even in the middle of a computation."""
    if (master := parent_process()) is not None:
        master.join()
        os._exit(1)


def _send(channel: Channel, frame: bytes) -> None:
    """Send a frame, waiting until the master has taken all of it (see `_channel` why it will)."""
    channel.push(frame)
    while channel.unsent:
        _wait(channel, select.POLLOUT)
        channel.flush()


def _wait(channel: Channel, what: int, timeout_s: float = math.inf) -> None:
    poll = select.poll()
    poll.register(channel, what)
    poll.poll(min(timeout_s, LONGEST_WAIT_S) * 1000)


class _Server:
    """Computes tasks one after the other; answers wait for their time without holding it up.

    A task that must not be answered yet is kept, and the next one is begun at once: injected delays
    stand for slow responses, not for a busy processor.
    """

    def __init__(self, channel: Channel, compute: Compute, run_id: str) -> None:
        self._channel, self._compute, self._run_id = channel, compute, run_id
        self._todo: deque[tuple[float, TaskMessage]] = deque()
        self._due: list[tuple[float, int, int, bytes]] = []  # when, order, round, frame: a heap
        self._order = itertools.count()
        self._cancelled: set[int] = set()  # rounds

    def serve(self) -> None:
        while not self._channel.ended:
            idle_s = self._due[0][0] - time.monotonic() if self._due else math.inf
            self._listen(0.0 if self._todo else max(0.0, idle_s))
            if self._todo:
                self._work(*self._todo.popleft())
            while self._due and self._due[0][0] <= time.monotonic():
                _send(self._channel, heapq.heappop(self._due)[-1])

    def _listen(self, timeout_s: float) -> None:
        """Take in what the master has said, or says within the timeout."""
        _wait(self._channel, select.POLLIN, timeout_s)
        for frame in self._channel.pull():
            match decode(frame, run_id=self._run_id, sealed=False):
                case TaskMessage() as message:
                    self._todo.append((time.monotonic(), message))
                case CancelMessage(round=round):
                    self._cancelled.add(round)
                    self._todo = deque(e for e in self._todo if e[1].task.round != round)
                    self._due = [entry for entry in self._due if entry[2] != round]
                    heapq.heapify(self._due)

    def _work(self, received: float, message: TaskMessage) -> None:
        """Compute a task and put its answer down for its time; failures are told at once."""
        task = message.task
        self._cancelled.clear()  # what was cancelled before this task came is not this task
        try:
            results = run_task(task, self._compute, cancelled=lambda: self._unwanted(task))
            if results is None or self._unwanted(task):
                return
            when = received + message.delay_s
            frame = encode(message.result(results), run_id=self._run_id, sealed=False)
        except Exception as error:
            when, failure = received, message.failure(f"{type(error).__name__}: {error}")
            frame = encode(failure, run_id=self._run_id, sealed=False)
        heapq.heappush(self._due, (when, next(self._order), task.round, frame))

    def _unwanted(self, task: Task) -> bool:
        self._listen(0.0)
        return self._channel.ended or task.round in self._cancelled
