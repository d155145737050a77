"""`Slowdown`: what all patterns of slowness have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache

import numpy as np

from seqgc.errors import ParameterError, require_int, require_number
from seqgc.ports import FloatArray
from seqgc.profiles._pace import Pace, task_seconds

__all__ = ["Slowdown", "drawn_by_worker", "require_share"]


class Slowdown(ABC):
    """A pattern of slowness of ``n`` workers, otherwise of ``clock_s`` seconds per clock each."""

    n: int
    clock_s: float

    @abstractmethod
    def _drawn(self) -> Pace:
        """Return the pace, drawn."""

    def pace(self) -> Pace:
        """Return the pace of the workers: the same whenever it is asked for."""
        return _pace_of(self)

    def sleep_s(self, worker: int, *, round: int, at: float = 0.0) -> float:
        """Return how long a live worker sleeps in its clock ``round``, if that begins ``at``.

        That is what the clock takes beyond ``clock_s``; seconds, >= 0.
        """
        done, load = round / self.n, 1 / self.n
        pace = self.pace()
        took_s = task_seconds(pace, worker, round=round, at=at, done=done, load=load)
        return max(0.0, took_s - self.clock_s)

    @property
    def _rate(self) -> float:
        """Seconds per unit of load of a worker that nothing slows down."""
        return self.n * self.clock_s

    def _check(self, **at_least: tuple[float, float]) -> None:
        """Check what is common, and that these numbers (value, least) are as large."""
        require_int("n", self.n, least=1)
        require_number("clock_s", self.clock_s, above=0)
        for name, (value, least) in at_least.items():
            require_number(name, value, least=least)


@lru_cache(maxsize=32)
def _pace_of(slowdown: Slowdown) -> Pace:
    return slowdown._drawn()


def require_share(name: str, value: float) -> None:
    """Refuse what is no probability, with `ParameterError`."""
    if not 0 <= value <= 1:
        raise ParameterError(name, "must be a probability from 0 to 1", value)


def drawn_by_worker(n: int, rows: int, probability: float, *, seed: int) -> FloatArray:
    """Return 1 where something happens and 0 elsewhere, (rows, n), each worker by itself."""
    drawn = [np.random.default_rng([seed, i]).random(rows) < probability for i in range(n)]
    return np.array(drawn, dtype=np.float64).T
