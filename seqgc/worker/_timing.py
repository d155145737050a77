"""The time that a worker spends on each phase of a task."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal, TypeAlias

from seqgc.ports import TaskPhases

__all__ = ["TIMER", "TaskTimer"]

_Phase: TypeAlias = Literal["started_s", "fetched_s"]


class TaskTimer(threading.local):
    """A timer of the task that this thread computes.

    Examples
    --------
    >>> timer = TaskTimer()
    >>> timer.begin(waited_s=0.5)
    >>> with timer.phase("fetched_s"):
    ...     pass
    >>> phases = timer.phases()
    >>> phases.waited_s, phases.started_s, phases.computed_s >= 0
    (0.5, 0.0, True)
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self, *, waited_s: float = 0.0) -> None:
        """Begin a task that has waited for ``waited_s`` seconds."""
        self._began_at, self._waited_s = time.perf_counter(), max(0.0, waited_s)
        self._spent: dict[_Phase, float] = {"started_s": 0.0, "fetched_s": 0.0}
        self._phase: _Phase | None = None

    @contextmanager
    def phase(self, phase: _Phase) -> Iterator[None]:
        """Count this block as a phase. A block within another block counts as the outer phase."""
        if self._phase is not None:
            yield
            return
        self._phase, began_at = phase, time.perf_counter()
        try:
            yield
        finally:
            self._phase = None
            self._spent[phase] += time.perf_counter() - began_at

    def phases(self) -> TaskPhases:
        """Return the phases of the task until now, to the microsecond."""
        computed_s = time.perf_counter() - self._began_at - sum(self._spent.values())
        seconds = (self._waited_s, *self._spent.values(), max(0.0, computed_s))
        return TaskPhases(*(round(each, 6) for each in seconds))


TIMER: Final = TaskTimer()
"""The timer of this process, with a task for each thread."""
