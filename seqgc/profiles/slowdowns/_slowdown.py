from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache

import numpy as np

from seqgc.errors import ParameterError, require_int, require_number
from seqgc.ports import FloatArray
from seqgc.profiles._pace import Pace, task_seconds

__all__ = ["Slowdown", "drawn_by_worker", "require_share"]


class Slowdown(ABC):
    """A pattern of slowness of ``n`` workers; without slowness, a clock takes ``clock_s`` s."""

    n: int
    clock_s: float

    @abstractmethod
    def _drawn(self) -> Pace:
        """Draw the pace of the workers."""

    def pace(self) -> Pace:
        """Return the pace of the workers; every call returns the same pace."""
        return _pace_of(self)

    def sleep_s(self, worker: int, *, round: int, at: float = 0.0) -> float:
        """Return the seconds, >= 0, that a live worker sleeps in its clock ``round``.

        The clock begins at the time ``at``. The sleep is the time of the clock beyond ``clock_s``.
        """
        done, load = round / self.n, 1 / self.n
        pace = self.pace()
        took_s = task_seconds(pace, worker, round=round, at=at, done=done, load=load)
        return max(0.0, took_s - self.clock_s)

    @property
    def _rate(self) -> float:
        """The seconds per unit of load of a worker that is not slowed down."""
        return self.n * self.clock_s

    def _check(self, **at_least: tuple[float, float]) -> None:
        """Check ``n``, ``clock_s``, and that each value of ``at_least`` is at least its bound.

        ``at_least`` are pairs (value, bound) by the name of the field.
        """
        require_int("n", self.n, least=1)
        require_number("clock_s", self.clock_s, above=0)
        for name, (value, least) in at_least.items():
            require_number(name, value, least=least)


@lru_cache(maxsize=32)
def _pace_of(slowdown: Slowdown) -> Pace:
    return slowdown._drawn()


def require_share(name: str, value: float) -> None:
    """Raise `ParameterError` if the value is not a probability."""
    if not 0 <= value <= 1:
        raise ParameterError(name, "must be a probability from 0 to 1", value)


def drawn_by_worker(n: int, rows: int, probability: float, *, seed: int) -> FloatArray:
    """Return random zeros and ones (rows, n), 1 with the given probability.

    Each worker (column) has its own random generator.
    """
    drawn = [np.random.default_rng([seed, i]).random(rows) < probability for i in range(n)]
    return np.array(drawn, dtype=np.float64).T
