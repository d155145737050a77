"""`Alarms`: what is to be done at some time."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

__all__ = ["Alarms"]

_Call = TypeVar("_Call")

_SPARE: Final = 64  # moments that may be without a call, beside as many as have one


class Alarms(Generic[_Call]):
    """What is to be called, and when; of the same moment, what was set first.

    Who sets what may be of no use by then says what it is `of`, anything that can be a key: it is
    forgotten when another one of the same is set, or at once (`forget`). Its moment may stay, and
    nothing be called then; but of moments without a call there are never many more than of others.

    Examples
    --------
    >>> alarms = Alarms[str]()
    >>> alarms.set(2.0, "bell")
    >>> alarms.set(1.0, "gong")
    >>> alarms.set(1.5, "rattle", of="cot")
    >>> alarms.forget("cot")
    >>> alarms.next_at, list(alarms.due(2.5)), alarms.next_at
    (1.0, ['gong', 'bell'], inf)
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Hashable]] = []  # when, which, and what it is of
        self._calls: dict[Hashable, tuple[int, _Call]] = {}  # by what it is of, which counts
        self._serial = itertools.count()

    @property
    def next_at(self) -> float:
        """When the next one is due; infinity: never."""
        return self._heap[0][0] if self._heap else math.inf

    def set(self, at: float, call: _Call, *, of: Hashable = None) -> None:
        """Have something called at some time, and nothing else that is ``of`` the same."""
        serial, key = next(self._serial), object() if of is None else of
        self._calls[key] = serial, call
        heapq.heappush(self._heap, (at, serial, key))
        if len(self._heap) > 2 * len(self._calls) + _SPARE:  # most of it is forgotten
            self._heap = list(filter(self._counts, self._heap))
            heapq.heapify(self._heap)

    def forget(self, of: Hashable) -> None:
        """Let what is ``of`` this not be called, if anything is."""
        self._calls.pop(of, None)

    def due(self, now: float) -> Iterator[_Call]:
        """Yield what is due by now, and what is set meanwhile and due as well, once."""
        while self._heap and self._heap[0][0] <= now:
            entry = heapq.heappop(self._heap)
            if self._counts(entry):
                yield self._calls.pop(entry[2])[1]

    def _counts(self, entry: tuple[float, int, Hashable]) -> bool:
        _, serial, key = entry
        return self._calls.get(key, (-1,))[0] == serial
