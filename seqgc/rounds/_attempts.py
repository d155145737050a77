"""`Attempts`: counts the attempts of each worker's task in a round, and plans the next ones.

After the first failure a task is sent again at once, because most failures are random. If it fails
again, there may be an outage, and the next attempt is made after a random wait ("full jitter").
Therefore tasks that failed together are not sent again together. The wait is uniform between 0 and
0.1 s after the second failure, and its upper bound doubles with each failure, up to 5 s. A wait
takes at most half of the time that the round has left, so that the last attempt is not too late.

A task is sent at most 20 times in a round (or ``max_attempts`` times, if this is more). The first
nine attempts may follow each other closely. The next ones are sent, at the earliest, when one
twelfth, two twelfths, and so on of the time limit have passed (of 60 s if there is no limit).
Therefore a round survives every outage that ends before eleven twelfths of the limit have passed.

The random generator of a wait is seeded with the address of the task. Therefore the same failures
give the same waits, also in a resumed run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import numpy as np

from seqgc.rounds._rule import ClosingRule

MOST: Final = 20  # attempts of one task
CLOSE: Final = 8  # of these attempts, not counting the first, may follow each other closely
_FIRST_S: Final = 0.1
_LONGEST_S: Final = 5.0
_PATIENCE_S: Final = 60.0


def longest_wait_s(attempt: int) -> float:
    """Return the longest wait before an attempt, in seconds.

    Attempts are numbered from 0, and ``attempt`` is at least 2.
    """
    return min(_LONGEST_S, _FIRST_S * 2.0 ** min(attempt - 2, MOST))


def pace_s(rule: ClosingRule) -> float:
    """Return the shortest time between two attempts after the first nine, in seconds.

    This is one twelfth of the time limit, or of 60 s if there is no limit.
    """
    patience_s = rule.timeout_s if rule.timeout_s < math.inf else _PATIENCE_S
    return patience_s / (MOST - CLOSE)


class Attempts:
    """The attempts of all workers in one round; times are in seconds since the round began."""

    def __init__(self, round: int, rule: ClosingRule) -> None:
        self._round, self._most = round, max(MOST, rule.max_attempts)
        self._pace_s = pace_s(rule)
        self._latest: dict[int, int] = {}  # by worker: the latest attempt, if it is not 0
        self._due: dict[int, float] = {}  # by worker that waits: the time of its next attempt

    @property
    def wake_at(self) -> float:
        """The time of the next attempt; infinity if none is planned."""
        return min(self._due.values()) if self._due else math.inf

    def latest(self, worker: int) -> int:
        """Return the number of the worker's latest attempt, from 0."""
        return self._latest.get(worker, 0)

    def waits(self, worker: int) -> bool:
        """Return True if the worker's latest attempt has failed, and another one is planned."""
        return worker in self._due

    def under_way(self, workers: Iterable[int]) -> dict[int, int]:
        """Return the number of the latest attempt of each of these workers that does not wait."""
        return {worker: self.latest(worker) for worker in workers if not self.waits(worker)}

    def left(self, worker: int) -> bool:
        """Return True if the worker may have another attempt."""
        return self.latest(worker) + 1 < self._most

    def plan(self, workers: Iterable[int], elapsed: float, *, limit_s: float) -> list[int]:
        """Plan another attempt of each worker that may have one, and return these workers.

        ``elapsed`` is the present, and ``limit_s`` is the end of the round's time limit.
        """
        again = [worker for worker in workers if self.left(worker)]
        for worker in again:
            attempt = self.latest(worker) + 1
            due = max(elapsed, self._pace_s * (attempt - CLOSE))
            if attempt > 1:
                bound_s = longest_wait_s(attempt)
                rng = np.random.default_rng([self._round, worker, attempt])
                due += float(rng.uniform(0.0, max(0.0, min(bound_s, (limit_s - due) / 2))))
            self._due[worker] = due
        return again

    def due(self, elapsed: float) -> list[int]:
        """Return the workers whose next attempt is due."""
        return [worker for worker, at in self._due.items() if at <= elapsed]

    def forget(self, worker: int) -> None:
        """Cancel a worker's planned attempt, because it has answered."""
        self._due.pop(worker, None)

    def begin(self, workers: Iterable[int]) -> dict[int, list[int]]:
        """Begin another attempt of each of these workers. Return the workers by attempt."""
        by_attempt: dict[int, list[int]] = {}
        for worker in workers:
            self.forget(worker)
            attempt = self._latest[worker] = self.latest(worker) + 1
            by_attempt.setdefault(attempt, []).append(worker)
        return by_attempt
