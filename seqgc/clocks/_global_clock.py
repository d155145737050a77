from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from seqgc.errors import ParameterError, require_int

__all__ = ["GlobalClock"]


class GlobalClock:
    """A count of the clocks that each part has completed, and of their minimum, the global clock.

    ``completed`` is the number of completed clocks of each part at the beginning.

    Raises
    ------
    ParameterError
        If ``completed`` is empty, or one of the numbers is below 0.

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
            raise ParameterError("completed", "must hold at least one number of clocks", completed)
        self._completed = [require_int("completed", clock, least=0) for clock in completed]
        self._standing = Counter(self._completed)  # by clock: the number of parts that stand at it
        self._least = min(self._completed)

    @property
    def completed(self) -> tuple[int, ...]:
        """The number of clocks that each part has completed."""
        return tuple(self._completed)

    @property
    def least(self) -> int:
        """The global clock: the number of clocks that all parts have completed."""
        return self._least

    def clock(self, index: int) -> int:
        """Return the number of clocks that one part has completed."""
        return self._completed[index]

    def complete(self, indices: Iterable[int]) -> bool:
        """Record that each of these parts has completed its next clock.

        Returns True if the global clock has advanced.
        """
        for index in indices:
            clock = self._completed[index]
            self._completed[index] += 1
            self._standing[clock] -= 1
            self._standing[clock + 1] += 1
        advanced = self._standing[self._least] == 0
        if advanced:  # the last part to leave the least clock is now exactly one clock ahead of it
            del self._standing[self._least]
            self._least += 1
        return advanced
