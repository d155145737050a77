"""Signals that end a run wait until no step is half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupts"]

_Handler = Callable[[int, FrameType | None], object]


class Interrupts:
    """A gate for SIGINT, SIGTERM and SIGHUP: a signal waits for `admit`, a second one does not.

    A second SIGHUP waits too: a shell and the system both send one when a terminal is closed.
    Signals that have no handler in Python are left alone.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, _Handler] = {}
        self._waiting: list[tuple[int, FrameType | None]] = []
        self.admitted = False

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Make signals wait in this block; drop those that still wait at its end."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._take)
        try:
            yield
        finally:
            for each, handler in self._handlers.items():
                if signal.getsignal(each) == self._take:  # unless the handler chose another one
                    signal.signal(each, handler)

    def admit(self) -> None:
        """Deliver the signals that wait, and from now on each at once."""
        self.admitted = True
        while self._waiting:
            self._deliver(*self._waiting.pop(0))

    def hold(self) -> None:
        """Make signals wait again."""
        self.admitted = False

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.admitted or (self._waiting and number != signal.SIGHUP):
            self._deliver(number, frame)
        else:
            self._waiting.append((number, frame))

    def _deliver(self, number: int, frame: FrameType | None) -> None:
        self._handlers[number](number, frame)
