"""Patterns of slowness that the papers on stragglers inject, each as a pace.

Theory
------
All start from ``n`` equal workers, each of which does its n-th part of a batch in ``clock_s``
seconds, a *clock*, and say who is slower, when, and by how much. They differ in what slowness goes
with, and that decides which defence looks good:

- with the *work* (`SlowPeriods`, `PowerLawClocks`, `Uneven`): sleeps in the inner loop. Whoever
  waits does not get past them, and another worker that takes some of the work takes it at its own
  rate.
- with the *time* (`Disrupters`): another program runs on the machine. Who waits lets it pass.
- with the *task* (`RotatingSleep`, `SleepWindows`): a sleep before the work, however little work
  that is. Sharing out the work does not shorten it.

They are drawn worker by worker, by ``[seed, worker]``: another number of workers changes nothing of
the first ones. Each covers a span of its own, then the pattern begins again. A specification is
frozen and can be sent to live workers: `Slowdown.sleep_s` says how long one is to sleep.

Sources: Harlap et al., Addressing the straggler problem for iterative convergent parallel ML, SoCC
2016 [F]; Cui et al., Exploiting bounded staleness to speed up big data analytics, USENIX ATC 2014
[L]; AntDT: a self-adaptive distributed training framework for leader and straggler nodes, 2024 [A].
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from seqgc.errors import ParameterError, require_int, require_number
from seqgc.ports import FloatArray, IntArray
from seqgc.profiles._pace import ByRound, ByTime, ByWork, Pace, task_seconds

__all__ = [
    "Disrupters",
    "PowerLawClocks",
    "RotatingSleep",
    "SleepWindows",
    "SlowPeriods",
    "Slowdown",
    "Uneven",
]


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


def _require_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ParameterError(name, "must be a probability from 0 to 1", value)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowPeriods(Slowdown):
    """At some points of its work a worker becomes ``1 + delay`` times as slow for a while [F].

    At each of ``points`` points of a clock a period begins with probability ``probability``, unless
    one is under way. It lasts for as much work as is done in 0 to ``longest`` clocks, uniformly.

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
        _require_share("probability", self.probability)

    def _drawn(self) -> Pace:
        rows = self.clocks * self.points
        slow = np.empty((rows, self.n))  # what part of each row's work is
        for worker in range(self.n):
            rng = np.random.default_rng([self.seed, worker])
            begins = np.flatnonzero(rng.random(rows) < self.probability)
            lengths = rng.uniform(0, self.longest * self.points, len(begins))
            slow[:, worker] = _covered(rows, begins, lengths)
        rates = self._rate * (1 + self.delay * slow)
        return ByWork(rates=rates, width=1 / (self.n * self.points))


def _covered(rows: int, begins: IntArray, lengths: FloatArray) -> FloatArray:
    """Return what part of each row is covered, (rows,), by those that begin when none has begun."""
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
    """Each clock of each worker takes t times as long, with density ~ ``t**-exponent``, t >= 1 [F].

    The mean is ``(exponent - 1) / (exponent - 2)``. The factor holds for a clock's work, and so for
    a part of it too.

    Raises
    ------
    ParameterError
        If an argument breaks its rule; ``exponent`` is above 2, so that there is a mean.

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
    """Half of the workers have the share ``heavy`` of the work, the others the rest [F].

    With 0.75, a heavy worker's clock takes 1.5 times as long as if all had the same, a light one's
    half as long. Heavy is every other worker from the first or, ``together``, the first half of
    them. The pace says so where every clock counts as one n-th; `shares` are the loads themselves,
    for what can have workers do unlike amounts (`seqgc.schemes.Balanced`).

    Raises
    ------
    ParameterError
        If an argument breaks its rule; ``n`` is even, ``heavy`` is from 0.5 to below 1.

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
        """(n,) what part of the work each worker has; they sum to 1."""
        numbers, half = np.arange(self.n), self.n // 2
        is_heavy = numbers < half if self.together else numbers % 2 == 0
        return np.where(is_heavy, self.heavy, 1 - self.heavy) / half

    def _drawn(self) -> Pace:
        return ByWork(rates=self._rate * self.n * self.shares[None, :], width=1 / self.n)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disrupters(Slowdown):
    """Every ``every_s`` seconds it is drawn anew who is ``1 + delay`` times as slow until then.

    Each worker is, with ``probability``: 0.2 every 20 s in [F], 0.1 and a delay of 1 in [L].

    Raises
    ------
    ParameterError
        If an argument breaks its rule.

    Examples
    --------
    >>> slowdown = Disrupters(n=2, delay=1.0, every_s=3.0, probability=0.5, seed=3)
    >>> [slowdown.sleep_s(0, round=0, at=at) for at in (0.0, 2.5, 3.0, 6.0, 8.5, 9.0)]
    [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    """

    n: int
    delay: float
    clock_s: float = 1.0
    every_s: float = 20.0
    probability: float = 0.2
    windows: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        self._check(delay=(self.delay, 0), seed=(self.seed, 0))
        require_number("every_s", self.every_s, above=0)
        require_int("windows", self.windows, least=1)
        _require_share("probability", self.probability)

    def _drawn(self) -> Pace:
        slow = _drawn_by_worker(self.n, self.windows, self.probability, seed=self.seed)
        return ByTime(rates=self._rate * (1 + self.delay * slow), width_s=self.every_s)


