"""`Attempts`: who has been asked how often in a round, and who is asked again when.

A task that failed is sent again at once: most failures hit an attempt, not a task. What fails twice
may be an outage, and waits: uniformly between 0 and 0.1 s, then 0.2 s, and so on up to 5 s ("full
jitter"), so that those that failed together do not come back together. No wait takes more than half
of the time that the round has left, or the last would be in vain.

A worker is asked 20 times a round at most (more only if ``max_attempts`` says so). The first nine
may follow each other closely; the others are spread over the time limit (60 s if there is none),
one in each twelfth of it but the first: a run outlasts every outage that is shorter than the limit.

A wait's generator is seeded with its task's address: the same failures give the same waits, in a
resumed run too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import numpy as np

from seqgc.rounds._rule import ClosingRule

MOST: Final = 20  # attempts of one task
CLOSE: Final = 8  # of these may follow each other closely
_FIRST_S: Final = 0.1
_LONGEST_S: Final = 5.0
_PATIENCE_S: Final = 60.0


def longest_wait_s(attempt: int) -> float:
    """Return the longest wait before an attempt from the third on (2, ...), seconds."""
    return min(_LONGEST_S, _FIRST_S * 2.0 ** min(attempt - 2, MOST))


def pace_s(rule: ClosingRule) -> float:
    """Return the seconds between attempts that are to outlast an outage."""
    patience_s = rule.timeout_s if rule.timeout_s < math.inf else _PATIENCE_S
    return patience_s / (MOST - CLOSE)


class Attempts:
    """What has become of one round's attempts; times are seconds since the round began."""

    def __init__(self, round: int, rule: ClosingRule) -> None:
        self._round, self._most = round, max(MOST, rule.max_attempts)
        self._pace_s = pace_s(rule)
        self._latest: dict[int, int] = {}  # where it is not 0
        self._due: dict[int, float] = {}

    @property
    def wake_at(self) -> float:
        """When somebody is to be asked again; infinity if nobody is."""
        return min(self._due.values()) if self._due else math.inf

    def latest(self, worker: int) -> int:
        """Return the number of the attempt that this worker was last sent."""
        return self._latest.get(worker, 0)

    def waits(self, worker: int) -> bool:
        """Say whether the worker's latest attempt has failed, and the next one is not due yet."""
        return worker in self._due

    def under_way(self, workers: Iterable[int]) -> dict[int, int]:
        """Return the latest attempts of those, of workers still to answer, who do not wait."""
        return {worker: self.latest(worker) for worker in workers if not self.waits(worker)}

    def left(self, worker: int) -> bool:
        """Say whether the worker may be asked once more."""
        return self.latest(worker) + 1 < self._most

    def plan(self, workers: Iterable[int], elapsed: float, *, limit_s: float) -> list[int]:
        """Have workers asked again, in a round that ends ``limit_s`` seconds after its begin.

        Returns those of them who may be asked once more.
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
        """Return who is to be asked by now."""
        return [worker for worker, at in self._due.items() if at <= elapsed]

    def forget(self, worker: int) -> None:
        """Do not ask a worker again: it has answered."""
        self._due.pop(worker, None)

    def begin(self, workers: Iterable[int]) -> dict[int, list[int]]:
        """Count one more attempt of each of these; return them by its number."""
        by_attempt: dict[int, list[int]] = {}
        for worker in workers:
            self.forget(worker)
            attempt = self._latest[worker] = self.latest(worker) + 1
            by_attempt.setdefault(attempt, []).append(worker)
        return by_attempt
