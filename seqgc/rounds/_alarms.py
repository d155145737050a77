"""`Alarms`: what is to be done at some time."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["Alarms"]

_Call = TypeVar("_Call")


class Alarms(Generic[_Call]):
    """What is to be called, and when; of the same moment, what was set first.

    Examples
    --------
    >>> alarms = Alarms[str]()
    >>> alarms.set(2.0, "bell")
    >>> alarms.set(1.0, "gong")
    >>> alarms.next_at, list(alarms.due(2.5)), alarms.next_at
    (1.0, ['gong', 'bell'], inf)
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _Call]] = []
        self._serial = itertools.count()

    @property
    def next_at(self) -> float:
        """When the next one is due; infinity: never."""
        return self._heap[0][0] if self._heap else math.inf

    def set(self, at: float, call: _Call) -> None:
        """Have something called at some time."""
        heapq.heappush(self._heap, (at, next(self._serial), call))

    def due(self, now: float) -> Iterator[_Call]:
        """Yield what is due by now, and what is set meanwhile and due as well, once."""
        while self._heap and self._heap[0][0] <= now:
            yield heapq.heappop(self._heap)[2]
