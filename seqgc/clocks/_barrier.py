"""`Barrier`: who may begin which clock, and when; `Slack`, which looks at the slowest alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from seqgc.clocks._global_clock import GlobalClock
from seqgc.errors import require_int

__all__ = ["Barrier", "Slack"]


class Barrier(ABC):
    """What a worker waits for before it begins the next clock of a part.

    It is asked with the same numbers again and again, and must say the same of the same: what it
    draws, it draws from a seed of its own. It must let the parts that stand at the global clock
    begin, for nobody else will make it pass.
    """

    waits_for_all: ClassVar[bool] = False
    """Whether whom it holds up is held up until the global clock passes: then nobody asks before.

    Else it is asked again whenever any part has completed a clock.
    """

    @property
    @abstractmethod
    def slack(self) -> int | None:
        """How many clocks ahead of the slowest it lets anybody begin at most; None: any number."""

    @abstractmethod
    def admits(self, part: int, clock: int, clocks: GlobalClock) -> bool:
        """Say whether a part, which has completed the clocks before, may begin this one now."""


@dataclass(frozen=True, kw_only=True)
class Slack(Barrier):
    """Clock t may begin when the global clock is at least t - slack; ``slack`` None: always.

    So whoever does clock t knows all that was done in the clocks up to ``t - slack - 1``.

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

    def admits(self, part: int, clock: int, clocks: GlobalClock) -> bool:  # noqa: ARG002 (whose)
        return self.slack is None or clock - clocks.least <= self.slack
