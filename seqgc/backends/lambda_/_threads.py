"""One thread per invocation that is on its way, for HTTP libraries that block."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from seqgc.backends.lambda_._errors import connection_error
from seqgc.backends.lambda_._transport import Reply
from seqgc.errors import ParameterError, WorkerError
from seqgc.ports import Clock

__all__ = ["CallThreads"]

_CLOSE_S = 1.0
_ABORT_EVERY_S = 0.02
_LONGEST_WAIT_S = 3600.0  # a condition takes no infinity


class CallThreads:
    """Threads that call ``send(tag, body)``, made as they are needed and kept.

    Parameters
    ----------
    send
        Returns the `Reply`, whose ``at`` is set here; what it raises becomes the reply's error.
    abort
        Makes every `send` that is under way raise; called by `close`, more than once.
    limit
        Most threads; beyond it invocations wait for one that is free.
    clock
        What replies are stamped with.

    Raises
    ------
    ParameterError
        If ``limit`` is not positive.
    """

    def __init__(
        self,
        send: Callable[[int, bytes], Reply],
        *,
        abort: Callable[[], None],
        limit: int,
        clock: Clock,
    ) -> None:
        if limit < 1:
            raise ParameterError("connections", "must be >= 1", limit)
        self._send, self._abort, self._limit, self._clock = send, abort, limit, clock
        self._calls: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._came = threading.Condition()  # guards the next two
        self._replies: list[Reply] = []
        self._unfinished = 0  # submitted, and not in `_replies` yet
        self._closed = False

    def submit(self, tag: int, body: bytes) -> None:
        """Have a thread send this; returns at once.

        Raises
        ------
        WorkerError
            If they are closed.
        """
        if self._closed:
            raise WorkerError("the transport is closed: make a new one")
        with self._came:
            self._unfinished += 1
            needed = self._unfinished > len(self._threads)
        self._calls.put((tag, body))
        if needed and len(self._threads) < self._limit:
            name = f"seqgc-lambda-{len(self._threads)}"
            self._threads.append(threading.Thread(target=self._serve, name=name))
            self._threads[-1].start()

    def poll(self, timeout_s: float) -> list[Reply]:
        """Return the replies so far, in order of time; wait for one if there is none."""
        with self._came:
            if not self._replies and timeout_s > 0:
                self._came.wait_for(lambda: self._replies, min(timeout_s, _LONGEST_WAIT_S))
            replies, self._replies = self._replies, []
        return replies

    def close(self) -> None:
        """Abandon what is under way, and end the threads within about a second."""
        self._closed = True
        for _ in self._threads:
            self._calls.put(None)
        give_up_at = time.monotonic() + _CLOSE_S
        while self._threads and time.monotonic() < give_up_at:
            self._abort()  # again for a connection that has been opened meanwhile
            self._threads[0].join(_ABORT_EVERY_S)
            self._threads = [thread for thread in self._threads if thread.is_alive()]

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            if self._closed:
                continue
            tag, body = call
            try:
                reply = self._send(tag, body)
            except Exception as error:
                reply = Reply(tag=tag, at=0.0, error=connection_error(error))
            with self._came:  # stamped in the order in which they are returned
                self._replies.append(replace(reply, at=self._clock.now()))
                self._unfinished -= 1
                self._came.notify()
