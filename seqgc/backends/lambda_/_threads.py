"""One thread per call that is under way, for libraries that block."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from seqgc.backends._events import LONGEST_WAIT_S
from seqgc.errors import WorkerError
from seqgc.ports import Clock

__all__ = ["CallThreads", "Ended"]

_CLOSE_S = 1.0
_ABORT_EVERY_S = 0.02

_Value = TypeVar("_Value")
_Call: TypeAlias = tuple[int, Callable[[], _Value]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ended(Generic[_Value]):
    """The call ``tag`` has ended at ``at``: it returned ``value``, or raised it."""

    tag: int
    at: float
    value: _Value | Exception


class CallThreads(Generic[_Value]):
    """At most ``limit`` threads that calls are made in, started as they are needed and kept.

    Beyond ``limit``, or the system's own limit, calls wait for a thread that is free. Threads are
    daemons: what cannot be ended does not keep the interpreter from ending. ``abort`` makes every
    call that is under way raise; `close` calls it, more than once. ``on_end`` is called by the
    thread whose call has ended, once `take` would return it.
    """

    def __init__(
        self,
        *,
        limit: int,
        clock: Clock,
        abort: Callable[[], None] = lambda: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._limit, self._clock, self._abort, self._on_end = limit, clock, abort, on_end
        self._calls: queue.SimpleQueue[_Call[_Value] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._news = threading.Condition()  # guards the next three
        self._ended: list[Ended[_Value]] = []
        self._unfinished = 0  # submitted, and not in `_ended` yet
        self._woken = False
        self._closed = False

    def submit(self, tag: int, call: Callable[[], _Value]) -> None:
        """Have a thread make this call; returns at once.

        Raises `WorkerError` if they are closed, or the system lets not one be started.
        """
        if self._closed:
            raise WorkerError("the transport is closed: make a new one")
        count = len(self._threads)
        if self._unfinished >= count < self._limit:
            name = f"seqgc-lambda-{count}"
            thread = threading.Thread(target=self._serve, name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system's limit: calls wait for those that there are
                if not count:
                    limit = "the limit on processes (ulimit -u)"
                    raise WorkerError(f"{error}: raise {limit}") from error
            else:
                self._threads.append(thread)
        with self._news:
            self._unfinished += 1
        self._calls.put((tag, call))

    def take(self, timeout_s: float = 0.0) -> list[Ended[_Value]]:
        """Return what has ended, in order of time; wait for it if there is none, or for `wake`."""
        with self._news:
            if timeout_s > 0:
                wait_s = min(timeout_s, LONGEST_WAIT_S)
                self._news.wait_for(lambda: self._ended or self._woken, wait_s)
            self._woken = False
            ended, self._ended = self._ended, []
        return ended

    def wake(self) -> None:
        """Have `take` return, now or the next time."""
        with self._news:
            self._woken = True
            self._news.notify()

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
        while self._served(self._calls.get()):
            pass  # and hold nothing of a call while waiting for the next: answers are large

    def _served(self, job: _Call[_Value] | None) -> bool:
        """Make a call and tell how it ended; return whether there may be more."""
        if job is None:
            return False
        if self._closed:
            return True
        tag, call = job
        value: _Value | Exception
        try:
            value = call()
        except Exception as error:
            value = error.with_traceback(None)  # else it would hold itself, and all of the call
        with self._news:  # stamped in the order in which they are returned
            self._ended.append(Ended(tag=tag, at=self._clock.now(), value=value))
            self._unfinished -= 1
            self._news.notify()
        self._on_end()
        return True
