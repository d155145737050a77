"""`Alarms`: a queue of calls, ordered by time."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Hashable, Iterator
from typing import Final, Generic, TypeVar

__all__ = ["Alarms"]

_Call = TypeVar("_Call")

_SPARE: Final = 64  # the heap is cleaned if it exceeds twice the number of calls by this many


class Alarms(Generic[_Call]):
    """A queue of calls with times; calls with the same time keep the order in which they were set.

    A call that may become useless is set with a key ``of``. It is dropped when another call with
    the same key is set, or when the key is passed to `forget`. The time of a dropped call may still
    be returned by `next_at`, but `due` does not yield the call.

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
        self._heap: list[tuple[float, int, Hashable]] = []  # time, serial number, key
        self._calls: dict[Hashable, tuple[int, _Call]] = {}  # by key: the valid serial number
        self._serial = itertools.count()

    @property
    def next_at(self) -> float:
        """The time of the next call, or of a dropped call before it; infinity for no call."""
        return self._heap[0][0] if self._heap else math.inf

    def set(self, at: float, call: _Call, *, of: Hashable = None) -> None:
        """Add a call at the time ``at``. It replaces an earlier call with the same key ``of``."""
        serial, key = next(self._serial), object() if of is None else of
        self._calls[key] = serial, call
        heapq.heappush(self._heap, (at, serial, key))
        if len(self._heap) > 2 * len(self._calls) + _SPARE:  # most entries are forgotten
            self._heap = list(filter(self._counts, self._heap))
            heapq.heapify(self._heap)

    def forget(self, of: Hashable) -> None:
        """Drop the call with this key, if there is one."""
        self._calls.pop(of, None)

    def due(self, now: float) -> Iterator[_Call]:
        """Yield and remove the calls whose time is at most ``now``.

        This includes such calls that are set during the iteration.
        """
        while self._heap and self._heap[0][0] <= now:
            entry = heapq.heappop(self._heap)
            if self._counts(entry):
                yield self._calls.pop(entry[2])[1]

    def _counts(self, entry: tuple[float, int, Hashable]) -> bool:
        _, serial, key = entry
        return self._calls.get(key, (-1,))[0] == serial
