"""Slowness of the work: sleeps in the inner loop, which waiting does not avoid."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from seqgc.errors import ParameterError, require_int, require_number
from seqgc.ports import FloatArray, IntArray
from seqgc.profiles._pace import ByWork, Pace
from seqgc.profiles.slowdowns._slowdown import Slowdown, require_share

__all__ = ["PowerLawClocks", "SlowPeriods", "Uneven"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowPeriods(Slowdown):
    """A pattern of slow periods, in which a worker takes ``1 + delay`` times as long.

    A clock has ``points`` points. At each of them a slow period begins with probability
    ``probability``, unless the worker is in a slow period already. The length of a period is
    uniform between 0 and the work of ``longest`` clocks. After ``clocks`` clocks the pattern begins
    again. Source: Harlap et al. 2016.

    Raises
    ------
    ParameterError
        If an argument breaks its rule.

    Examples
    --------
    >>> slowdown = SlowPeriods(n=4, delay=2.0, probability=0.1, seed=1)
    >>> [round(slowdown.sleep_s(3, round=k), 3) for k in range(6)]
    [1.883, 0.0, 1.0, 0.847, 1.8, 0.821]
    """

    n: int
    delay: float
    clock_s: float = 1.0
    points: int = 10
    probability: float = 0.01
    longest: float = 2.0
    clocks: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        self._check(delay=(self.delay, 0), longest=(self.longest, 0), seed=(self.seed, 0))
        require_int("points", self.points, least=1)
        require_int("clocks", self.clocks, least=1)
        require_share("probability", self.probability)

    def _drawn(self) -> Pace:
        rows = self.clocks * self.points
        slow = np.empty((rows, self.n))  # the fraction of each row's work that is slow
        for worker in range(self.n):
            rng = np.random.default_rng([self.seed, worker])
            begins = np.flatnonzero(rng.random(rows) < self.probability)
            lengths = rng.uniform(0, self.longest * self.points, len(begins))
            slow[:, worker] = _covered(rows, begins, lengths)
        rates = self._rate * (1 + self.delay * slow)
        return ByWork(rates=rates, width=1 / (self.n * self.points))


def _covered(rows: int, begins: IntArray, lengths: FloatArray) -> FloatArray:
    """Return the fraction of each row, (rows,), that lies in a period.

    A period that would begin during another period is ignored.
    """
    covered, until = np.zeros(rows), 0.0
    edges = np.arange(rows)
    for begin, length in zip(begins.tolist(), lengths.tolist(), strict=True):
        if begin >= until:
            until = begin + length
            first, last = begin, min(rows, math.ceil(until))
            covered[first:last] += np.minimum(until - edges[first:last], 1.0)
    return covered


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLawClocks(Slowdown):
    """A pattern in which each clock of each worker takes t times as long, for a random t >= 1.

    The density of t is proportional to ``t**-exponent``, and its mean is ``(exponent - 1) /
    (exponent - 2)``. After ``clocks`` clocks the pattern begins again. Source: Harlap et al. 2016.

    Raises
    ------
    ParameterError
        If an argument breaks its rule; ``exponent`` must be above 2, so that the mean exists.

    Examples
    --------
    >>> slowdown = PowerLawClocks(n=50, exponent=4.0)
    >>> sleeps_s = [slowdown.sleep_s(i, round=k) for i in range(50) for k in range(40)]
    >>> round(float(np.mean(sleeps_s)), 2)  # 3 / 2 - 1 is expected
    0.49
    """

    n: int
    exponent: float
    clock_s: float = 1.0
    clocks: int = 200
    seed: int = 0

    def __post_init__(self) -> None:
        self._check(seed=(self.seed, 0))
        require_number("exponent", self.exponent, above=2)
        require_int("clocks", self.clocks, least=1)

    def _drawn(self) -> Pace:
        drawn = [np.random.default_rng([self.seed, i]).random(self.clocks) for i in range(self.n)]
        # The distribution function is 1 - t**(1 - exponent).
        factors = (1 - np.array(drawn).T) ** (1 / (1 - self.exponent))
        return ByWork(rates=self._rate * factors, width=1 / self.n)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uneven(Slowdown):
    """A pattern in which half of the workers do the share ``heavy`` of the work.

    With 0.75, a clock of a heavy worker takes 1.5 times as long as with equal shares, and a clock
    of a light worker takes half as long. Every other worker is heavy, beginning with the first; if
    ``together`` is True, the first half of the workers is heavy. In the pace, every clock counts as
    one n-th of the work. `shares` are the actual loads, for schemes in which workers can do unequal
    amounts of work (`seqgc.schemes.Balanced`). Source: Harlap et al. 2016.

    Raises
    ------
    ParameterError
        If an argument breaks its rule: ``n`` must be even, and ``heavy`` from 0.5 to below 1.

    Examples
    --------
    >>> slowdown = Uneven(n=4)
    >>> slowdown.shares.tolist(), [slowdown.sleep_s(i, round=0) for i in range(4)]
    ([0.375, 0.125, 0.375, 0.125], [0.5, 0.0, 0.5, 0.0])
    """

    n: int
    heavy: float = 0.75
    together: bool = False
    clock_s: float = 1.0

    def __post_init__(self) -> None:
        self._check(heavy=(self.heavy, 0.5))
        if self.n % 2:
            raise ParameterError("n", "must be even: half of the workers are heavy", self.n)
        if not self.heavy < 1:
            raise ParameterError("heavy", "must satisfy 0.5 <= heavy < 1", self.heavy)

    @property
    def shares(self) -> FloatArray:
        """The fraction of the work of each worker, (n,); the fractions sum to 1."""
        numbers, half = np.arange(self.n), self.n // 2
        is_heavy = numbers < half if self.together else numbers % 2 == 0
        return np.where(is_heavy, self.heavy, 1 - self.heavy) / half

    def _drawn(self) -> Pace:
        return ByWork(rates=self._rate * self.n * self.shares[None, :], width=1 / self.n)
