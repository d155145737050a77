"""`Records`: the records of a run without rounds, one for each clock.

A clock is the counterpart of a round if workers do not begin rounds together: clock t of a worker
is its share of the work of round t. A clock closes when the policy needs no more answers to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from seqgc.ports import CloseReason, RoundRecord

__all__ = ["Records"]


class Records:
    """The times of the open clocks, and the workers that have answered.

    The duration of a clock is the time since the previous clock closed, so that the durations add
    up to the run time. Its kappa is the time from its first task to its first answer. This first
    task may have been sent long before the previous clock closed.

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
        """Record that a task of a clock left the master at the time ``at``, in seconds."""
        if math.isnan(self._passed_at):
            self._passed_at = at
        self._began_at[clock] = min(at, self._began_at.get(clock, at))

    def answer(self, clock: int, worker: int, at: float) -> None:
        """Record the answer of a worker to a task of a clock."""
        self._first_at.setdefault(clock, at)
        self._givers.setdefault(clock, set()).add(worker)

    def givers(self, clock: int) -> list[int]:
        """Return the workers that have answered an open clock."""
        return sorted(self._givers.get(clock, ()))

    def recall(self, clock: int, givers: Iterable[int]) -> None:
        """Add the workers that had answered an open clock before the run was interrupted."""
        self._givers.setdefault(clock, set()).update(givers)

    def close(self, clock: int, at: float) -> RoundRecord:
        """Close a clock at the time ``at``, and return its record.

        In a resumed run, times begin at the earliest when its first task has left. If no task of
        the clock has left since then, kappa is 0 s.
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
