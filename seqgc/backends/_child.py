"""What runs inside a worker process: read tasks, compute, answer when it is time."""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from multiprocessing import parent_process
from typing import cast

from seqgc._by_value import loads
from seqgc._fault import fault_of
from seqgc.backends._channel import Channel
from seqgc.backends._events import LONGEST_WAIT_S
from seqgc.backends._sightings import Sightings
from seqgc.errors import WireError, reraise_stop
from seqgc.wire import InvokeMessage, ReadyMessage, TaskMessage, encode
from seqgc.worker import PROGRESS, Compute, ComputeFactory, TaskServer, run_task

__all__ = ["main"]


def main(
    end: socket.socket, worker: int, run_id: str, max_bytes: int, sightings: Sightings
) -> None:
    """Serve tasks until the master is gone; its first frame is a pickled `ComputeFactory`."""
    for number in (signal.SIGINT, signal.SIGTSTP):  # of the terminal, to the master and its workers
        signal.signal(number, signal.SIG_IGN)  # stopping is the master's decision
    threading.Thread(target=_die_with_master, daemon=True).start()
    master = _Conversation(Channel(end, max_bytes=max_bytes))
    frames: list[bytearray] = []
    while not frames:
        if master.ended:
            return
        frames += master.receive(math.inf)  # one: it sends no other before it hears from us
    try:
        # Not from the wire: the master's own object over its own socket pair, as multiprocessing
        # passes arguments itself, but unpickled here, where a module that cannot be imported is a
        # cause that can be told.
        compute: Compute = cast("ComputeFactory", loads(frames.pop()))()
    except BaseException as error:
        reraise_stop(error)
        ready = ReadyMessage(worker=worker, problem=fault_of(error))
        master.send(encode(ready, run_id=run_id, sealed=False))
        raise SystemExit(1) from None  # the master knows: no traceback on the terminal
    sightings.watch(worker)
    master.send(encode(ReadyMessage(worker=worker), run_id=run_id, sealed=False))

    def answer(message: TaskMessage | InvokeMessage, cancelled: Callable[[], bool]) -> bytes | None:
        if isinstance(message, InvokeMessage):
            raise WireError("a process is sent no invocation")
        PROGRESS.begin(message.task.round, message.task.attempt)
        try:
            computed = run_task(message.task, compute, cancelled=cancelled)
        finally:
            PROGRESS.end()
        if computed is None:
            return None
        return encode(message.result(*computed), run_id=run_id, sealed=False)

    TaskServer(master, answer, run_id=run_id, sealed=False).serve()


def _die_with_master() -> None:
    """Exit once the master is gone, even in the middle of a computation."""
    if (master := parent_process()) is not None:
        master.join()
        os._exit(1)


class _Conversation:
    """The channel to the master, waiting as long as it takes (see `_channel` why that ends)."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @property
    def ended(self) -> bool:
        return self._channel.ended

    def receive(self, timeout_s: float) -> Sequence[bytearray]:
        self._wait(select.POLLIN, timeout_s)
        return self._channel.pull()

    def send(self, frame: bytes) -> None:
        self._channel.push(frame)
        while self._channel.unsent:
            self._wait(select.POLLOUT)
            self._channel.flush()

    def _wait(self, what: int, timeout_s: float = math.inf) -> None:
        poll = select.poll()
        poll.register(self._channel, what)
        poll.poll(min(timeout_s, LONGEST_WAIT_S) * 1000)
