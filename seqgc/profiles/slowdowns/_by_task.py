"""Slowness of tasks: a worker sleeps before a task, however little work the task has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from seqgc.errors import ParameterError, require_int, require_number
from seqgc.profiles._pace import ByRound, ByTime, Pace
from seqgc.profiles.slowdowns._slowdown import Slowdown, drawn_by_worker, require_share

__all__ = ["RotatingSleep", "SleepWindows", "SleepingPace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RotatingSleep(Slowdown):
    """A pattern in which worker ``t mod n`` sleeps ``sleep_for_s`` seconds before its clock t.

    No worker falls behind permanently. Policies that let workers be a few clocks ahead are hardly
    affected. Source: Cui et al. 2014.

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
    """A pattern of sleeps before tasks, for a while or until the worker is restarted (AntDT).

    In the first half of every period of ``period_s`` seconds, each worker sleeps with probability
    ``probability``, for ``1.5 * intensity`` seconds before each task. The workers with the numbers
    ``persistent`` also sleep ``4 * intensity`` seconds before each task, until they are restarted.

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
        require_share("probability", self.probability)
        if any(not 0 <= worker < self.n for worker in self.persistent):
            raise ParameterError("persistent", f"must be workers below {self.n}", self.persistent)

    def _drawn(self) -> SleepingPace:
        sleeps = np.zeros((2 * self.periods, self.n))
        sleeps[::2] = drawn_by_worker(self.n, self.periods, self.probability, seed=self.seed)
        windows = ByTime(
            rates=np.array([[self._rate]]),
            width_s=self.period_s / 2,
            latencies_s=1.5 * self.intensity * sleeps,
        )
        persistent = dict.fromkeys(self.persistent, 4 * self.intensity)
        return SleepingPace(windows=windows, persistent_s=persistent)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SleepingPace:
    """The pace of `SleepWindows`: sleeps by time, and sleeps until a worker is restarted.

    ``persistent_s`` are the seconds of sleep before every task, by worker. They end when the worker
    is restarted, at the time in ``fresh_at``.
    """

    windows: ByTime
    persistent_s: Mapping[int, float]
    fresh_at: Mapping[int, float] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return self.windows.n

    def latency_s(self, worker: int, *, round: int, at: float) -> float:
        sleep_s = self.windows.latency_s(worker, round=round, at=at)
        if at < self.fresh_at.get(worker, math.inf):
            sleep_s += self.persistent_s.get(worker, 0.0)
        return sleep_s

    def seconds(self, worker: int, *, round: int, at: float, done: float, load: float) -> float:
        return self.windows.seconds(worker, round=round, at=at, done=done, load=load)

    def restarted(self, worker: int, *, at: float) -> SleepingPace:
        fresh_at = {**self.fresh_at, worker: min(at, self.fresh_at.get(worker, at))}
        return replace(self, fresh_at=fresh_at)
