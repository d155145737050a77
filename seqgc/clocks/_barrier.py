from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from seqgc.clocks._global_clock import GlobalClock
from seqgc.errors import require_int

__all__ = ["Barrier", "Slack"]


class Barrier(ABC):
    """A rule for when a part may begin its next clock.

    The policy calls `admits` repeatedly with the same arguments. The method must return the same
    value each time. If it draws random numbers, it must seed the generator in each call, so that
    the same arguments give the same numbers. The method must return True for every part that has
    completed the fewest clocks. Otherwise no part could begin, and the run would end with a
    `ScheduleError`.
    """

    waits_for_all: ClassVar[bool] = False
    """True if a part that must wait always waits until the global clock advances.

    The policy calls `admits` again when the global clock has advanced, or, if this is False, when
    any part has completed a clock.
    """

    @property
    @abstractmethod
    def slack(self) -> int | None:
        """The most clocks that a part which begins a clock may be ahead of the slowest part.

        None means no limit.
        """

    @abstractmethod
    def admits(self, part: int, clock: int, clocks: GlobalClock) -> bool:
        """Return True if a part that has completed all clocks before ``clock`` may begin it now.

        ``clocks`` holds the number of clocks that each part has completed.
        """


@dataclass(frozen=True, kw_only=True)
class Slack(Barrier):
    """A rule by which clock t may begin when the global clock is at least ``t - slack``.

    Therefore the weights that are used in clock t contain the updates of all clocks up to
    ``t - slack - 1``. With ``slack=None`` no part ever waits.

    Source: stale synchronous parallel (Ho et al. 2013); Cui et al. 2014, 2.3.

    Raises
    ------
    ParameterError
        If the slack is below 0.

    Examples
    --------
    >>> barrier, clocks = Slack(slack=1), GlobalClock([0, 0])
    >>> _ = clocks.complete([0])
    >>> barrier.admits(0, 1, clocks), barrier.admits(0, 2, clocks)
    (True, False)
    """

    slack: int | None = 0
    waits_for_all: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.slack is not None:
            require_int("slack", self.slack, least=0)

    def admits(self, part: int, clock: int, clocks: GlobalClock) -> bool:  # noqa: ARG002 (all parts alike)
        return self.slack is None or clock - clocks.least <= self.slack
