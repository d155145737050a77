"""`Retries`: when what has failed is tried again, and when it is given up."""

from __future__ import annotations

import numpy as np

from seqgc.rounds._attempts import CLOSE, MOST, longest_wait_s, pace_s
from seqgc.rounds._rule import ClosingRule

__all__ = ["Retries"]


class Retries:
    """Counts failures in a row, and says how long to wait after each; see `Attempts`.

    Attempts belong to one round, these to a whole run: a wait is counted from the failure. The
    twentieth failure (or ``max_attempts``, if that is more) is the last. Waits are seeded with what
    failed, and how often: the same failures give the same waits.

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
        """Count a failure; return the seconds to wait before the next try."""
        attempt = self._failures[what] = self._failures.get(what, 0) + 1
        if attempt == 1:
            return 0.0
        rng = np.random.default_rng([*what, attempt])
        wait_s = float(rng.uniform(0.0, longest_wait_s(attempt)))
        return wait_s if attempt <= CLOSE else max(wait_s, self._pace_s)

    def in_a_row(self, what: tuple[int, ...]) -> int:
        """Return how often it has failed since it last succeeded."""
        return self._failures.get(what, 0)

    def exhausted(self, what: tuple[int, ...], *, times: int = 1) -> bool:
        """Say whether it has failed as often in a row as it may, or ``times`` as often."""
        return self.in_a_row(what) >= times * self._most

    def succeeded(self, what: tuple[int, ...]) -> None:
        """Forget the failures."""
        self._failures.pop(what, None)

    def forget(self, job: int) -> None:
        """Forget the failures of a job's pieces, ``(job, piece)``."""
        self._failures = {w: count for w, count in self._failures.items() if w[:-1] != (job,)}
