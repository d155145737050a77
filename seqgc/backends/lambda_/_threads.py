"""One thread per call that is under way, for libraries that block."""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

from seqgc.backends._events import LONGEST_WAIT_S, MonotonicClock
from seqgc.backends.lambda_._errors import connection_error
from seqgc.backends.lambda_._sockets import Sockets
from seqgc.backends.lambda_._transport import Limits, Reply
from seqgc.errors import WorkerError
from seqgc.ports import Clock

__all__ = ["CallThreads", "Ended", "ThreadedTransport"]

_CLOSE_S = 1.0
_ABORT_EVERY_S = 0.02

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ended(Generic[_Value]):
    """The call ``tag`` has ended at ``at``: it returned ``value``, or raised it."""

    tag: int
    at: float
    value: _Value | Exception


class CallThreads(Generic[_Value]):
    """Threads that calls are made in, started as they are needed and kept.

    They are daemons: what cannot be ended does not keep the interpreter from ending.

    Parameters
    ----------
    limit
        Most threads; beyond it, or the system's own limit, calls wait for one that is free.
    clock
        What ends are stamped with.
    abort
        Makes every call that is under way raise; called by `close`, more than once.
    on_end
        Called by the thread whose call has ended, once `take` would return it.

    Examples
    --------
    >>> threads = CallThreads[int](limit=2, clock=MonotonicClock())
    >>> threads.submit(7, lambda: 6 * 7)
    >>> [(each.tag, each.value) for each in threads.take(10.0)]
    [(7, 42)]
    >>> threads.close()
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
        self._calls: queue.SimpleQueue[tuple[int, Callable[[], _Value]] | None] = (
            queue.SimpleQueue()
        )
        self._threads: list[threading.Thread] = []
        self._news = threading.Condition()  # guards the next three
        self._ended: list[Ended[_Value]] = []
        self._unfinished = 0  # submitted, and not in `_ended` yet
        self._woken = False
        self._closed = False

    def submit(self, tag: int, call: Callable[[], _Value]) -> None:
        """Have a thread make this call; returns at once.

        Raises
        ------
        WorkerError
            If they are closed, or the system lets not one be started.
        """
        if self._closed:
            raise WorkerError("the transport is closed: make a new one")
        if self._unfinished >= len(self._threads) < self._limit:
            self._start_one()
        with self._news:
            self._unfinished += 1
        self._calls.put((tag, call))

    def take(self, timeout_s: float = 0.0) -> list[Ended[_Value]]:
        """Return what has ended, in order of time; wait for it if there is none, or for `wake`."""
        with self._news:
            if timeout_s > 0:
                longest_s = min(timeout_s, LONGEST_WAIT_S)
                self._news.wait_for(lambda: self._ended or self._woken, longest_s)
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

    def _start_one(self) -> None:
        name = f"seqgc-lambda-{len(self._threads)}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system's limit: calls wait for those that there are
            if not self._threads:
                raise WorkerError(f"{error}: raise the limit on processes (ulimit -u)") from error
        else:
            self._threads.append(thread)

    def _serve(self) -> None:
        while self._served(self._calls.get()):
            pass  # and hold nothing of a call while waiting for the next: answers are large

    def _served(self, job: tuple[int, Callable[[], _Value]] | None) -> bool:
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


class ThreadedTransport(ABC):
    """Most of a `Transport` on an HTTP library that blocks.

    Parameters
    ----------
    limits
        Of time, connections (a thread each) and bytes; None: the default ones.
    clock
        What replies are stamped with; None: `time.monotonic`.
    """

    def __init__(self, limits: Limits | None, *, clock: Clock | None) -> None:
        self._limits = limits or Limits()
        self._sockets = Sockets()
        self._threads = CallThreads[Reply](
            limit=self._limits.connections,
            clock=MonotonicClock() if clock is None else clock,
            abort=self._sockets.abort,
        )

    def submit(self, tag: int, body: bytes) -> None:
        """Invoke the function with ``body``; returns at once."""
        self._threads.submit(tag, partial(self._send, tag, body))

    def flush(self) -> None:  # noqa: B027 (nothing is the right thing for all)
        """Do nothing: threads send what was submitted."""

    def poll(self, timeout_s: float) -> Sequence[Reply]:
        """Return the replies that have come, in order of time; wait for one if there is none."""
        return [_reply(each) for each in self._threads.take(timeout_s)]

    def wake(self) -> None:
        """Have `poll` return, now or the next time, although no reply has come."""
        self._threads.wake()

    def close(self) -> None:
        """Abandon what is on its way, within about a second; harmless if done already."""
        self._threads.close()
        self._release()

    @abstractmethod
    def _send(self, tag: int, body: bytes) -> Reply:
        """Invoke the function and wait for its answer; the reply's time is anything yet."""

    @abstractmethod
    def _release(self) -> None:
        """Close the library's client."""


def _reply(ended: Ended[Reply]) -> Reply:
    if isinstance(ended.value, Exception):
        return Reply(tag=ended.tag, at=ended.at, error=connection_error(ended.value))
    return replace(ended.value, at=ended.at)
