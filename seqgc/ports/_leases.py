from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class _Lease:
    began: float
    longest_s: float
    count: int  # number of equal invocations


class Leases:
    """The billed times of invocations, each from its start to its end, in whole milliseconds.

    An invocation is billed for at most ``longest_s`` seconds, including the start of an
    environment. It is open, and ``longest_s`` is reserved for it, until its end is certain.
    ``admit`` is called before a resident function is invoked; if it raises, the function is not
    invoked. Iteration yields the keys of open invocations. The times ``at`` are in seconds.

    ``count`` is the number of invocations that were not refused. ``ended_ms`` is the longest time
    that can be billed for the ended or lost invocations, and ``likely_ms`` their likely time.

    Examples
    --------
    >>> leases = Leases(longest_s=900.0)
    >>> leases.begin("a", at=100.0)
    >>> leases.begin("b", at=110.0)
    >>> leases.end("a", at=160.0)
    >>> leases.ended_ms, leases.open, leases.open_ms, leases.count
    (60000, 1, 900000, 2)
    >>> leases.end_by("b", at=210.0)
    >>> leases.open_ms
    100000
    """

    def __init__(self, *, longest_s: float) -> None:
        self.longest_s: Final = longest_s
        self.admit: Callable[[], None] = lambda: None
        self.count = self.ended_ms = self.likely_ms = 0
        self._open: dict[Hashable, _Lease] = {}

    @property
    def open(self) -> int:
        """The number of invocations that may still run."""
        return sum(lease.count for lease in self._open.values())

    @property
    def open_ms(self) -> int:
        """The longest time that may be billed for open invocations, in milliseconds."""
        return sum(billed_ms(each.longest_s) * each.count for each in self._open.values())

    def __iter__(self) -> Iterator[Hashable]:
        return iter(tuple(self._open))

    def begin(self, key: Hashable, *, at: float = -math.inf, count: int = 1) -> None:
        """Record the start of ``count`` equal invocations; by default, its time is not known."""
        self.count += count
        self._open[key] = _Lease(at, self.longest_s, count)

    def leave(self, key: Hashable, *, at: float) -> None:
        """Record the time at which an open invocation began."""
        if (lease := self._open.get(key)) is not None:
            self._open[key] = replace(lease, began=at)

    def began(self, key: Hashable) -> float | None:
        """Return the start time of an open invocation; None if it is not open."""
        lease = self._open.get(key)
        return None if lease is None else lease.began

    def end(self, key: Hashable, *, at: float) -> None:
        """Record that an invocation has ended."""
        if (lease := self._open.pop(key, None)) is not None:
            ms = billed_ms(min(at - lease.began, lease.longest_s)) * lease.count
            self.likely_ms += ms
            self.ended_ms += ms

    def end_by(self, key: Hashable, *, at: float) -> None:
        """Record that an invocation ends at this time at the latest."""
        if (lease := self._open.get(key)) is not None:
            longest_s = min(at - lease.began, lease.longest_s)
            self._open[key] = replace(lease, longest_s=longest_s)

    def lose(self, key: Hashable, *, at: float) -> None:
        """Record that an invocation has probably ended, and that its end will never be certain.

        For example, a function may continue after its connection has broken.
        """
        if (lease := self._open.pop(key, None)) is not None:
            likely_s = min(at - lease.began, lease.longest_s)
            self.likely_ms += billed_ms(likely_s) * lease.count
            self.ended_ms += billed_ms(lease.longest_s) * lease.count

    def refuse(self, key: Hashable) -> None:
        """Record that the service refused an invocation, which costs nothing."""
        if (lease := self._open.pop(key, None)) is not None:
            self.count -= lease.count


def billed_ms(seconds: float) -> int:
    """Return the milliseconds that are billed for an invocation, rounded up.

    Examples
    --------
    >>> billed_ms(1.001), billed_ms(1.0011)
    (1001, 1002)
    """
    # Round first: 1.001 * 1e3 is slightly more than 1001, which is not 1002 ms.
    return math.ceil(round(max(seconds, 0.0) * 1e3, 6))
