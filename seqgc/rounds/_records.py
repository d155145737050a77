"""`Records`: what observers are told of each clock when it has passed."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from seqgc.ports import CloseReason, RoundRecord

__all__ = ["Records"]


class Records:
    """When clocks began, were first answered and passed; and whose answers they took.

    A clock's seconds begin where the last one's end, so that all of them add up to the run; its
    first answer's time begins when its own first task left, which may have been long before.

    Examples
    --------
    >>> records = Records(2, "everyone")
    >>> for clock in range(2):
    ...     records.leave(clock, 1.0 + clock)
    ...     records.answer(clock, 0, 4.0 + clock)
    >>> record = records.close(0, 6.0)
    >>> record.kappa_s, record.duration_s, record.responded.tolist()
    (3.0, 5.0, [True, False])
    >>> record = records.close(1, 6.5)
    >>> record.kappa_s, record.duration_s
    (3.0, 0.5)
    """

    def __init__(self, n: int, reason: CloseReason) -> None:
        self._n, self._reason = n, reason
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

    def givers(self, clock: int) -> list[int]:
        """Return who has given answers to a clock that has not passed."""
        return sorted(self._givers.get(clock, ()))

    def recall(self, clock: int, givers: Iterable[int]) -> None:
        """Take note of who had answered before the run was resumed."""
        self._givers.setdefault(clock, set()).update(givers)

    def close(self, clock: int, at: float) -> RoundRecord:
        """Return how a clock passed; it is then forgotten.

        What a resumed run has of a clock counts from its own first task; without one, as 0 s.
        """
        responded = np.zeros(self._n, dtype=np.bool_)
        responded[list(self._givers.pop(clock, ()))] = True
        responded.flags.writeable = False
        first_at = self._first_at.pop(clock, at)
        began_at, self._passed_at = self._passed_at, at
        return RoundRecord(
            round=clock,
            responded=responded,
            kappa_s=first_at - self._began_at.pop(clock, first_at),
            duration_s=at - began_at,
            reason=self._reason,
            waited_out=False,
        )