def _drawn_by_worker(n: int, rows: int, probability: float, *, seed: int) -> FloatArray:
    """Return 1 where something happens and 0 elsewhere, (rows, n), each worker by itself."""
    drawn = [np.random.default_rng([seed, i]).random(rows) < probability for i in range(n)]
    return np.array(drawn, dtype=np.float64).T


@dataclass(frozen=True, slots=True, kw_only=True)
class RotatingSleep(Slowdown):
    """In clock t, worker ``t mod n`` sleeps ``sleep_for_s`` seconds before it begins [L].

    Nobody falls behind for good: who may be a few clocks ahead hardly notices.

    Raises
    ------
    ParameterError
        If an argument breaks its rule.

    Examples
    --------
    >>> slowdown = RotatingSleep(n=3, sleep_for_s=4.0, clock_s=0.5)
    >>> [[slowdown.sleep_s(i, round=t) for i in range(3)] for t in (0, 1, 5)]
    [[4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 4.0]]
    """

    n: int
    sleep_for_s: float
    clock_s: float = 1.0

    def __post_init__(self) -> None:
        self._check(sleep_for_s=(self.sleep_for_s, 0))

    def _drawn(self) -> Pace:
        return ByRound(
            latencies_s=self.sleep_for_s * np.eye(self.n), rates=np.array([[self._rate]])
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepWindows(Slowdown):
    """Workers sleep before every task: some for a while, some until they are replaced [A].

    In the first half of every ``period_s`` seconds each worker sleeps, with ``probability``,
    ``1.5 * intensity`` seconds a task; the workers numbered ``persistent`` sleep ``4 * intensity``
    seconds besides, until they are restarted.

    Raises
    ------
    ParameterError
        If an argument breaks its rule.

    Examples
    --------
    >>> slowdown = SleepWindows(n=3, intensity=0.5, probability=1.0)
    >>> [slowdown.sleep_s(i, round=0, at=at) for at in (0.0, 899.0, 900.0) for i in (0, 1)]
    [2.75, 0.75, 2.75, 0.75, 2.0, 0.0]
    >>> fresh = slowdown.pace().restarted(0, at=300.0)
    >>> [fresh.latency_s(0, round=0, at=at) for at in (299.0, 300.0, 900.0)]
    [2.75, 0.75, 0.0]
    """

    n: int
    intensity: float
    clock_s: float = 1.0
    persistent: tuple[int, ...] = (0,)
    period_s: float = 1800.0
    probability: float = 0.3
    periods: int = 48
    seed: int = 0

    def __post_init__(self) -> None:
        self._check(intensity=(self.intensity, 0), seed=(self.seed, 0))
        require_number("period_s", self.period_s, above=0)
        require_int("periods", self.periods, least=1)
        _require_share("probability", self.probability)
        if any(not 0 <= worker < self.n for worker in self.persistent):
            raise ParameterError("persistent", f"must be workers below {self.n}", self.persistent)

    def _drawn(self) -> SleepingPace:
        sleeps = np.zeros((2 * self.periods, self.n))
        sleeps[::2] = _drawn_by_worker(self.n, self.periods, self.probability, seed=self.seed)
        windows = ByTime(
            rates=np.array([[self._rate]]),
            width_s=self.period_s / 2,
            latencies_s=1.5 * self.intensity * sleeps,
        )
        persistent = dict.fromkeys(self.persistent, 4 * self.intensity)
        return SleepingPace(windows=windows, persistent_s=persistent)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SleepingPace:
    """The pace of `SleepWindows`: sleeps by time, and those of some until they are restarted.

    ``persistent_s`` are seconds before every task, by worker; ``fresh_at`` from when on no more.
    """

    windows: ByTime
    persistent_s: Mapping[int, float]
    fresh_at: Mapping[int, float] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Workers."""
        return self.windows.n

    def latency_s(self, worker: int, *, round: int, at: float) -> float:
        sleep_s = self.windows.latency_s(worker, round=round, at=at)
        if at < self.fresh_at.get(worker, math.inf):
            sleep_s += self.persistent_s.get(worker, 0.0)
        return sleep_s

    def seconds(self, worker: int, *, round: int, at: float, done: float, load: float) -> float:
        return self.windows.seconds(worker, round=round, at=at, done=done, load=load)

    def restarted(self, worker: int, *, at: float) -> SleepingPace:
        """Return the pace of the same workers, of which one was replaced ``at``."""
        fresh_at = {**self.fresh_at, worker: min(at, self.fresh_at.get(worker, at))}
        return replace(self, fresh_at=fresh_at)
