"""Signals that end a run are let through only while it is at rest: no step is left half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupts"]

_Handler = Callable[[int, FrameType | None], object]


class Interrupts:
    """Holds SIGINT, SIGTERM and SIGHUP back until `admit`, for those who handle them in Python."""

    def __init__(self) -> None:
        self._handlers: dict[int, _Handler] = {}
        self._held: list[tuple[int, FrameType | None]] = []
        self.admitted = False

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Hold them back in the block; signals that nobody admitted in it are dropped.

        They have been answered then: the block ends.
        """
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
                if signal.getsignal(each) == self._take:  # else the handler has said what is next
                    signal.signal(each, handler)

    def admit(self) -> None:
        """Let them through from now on, those that have been held back first."""
        self.admitted = True
        while self._held:
            number, frame = self._held.pop(0)
            self._handlers[number](number, frame)

    def hold(self) -> None:
        """Hold them back again."""
        self.admitted = False

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.admitted:
            self._handlers[number](number, frame)
        else:
            self._held.append((number, frame))
