"""Processes with threads and event loops, of which one thread runs at a time, in virtual time.

A thread of a simulated process is a real one that holds the baton or waits for it. Whoever waits
(for an event, another thread, or a time) hands it back to the simulator, who lets time pass and
gives it to the next in the order of time. So what happens is a function of the seed, and the code
of threads and event loops runs as it is. A process that ends, ends in whatever its threads wait
for.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from tests.simulation.world import Violation


class Gone(BaseException):
    """The process is no more."""


class Simulator(Protocol):
    """Who lets time pass."""

    def now(self) -> float: ...
    def after(self, seconds: float, do: Callable[[], None]) -> None: ...
    def wait(self, timeout_s: float, news: Callable[[], bool]) -> None: ...


class Process:
    """Threads that end at once."""

    def __init__(self, threads: Threads) -> None:
        self.alive = True
        self.threads: list[Thread] = []
        self._threads = threads
        threads.processes.append(self)

    def end(self) -> None:
        if not self.alive:
            return
        self.alive = False
        self._threads.at_end(self)
        for thread in self.threads:
            if self._threads.current is None:
                thread.resume()
            else:
                thread.wake()


class Threads:
    """All threads but the simulator's own, which is the ``master``'s."""

    def __init__(self, simulator: Simulator, aside: Callable[[bool], None]) -> None:
        self.simulator, self.aside = simulator, aside
        self.at_end: Callable[[Process], None] = lambda _: None
        self.processes: list[Process] = []
        self.current: Thread | None = None
        self.back = _baton()
        self.error: BaseException | None = None
        self.is_over = False
        self.master = Process(self)

    @property
    def process(self) -> Process:
        """Whose thread is at work."""
        return self.master if self.current is None else self.current.process

    def wait(self, news: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait for news, of which somebody will wake this thread; return whether there are some."""
        if self.current is None:
            self.simulator.wait(60.0 if timeout_s is None else timeout_s, news)
            return news()
        until = None if timeout_s is None else self.simulator.now() + timeout_s
        while not news() and (until is None or self.simulator.now() < until):
            self.current.pause(None if until is None else until - self.simulator.now())
        return news()

    def sleep(self, seconds: float | None) -> None:
        self.wait(lambda: False, seconds)

    def violated(self, what: str) -> None:
        """Raise a `Violation` in the simulator; in a thread somebody might catch it."""
        if self.current is None and not self.is_over:
            raise Violation(what)
        self.error = self.error or Violation(what)

    def end(self) -> None:
        """End all processes, whatever goes wrong with that."""
        self.is_over = True
        for process in self.processes:
            process.end()
        for process in self.processes:
            for thread in process.threads:
                while not thread.over:
                    thread.resume()

    # ---- in place of threading's and asyncio's --------------------------------------------------

    def Thread(self, target: Callable[[], None], **_: object) -> Thread:
        return Thread(self, target)

    def Event(self) -> Event:
        return Event(self)

    def run_coroutine_threadsafe(
        self, coroutine: Coroutine[Any, Any, object], loop: asyncio.AbstractEventLoop
    ) -> _Result:
        return _Result(coroutine, loop, Event(self))


def _baton() -> threading.Lock:
    """Return a lock that is not there to be had until somebody releases it."""
    lock = threading.Lock()
    lock.acquire()
    return lock


class Thread:
    """As `threading.Thread`."""

    def __init__(
        self, threads: Threads, target: Callable[[], None], *, process: Process | None = None
    ) -> None:
        self.process, self.over = process or threads.process, False
        self._threads, self._target = threads, target
        self._go = _baton()
        self._real = threading.Thread(target=self._run, daemon=True)
        self._serial = 0
        self._ended = Event(threads)

    def start(self) -> None:
        self.process.threads.append(self)
        self.wake()

    def is_alive(self) -> bool:
        return not self.over

    def join(self, timeout: float | None = None) -> None:
        self._ended.wait(timeout)

    def pause(self, seconds: float | None) -> None:
        """Wait to be woken, or for the time to pass."""
        self._require_process()
        if seconds is not None:
            self._wake_after(seconds)
        self._threads.back.release()
        self._go.acquire()
        self._require_process()

    def wake(self) -> None:
        """Have the thread go on, as soon as it waits."""
        self._wake_after(0.0)

    def _wake_after(self, seconds: float) -> None:
        serial = self._serial

        def wake() -> None:
            if self._serial == serial:  # it has not been woken since
                self.resume()

        self._threads.simulator.after(seconds, wake)

    def resume(self) -> None:
        """Let the thread run until it waits again; the simulator's."""
        if self.over:
            return
        threads, self._serial = self._threads, self._serial + 1
        threads.current = self
        threads.aside(True)
        if self._real.ident is None:
            self._real.start()
        self._go.release()
        threads.back.acquire()
        threads.current = None
        threads.aside(False)
        if self.over:
            self._real.join()
        if threads.error is not None and not threads.is_over:
            error, threads.error = threads.error, None
            raise error

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._require_process()
            self._target()
        except Gone:
            pass
        except BaseException as error:
            if self.process.alive:
                self._threads.error = error
        finally:
            self.over = True
            self._ended.set()
            self._threads.back.release()

    def _require_process(self) -> None:
        if not self.process.alive:
            raise Gone


class Event:
    """As `threading.Event`."""

    def __init__(self, threads: Threads) -> None:
        self._threads, self._is_set = threads, False
        self._waiting: list[Thread] = []

    def set(self) -> None:
        self._is_set = True
        for thread in self._waiting:
            thread.wake()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        current = self._threads.current
        if current is not None:
            self._waiting.append(current)
        try:
            return self._threads.wait(lambda: self._is_set, timeout)
        finally:
            if current is not None:
                self._waiting.remove(current)


class _Result:
    """What `asyncio.run_coroutine_threadsafe` returns."""

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, object],
        loop: asyncio.AbstractEventLoop,
        over: Event,
    ) -> None:
        self._coroutine, self._over = coroutine, over
        loop.call_soon_threadsafe(self._begin, loop)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.create_task(self._coroutine).add_done_callback(lambda _: self._over.set())

    def result(self) -> None:
        try:
            self._over.wait()
        except Gone:
            self._coroutine.close()
            raise


class Loop(asyncio.BaseEventLoop):
    """Asyncio's own loop, but for where it waits, what time it is, and whom it is connected to."""

    def __init__(self, threads: Threads) -> None:
        super().__init__()
        self._threads, self._called, self._is_ending = threads, False, False
        self._selector = self
        self._thread: Thread | None = None
        self.process = threads.process

    def time(self) -> float:
        return self._threads.simulator.now()

    def select(self, timeout: float | None) -> list[object]:
        self._thread = current = self._threads.current
        assert current is not None, "loops run in threads of their own"
        try:
            if timeout is None or timeout > 0:
                self._threads.wait(lambda: self._called, timeout)
        except Gone:
            if self._is_ending:
                raise
            self._is_ending = True
            for task in asyncio.all_tasks(self):
                task.cancel()  # else they would end whenever memory is cleared
        self._called = False
        return []

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if self.process.alive and error is not None:
            self._threads.violated(f"{context['message']}: {error!r}")

    def _process_events(self, event_list: list[object]) -> None:
        """All that happens comes by `call_soon_threadsafe`."""

    def _write_to_self(self) -> None:
        self._called = True
        if self._thread is not None:
            self._thread.wake()

    def _check_closed(self) -> None:
        """What a dead process leaves behind is cleared away at any time, and to no effect."""

    def __del__(self, _warn: object = None) -> None:
        """A dead process has not closed it."""
