"""`Repeat`: how a round was closed before its run was resumed, while it may close so again."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from seqgc.ports import BoolArray, LateAnswer

__all__ = ["Repeat"]

_PATIENCE: Final = 5.0
_LEAST_S: Final = 10.0  # a cold start is no hang


class Repeat:
    """On whose answers (n,) a round was closed, and which late ones it took; it lasts ``limit_s``.

    Where others suffice meanwhile, it lasts twice five times the seconds that these took, 10 s each
    at least. Who is silent after half of that is to be asked again.
    """

    def __init__(self, answers: BoolArray, late: Iterable[LateAnswer], *, limit_s: float) -> None:
        self.answers, self.late = answers, set(late)  # the latter until they are taken
        self.withholds = False  # whether late answers are here that the round did without
        self._limit_s = self.ends_at = limit_s
        self._asks_at = math.inf

    @property
    def is_waiting(self) -> bool:
        """Whether others suffice, or may with what it withholds."""
        return self._asks_at < math.inf

    def is_complete(self, responded: BoolArray) -> bool:
        """Whether all is here on which the round was closed, who (n,) has responded being known."""
        return not self.late and bool(responded[self.answers].all())

    def wait(self, elapsed: float) -> float:
        """Wait though others suffice; return until when: to ask again, and the second time to end.

        Seconds since the round began.
        """
        if self.is_waiting:
            return self.ends_at
        self._asks_at = min(self._limit_s, max(_PATIENCE * elapsed, _LEAST_S))
        self.ends_at = min(self._limit_s, 2 * self._asks_at)
        return self._asks_at
