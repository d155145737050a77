"""Time that a test decides: a clock wound by hand, and the one place that waits for real."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

__all__ = ["PATIENCE_S", "HandWoundClock", "eventually"]

_Found = TypeVar("_Found")

PATIENCE_S: Final = 60.0
"""How long a test waits for what must happen: reached only if it does not."""


class HandWoundClock:
    """A `seqgc.ports.Clock` that moves when it is wound, and at no other time.

    It shows ``time`` first, seconds; every look at it moves it on by ``step`` seconds, so that with
    a step no two looks see the same time.

    Examples
    --------
    >>> clock = HandWoundClock(100.0)
    >>> clock.wind(2.5)
    >>> clock.sleep(1.0)  # for what takes a `sleep`
    >>> clock.now(), clock.slept
    (103.5, [1.0])
    """

    def __init__(self, time: float = 100.0, *, step: float = 0.0) -> None:
        self._time, self._step = time, step
        self.slept: Final[list[float]] = []

    def now(self) -> float:
        """Return the time, seconds."""
        now = self._time
        self._time += self._step
        return now

    def wind(self, seconds: float) -> None:
        """Let some time pass."""
        self._time += seconds

    def sleep(self, seconds: float) -> None:
        """Let some time pass, and note how much in ``slept``."""
        self.slept.append(seconds)
        self.wind(seconds)


def eventually(
    condition: Callable[[], _Found], what: str, *, within_s: float = PATIENCE_S
) -> _Found:
    """Wait until a condition holds that other threads or processes bring about; return its value.

    `AssertionError` after ``within_s`` seconds: ``what`` did not happen.

    Examples
    --------
    >>> eventually(lambda: 7, "something true")
    7
    """
    give_up_at = time.monotonic() + within_s
    while not (found := condition()):
        if time.monotonic() >= give_up_at:
            raise AssertionError(f"{what} did not happen in {within_s:g} s")
        time.sleep(0.002)
    return found
