"""`Records`: makes the record of each clock of a run without rounds when the clock closes."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from seqgc.ports import CloseReason, RoundRecord

__all__ = ["Records"]


class Records:
    """The times and workers of the clocks that are open.

    The duration of a clock is counted from the close of the previous clock, so that the durations
    add up to the run time. The time of its first answer (kappa) is counted from the sending of its
    own first task, which may have been long before.

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
        self._passed_at = math.nan  # when the last clock closed, or the run began

    def leave(self, clock: int, at: float) -> None:
        """Record that a task of a clock was sent, at a time in seconds."""
        if math.isnan(self._passed_at):
            self._passed_at = at
        self._began_at[clock] = min(at, self._began_at.get(clock, at))

    def answer(self, clock: int, worker: int, at: float) -> None:
        """Record an answer that counts."""
        self._first_at.setdefault(clock, at)
        self._givers.setdefault(clock, set()).add(worker)

    def givers(self, clock: int) -> list[int]:
        """Return the workers whose answers to an open clock count."""
        return sorted(self._givers.get(clock, ()))

    def recall(self, clock: int, givers: Iterable[int]) -> None:
        """Add ``givers``, the workers that answered an open clock before the run was resumed."""
        self._givers.setdefault(clock, set()).update(givers)

    def close(self, clock: int, at: float) -> RoundRecord:
        """Close a clock, and return its record.

        After a resume only the time of the resumed run counts. A clock without a task in it has a
        first answer's time of 0 s.
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
