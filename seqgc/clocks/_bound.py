"""`Bound`: how far all have come, and who may go on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from seqgc.errors import ParameterError, require_int

__all__ = ["Bound"]


class Bound:
    """The global clock over clocks of their own, and the slack that bounds how far these part.

    ``completed`` are the clocks that each has completed, all of them from 0 on. The *global clock*
    is the least of them. Clock t may begin when the global clock is at least ``t - slack``; None is
    no bound at all. So whoever does clock t knows all that was done in the clocks up to
    ``t - slack - 1``.

    Source: stale synchronous parallel (Ho et al. 2013); Cui et al. 2014, 2.3.

    Raises
    ------
    ParameterError
        If there is nobody, a clock is below 0, or the slack is.

    Examples
    --------
    >>> bound = Bound([0, 0], slack=1)
    >>> bound.complete([0]), bound.admits(1), bound.complete([0]), bound.admits(2)
    (False, True, False, False)
    >>> bound.complete([1]), bound.least, bound.admits(2)
    (True, 1, True)
    """

    def __init__(self, completed: Sequence[int], *, slack: int | None) -> None:
        if not completed:
            raise ParameterError("completed", "must hold one clock at least", completed)
        self._completed = [require_int("completed", clock, least=0) for clock in completed]
        self._slack = math.inf if slack is None else require_int("slack", slack, least=0)
        self._standing = Counter(self._completed)  # by clock: how many have completed just so many
        self._least = min(self._completed)

    @property
    def completed(self) -> tuple[int, ...]:
        """The clocks that each has completed."""
        return tuple(self._completed)

    @property
    def least(self) -> int:
        """The global clock: the clocks that all have completed."""
        return self._least

    def clock(self, index: int) -> int:
        """Return how many clocks one of them has completed."""
        return self._completed[index]

    def admits(self, clock: int) -> bool:
        """Say whether a clock may begin now."""
        return clock - self._least <= self._slack

    def complete(self, indices: Iterable[int]) -> bool:
        """Note that these have completed the clock that they all stood at; say if the least has."""
        for index in indices:
            clock = self._completed[index]
            self._completed[index] += 1
            self._standing[clock] -= 1
            self._standing[clock + 1] += 1
        passed = self._standing[self._least] == 0
        if passed:  # whoever left the least clock as the last is just one further on
            del self._standing[self._least]
            self._least += 1
        return passed
