"""`GlobalClock`: how far each has come, and all have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from seqgc.errors import ParameterError, require_int

__all__ = ["GlobalClock"]


class GlobalClock:
    """The least of clocks of their own: how many clocks all have completed.

    ``completed`` are the clocks that each has completed, all of them from 0 on.

    Raises
    ------
    ParameterError
        If there is nobody, or a clock is below 0.

    Examples
    --------
    >>> clocks = GlobalClock([0, 0])
    >>> clocks.complete([0]), clocks.completed, clocks.least
    (False, (1, 0), 0)
    >>> clocks.complete([1]), clocks.least
    (True, 1)
    """

    def __init__(self, completed: Sequence[int]) -> None:
        if not completed:
            raise ParameterError("completed", "must hold one clock at least", completed)
        self._completed = [require_int("completed", clock, least=0) for clock in completed]
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
