"""`Retries`: the waits after failures, and the number of failures after which to give up."""

from __future__ import annotations

import numpy as np

from seqgc.rounds._attempts import CLOSE, MOST, longest_wait_s, pace_s
from seqgc.rounds._rule import ClosingRule

__all__ = ["Retries"]


class Retries:
    """A count of the failures in a row of each subject, with a wait after each failure.

    A subject is a tuple of integers, such as ``(worker,)`` or ``(job, piece)``. After its first
    failure there is no wait. The next waits are random, with the bounds of `Attempts`: 0.1 s,
    0.2 s, and so on up to 5 s. From the ninth failure on, a wait also lasts at least one twelfth of
    the time limit (of 60 s if there is no limit). A subject is exhausted after 20 failures in a row
    (or ``max_attempts``, if this is more). The random waits are seeded with the subject and its
    number of failures, so that the same failures give the same waits.

    Examples
    --------
    >>> retries = Retries(ClosingRule())
    >>> [retries.failed((3,)) <= bound_s for bound_s in (0.0, 0.1, 0.2, 0.4)]
    [True, True, True, True]
    """

    def __init__(self, rule: ClosingRule) -> None:
        self._most, self._pace_s = max(MOST, rule.max_attempts), pace_s(rule)
        self._failures: dict[tuple[int, ...], int] = {}

    def failed(self, what: tuple[int, ...]) -> float:
        """Count a failure of a subject, and return the seconds to wait before the next attempt."""
        attempt = self._failures[what] = self._failures.get(what, 0) + 1
        if attempt == 1:
            return 0.0
        rng = np.random.default_rng([*what, attempt])
        wait_s = float(rng.uniform(0.0, longest_wait_s(attempt)))
        return wait_s if attempt <= CLOSE else max(wait_s, self._pace_s)

    def in_a_row(self, what: tuple[int, ...]) -> int:
        """Return the number of failures since the last success."""
        return self._failures.get(what, 0)

    def exhausted(self, what: tuple[int, ...], *, times: int = 1) -> bool:
        """Return True if a subject has failed too often in a row.

        The allowed number of failures is multiplied by ``times``.
        """
        return self.in_a_row(what) >= times * self._most

    def succeeded(self, what: tuple[int, ...]) -> None:
        """Reset the count of a subject to 0."""
        self._failures.pop(what, None)

    def forget(self, job: int) -> None:
        """Reset the counts of all pieces of a job, the subjects ``(job, piece)``."""
        self._failures = {w: count for w, count in self._failures.items() if w[:-1] != (job,)}
