"""How long functions stay, and what they have been invoked for: the clock of those that are paid.

All is sans-I/O: times are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from seqgc.backends.lambda_._calls import ThrottlePolicy
from seqgc.backends.lambda_._switchboard import Address
from seqgc.errors import ParameterError, require_int
from seqgc.worker._staying import GRACE_BEATS

__all__ = ["Leases", "Staying"]

_SPARE: Final = 1 / 60  # of its time-out: the service shall not end it, which costs an environment


class Leases:
    """The stays of functions that were invoked, each paid for until it has ended.

    ``longest_s`` is what one is billed at most, its start included; it counts in full until it is
    known by when it ends. ``admit`` is called before each invocation: what it raises keeps that
    from being made.

    Examples
    --------
    >>> leases = Leases(longest_s=900.0)
    >>> leases.begin(0, at=100.0)
    >>> leases.begin(1, at=110.0)
    >>> leases.end(0, at=160.0)
    >>> leases.ended_s, leases.open, leases.open_s, leases.count
    (60.0, 1, 900.0, 2)
    >>> leases.end_by(1, at=210.0)
    >>> leases.open_s
    100.0
    """

    def __init__(self, *, longest_s: float) -> None:
        self.longest_s: Final = longest_s
        self.admit: Callable[[], None] = lambda: None
        self.count = 0  # of those that were not refused
        self.ended_s = 0.0  # of those that have ended
        self._open: dict[int, tuple[float, float]] = {}  # when each began, and will have ended

    @property
    def open(self) -> int:
        """How many have not ended, as far as is known."""
        return len(self._open)

    @property
    def open_s(self) -> float:
        """How long these can be billed for in all, seconds."""
        return sum(until - began for began, until in self._open.values())

    def begin(self, tag: int, *, at: float) -> None:
        """Take note of an invocation."""
        self.count += 1
        self._open[tag] = at, at + self.longest_s

    def end(self, tag: int, *, at: float) -> None:
        """Take note of its end."""
        if (lease := self._open.pop(tag, None)) is not None:
            began, until = lease
            self.ended_s += min(at, until) - began

    def end_by(self, tag: int, *, at: float) -> None:
        """Take note that it will have ended by then, if it has not."""
        if (lease := self._open.get(tag)) is not None:
            began, until = lease
            self._open[tag] = began, min(at, until)

    def refuse(self, tag: int) -> None:
        """Take note that no function has seen it: nothing is paid for."""
        if self._open.pop(tag, None) is not None:
            self.count -= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Staying:
    """How functions stay.

    Parameters
    ----------
    address
        Where they call the master.
    limit_s
        The function's time-out, seconds, at most Lambda's 900.
    leave
        After which share of that a function says that it is going to leave, at least and at most;
        drawn by ``seed``, so that not all do at once. Usually 13 min ± 1 of Lambda's 15; less of
        a time-out so short that the beats in which a computation may end take a part of it.
    beat_s
        Between heartbeats, seconds. A function that is ready is lost after 5 silent ones, a master
        after 30.
    start_timeout_s
        Within which an invocation must have become a function that is ready, seconds.
    start_s
        ``start_s(worker, number)``: the least time that a worker's so-manieth start takes, seconds:
        slow starts to inject. None: none.
    throttling
        How HTTP 429 is met.
    leases
        Keeps count of what is paid for; None: nobody is interested.

    Raises
    ------
    ParameterError
        If a value is outside its range.
    """

    address: Address = field(default_factory=Address)
    limit_s: float = 900.0
    leave: tuple[float, float] = (12 / 15, 14 / 15)
    beat_s: float = 1.0
    start_timeout_s: float = 120.0
    seed: int = 0
    start_s: Callable[[int, int], float] | None = None
    throttling: ThrottlePolicy = field(default_factory=ThrottlePolicy)
    leases: Leases | None = None

    def __post_init__(self) -> None:
        require_int("seed", self.seed, least=0)
        for argument, most in (("limit_s", 900.0), ("beat_s", 60.0), ("start_timeout_s", math.inf)):
            if not 0 < (value := getattr(self, argument)) <= most:
                raise ParameterError(argument, f"must be in (0, {most:g}] seconds", value)

        if not 0 < self.leave[0] <= self.leave[1] < 1 - _SPARE:
            rule = f"must satisfy 0 < least <= most < {1 - _SPARE:.3f}"
            raise ParameterError("leave", rule, self.leave)
        if not self.end_s > 0:
            rule = f"must be more than {GRACE_BEATS + 1} heartbeats of {self.beat_s:g} s"
            raise ParameterError("limit_s", rule, self.limit_s)

    def leave_s(self, worker: int, number: int) -> float:
        """Return after how many seconds a worker's so-manieth function says that it leaves."""
        rng = np.random.default_rng([self.seed, worker, number])
        return self.end_s / (1 - _SPARE) * float(rng.uniform(*self.leave))

    @property
    def end_s(self) -> float:
        """After how many seconds a function ends whatever it does.

        What it is computing may go on for so many beats, and then the process ends.
        """
        return self.limit_s - max(self.limit_s * _SPARE, (GRACE_BEATS + 1) * self.beat_s)
