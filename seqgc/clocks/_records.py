"""`Records`: what observers are told of each clock when the global clock has passed it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from seqgc.ports import RoundRecord

__all__ = ["Records"]


class Records:
    """When clocks began, were first answered and passed; and whose answers they took.

    A clock's seconds begin where the last one's end, so that all of them add up to the run; its
    first answer's time begins when its own first task left, which may have been long before.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._began_at: dict[int, float] = {}  # by clock
        self._first_at: dict[int, float] = {}
        self._givers: dict[int, set[int]] = {}
        self._passed_at = math.nan  # the last clock, or when the run began

    def leave(self, clock: int, at: float) -> None:
        """Take note of when tasks of a clock left."""
        if math.isnan(self._passed_at):
            self._passed_at = at
        self._began_at[clock] = min(at, self._began_at.get(clock, at))

    def answer(self, clock: int, worker: int, at: float) -> None:
        """Take note of an answer that counts."""
        self._first_at.setdefault(clock, at)
        self._givers.setdefault(clock, set()).add(worker)

    def recall(self, clock: int, givers: Iterable[int]) -> None:
        """Take note of who had answered before the run was resumed."""
        self._givers.setdefault(clock, set()).update(givers)

    def close(self, clock: int, at: float) -> RoundRecord:
        """Return how a clock passed, of which at least one answer is noted; it is then forgotten.

        What a resumed run has of a clock counts from its own first task.
        """
        responded = np.zeros(self._n, dtype=np.bool_)
        responded[list(self._givers.pop(clock))] = True
        responded.flags.writeable = False
        first_s = self._first_at.pop(clock) - self._began_at.pop(clock)
        began_at, self._passed_at = self._passed_at, at
        return RoundRecord(
            round=clock,
            responded=responded,
            kappa_s=first_s,
            duration_s=at - began_at,
            reason="everyone",
            waited_out=False,
        )
