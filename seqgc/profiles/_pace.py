"""`Pace`: the time that each worker takes for its work, which can vary during a run.

Theory
------
A delay profile has the seconds of each worker's answers, round by round. This suffices if all
workers work in rounds. For workers without rounds, or with unequal work, a simulation needs the
time that a given amount of work takes a worker at a given moment. This is the worker's pace:

- a **latency**, seconds that pass before a task's first data point, and
- the **seconds of work** that follow. They are proportional to the load (1 is a whole batch) as
  long as the worker's *rate* (seconds per unit of load) does not change.

Both may change. There are three kinds of slowness, which differ in the cause of the change:

- `ByRound`: the round, or, without rounds, the number of clocks that the worker has completed. Row
  ``k mod R`` is for round k.
- `ByWork`: the work that the worker has done so far. The slowness is part of the work, like sleeps
  in an inner loop. Waiting does not avoid it, so it is the same for all policies.
- `ByTime`: the time. A machine with other users is slow at certain times, whatever it computes.

A recorded profile can be read as a pace in two ways: `seqgc.profiles._readings`.
"""

# ruff: noqa: ARG002 (each kind of pace uses only some of the arguments)

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from seqgc._zero import zero_of_rising
from seqgc.errors import ParameterError, require_number
from seqgc.ports import FloatArray

__all__ = [
    "ByInvocation",
    "ByRound",
    "ByTime",
    "ByWork",
    "Pace",
    "RestartablePace",
    "load_within",
    "task_seconds",
]


class Pace(Protocol):
    """The time that work takes each of ``n`` workers. A pace has no state.

    ``round`` is the round of the task or, without rounds, the worker's own clock. ``at`` is the
    time in seconds since the run began. ``done`` is the work that the worker has done in the run so
    far, and ``load`` the work of the task, both in units of a batch. All are >= 0.
    """

    @property
    def n(self) -> int:
        """The number of workers."""

    def latency_s(self, worker: int, *, round: int, at: float) -> float:
        """Return the seconds, >= 0, from the task's beginning at time ``at`` to its first point."""

    def seconds(self, worker: int, *, round: int, at: float, done: float, load: float) -> float:
        """Return the seconds, >= 0, that ``load`` takes, without latency, if it begins ``at``."""


@runtime_checkable
class RestartablePace(Pace, Protocol):
    """A pace in which some slowness ends when the worker is restarted."""

    def restarted(self, worker: int, *, at: float) -> Pace:
        """Return the pace of the same workers after one was restarted at the time ``at``."""


def task_seconds(
    pace: Pace, worker: int, *, round: int, at: float, done: float, load: float
) -> float:
    """Return the seconds, latency and work, of a task that a worker begins at the time ``at``.

    For a pace from `latency_pace`, the result equals `DelayProfile.times_at` to the last bit.

    Examples
    --------
    >>> pace = ByRound(latencies_s=[[1.0, 2.0], [3.0, 4.0]], rates=[[8.0]])
    >>> [task_seconds(pace, 1, round=k, at=0.0, done=0.0, load=0.25) for k in range(3)]
    [4.0, 6.0, 4.0]
    """
    if isinstance(pace, (ByInvocation, ByRound)):  # one sum, not two: rounded as in a replay
        return pace.task_s(worker, round=round, load=load)
    latency_s = pace.latency_s(worker, round=round, at=at)
    return latency_s + pace.seconds(worker, round=round, at=at + latency_s, done=done, load=load)


def load_within(
    pace: Pace, worker: int, *, round: int, at: float, done: float, load: float, within_s: float
) -> float:
    """Return the part of ``load`` that a worker does in ``within_s`` seconds from the time ``at``.

    This is the inverse of `Pace.seconds`: the latency of the task is already over at ``at``.

    Examples
    --------
    The worker takes 4 seconds per unit of load for the first 0.5 of its load, then 20:

    >>> pace = ByWork(rates=[[4.0], [20.0]], width=0.5)
    >>> [
    ...     round(load_within(pace, 0, round=0, at=0.0, done=0.25, load=0.5, within_s=seconds), 9)
    ...     for seconds in (0.5, 1.0, 3.5, 6.0, 7.0)
    ... ]
    [0.125, 0.25, 0.375, 0.5, 0.5]
    """

    def ahead_s(part: float) -> float:
        return pace.seconds(worker, round=round, at=at, done=done, load=part) - within_s

    return zero_of_rising(ahead_s, 0.0, load)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ByRound:
    """A pace that changes with a worker's round.

    A task of round k takes ``latencies_s[k % R] + rates[k % R] * (load - base_load)`` seconds.
    ``latencies_s`` (R, n) are the latencies of a task of ``base_load``, by default 0. ``rates``
    (R, n) are seconds per unit of load. In both, a single row or column applies to all. A task
    without load takes ``empty_s`` seconds, or as long as any task if this is None.

    Raises
    ------
    ParameterError
        If an argument is not a matrix of finite numbers >= 0.

    Examples
    --------
    >>> pace = ByRound(latencies_s=[[0.5, 0.7], [0.6, 2.0]], rates=[[1.5]])
    >>> [pace.latency_s(worker, round=3, at=0.0) for worker in range(pace.n)]
    [0.6, 2.0]
    >>> pace.seconds(1, round=3, at=0.0, done=0.0, load=0.5)
    0.75
    """

    latencies_s: FloatArray
    rates: FloatArray
    base_load: float = 0.0
    empty_s: float | None = None

    def __post_init__(self) -> None:
        both = _of_one_shape(latencies_s=self.latencies_s, rates=self.rates)
        for name, matrix in both.items():
            object.__setattr__(self, name, matrix)
        require_number("base_load", self.base_load, least=0)
        if self.empty_s is not None:
            require_number("empty_s", self.empty_s, least=0)

    @property
    def n(self) -> int:
        return int(self.rates.shape[1])

    def latency_s(self, worker: int, *, round: int, at: float) -> float:
        return max(0.0, self.task_s(worker, round=round, load=0.0))

    def seconds(self, worker: int, *, round: int, at: float, done: float, load: float) -> float:
        return float(self.rates[round % len(self.rates), worker]) * load

    def task_s(self, worker: int, *, round: int, load: float) -> float:
        """Return the seconds of a whole task."""
        if load == 0 and self.empty_s is not None:
            return self.empty_s
        row = round % len(self.rates)
        rate, base_s = float(self.rates[row, worker]), float(self.latencies_s[row, worker])
        return base_s + rate * (load - self.base_load)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ByWork:
    """A pace that changes with the work that a worker has done in the run.

    ``rates`` (k, n) are seconds per unit of load: row j, from 0, applies while the work that the
    worker has done is between ``j * width`` and ``(j + 1) * width``. After the last row, the first
    row applies again. There is no latency.

    Raises
    ------
    ParameterError
        If ``rates`` is not a matrix of finite numbers >= 0; or if ``width <= 0``.

    Examples
    --------
    >>> pace = ByWork(rates=[[4.0, 4.0], [4.0, 20.0]], width=0.5)
    >>> [pace.seconds(1, round=0, at=0.0, done=done, load=0.5) for done in (0.0, 0.25, 0.5, 1.0)]
    [2.0, 6.0, 10.0, 2.0]
    """

    rates: FloatArray
    width: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", _matrix("rates", self.rates))
        require_number("width", self.width, above=0)

    @property
    def n(self) -> int:
        return int(self.rates.shape[1])

    def latency_s(self, worker: int, *, round: int, at: float) -> float:
        return 0.0

    def seconds(self, worker: int, *, round: int, at: float, done: float, load: float) -> float:
        if load <= 0:
            return 0.0
        edges = self.width * np.arange(int(done / self.width), int((done + load) / self.width) + 2)
        # An edge near `done` or near the end may be wrong by a rounding error. The piece that it
        # cuts off is then as small as this error.
        edges[0], edges[-1] = done, done + load
        rows = (int(done / self.width) + np.arange(len(edges) - 1)) % len(self.rates)
        return float(np.maximum(np.diff(edges), 0.0) @ self.rates[rows, worker])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ByTime:
    """A pace that changes with the time.

    ``rates`` (k, n) are seconds per unit of load: row j, from 0, applies between the times
    ``j * width_s`` and ``(j + 1) * width_s``. After the last row, the first row applies again.
    ``latencies_s`` (k, n), by default 0, pass before the first point of a task that begins in this
    time. In both, a single row or column applies to all.

    Raises
    ------
    ParameterError
        If an argument is not a matrix of finite numbers >= 0; or if ``width_s <= 0``.

    Examples
    --------
    >>> pace = ByTime(rates=[[4.0], [16.0]], width_s=2.0, latencies_s=[[0.5], [0.0]])
    >>> pace.latency_s(0, round=0, at=1.9), pace.latency_s(0, round=0, at=2.0)
    (0.5, 0.0)
    >>> [pace.seconds(0, round=0, at=at, done=0.0, load=0.5) for at in (0.0, 1.0, 2.0)]
    [2.0, 3.5, 3.5]
    """

    rates: FloatArray
    width_s: float
    latencies_s: FloatArray = field(default_factory=lambda: np.zeros((1, 1)))

    def __post_init__(self) -> None:
        require_number("width_s", self.width_s, above=0)
        both = _of_one_shape(rates=self.rates, latencies_s=self.latencies_s)
        for name, matrix in both.items():
            object.__setattr__(self, name, matrix)

    @property
    def n(self) -> int:
        return int(self.rates.shape[1])

    def latency_s(self, worker: int, *, round: int, at: float) -> float:
        return float(self.latencies_s[int(at / self.width_s) % len(self.latencies_s), worker])

    def seconds(self, worker: int, *, round: int, at: float, done: float, load: float) -> float:
        row, now = int(at / self.width_s), at
        while True:
            rate, ends_at = (
                float(self.rates[row % len(self.rates), worker]),
                (row + 1) * self.width_s,
            )
            left_s = max(0.0, ends_at - now)
            if rate * load <= left_s:
                return now - at + rate * load
            load -= left_s / rate
            row, now = row + 1, now + left_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ByInvocation:
    """A pace of workers that are invoked, in every round or once, and then work at one ``rate``.

    An invocation begins with the first task of a worker in a round. It takes ``before_s`` (R, n)
    seconds until the worker is ready, and each answer takes ``after_s`` (R, n) seconds in addition
    to the time of a message. ``silent_s`` (R, n), by default infinite, are the seconds after the
    beginning of its invocation at which a worker stops permanently, without a message. Row ``k`` is
    the invocation for round k. The last row is also for all later rounds; if there is one row,
    workers are invoked once. ``rate`` is the seconds per unit of load.

    Raises
    ------
    ParameterError
        If ``before_s`` or ``after_s`` is not a matrix of finite numbers >= 0; or if ``rate < 0``.

    Examples
    --------
    >>> here = np.array([[0.5, 0.75]])
    >>> pace = ByInvocation(before_s=here, after_s=0 * here, rate=2.0)
    >>> pace.n, pace.seconds(1, round=3, at=0.0, done=0.0, load=0.25)
    (2, 0.5)
    """

    before_s: FloatArray
    after_s: FloatArray
    rate: float
    silent_s: FloatArray = field(default_factory=lambda: np.full((1, 1), np.inf))

    def __post_init__(self) -> None:
        matrices = _of_one_shape(before_s=self.before_s, after_s=self.after_s)
        shape = matrices["before_s"].shape
        matrices["silent_s"] = np.broadcast_to(self.silent_s, shape)
        for name, matrix in matrices.items():
            object.__setattr__(self, name, matrix)
        require_number("rate", self.rate, least=0)

    @property
    def n(self) -> int:
        """The number of workers."""
        return int(self.before_s.shape[1])

    def latency_s(self, worker: int, *, round: int, at: float) -> float:
        return 0.0

    def seconds(self, worker: int, *, round: int, at: float, done: float, load: float) -> float:
        return self.rate * load

    def task_s(self, worker: int, *, round: int, load: float) -> float:
        """Return the seconds of a task, without the start of its worker."""
        return self.rate * load


def _matrix(name: str, values: npt.ArrayLike) -> FloatArray:
    """Return a read-only matrix of finite numbers >= 0."""
    matrix = np.array(values, dtype=np.float64)
    if matrix.ndim != 2 or matrix.size == 0:
        raise ParameterError(name, "must be a matrix (rows, workers), not empty", matrix.shape)
    wrong = ~(np.isfinite(matrix) & (matrix >= 0))
    if wrong.any():
        raise ParameterError(name, "must hold finite numbers >= 0", float(matrix[wrong][0]))
    matrix.flags.writeable = False
    return matrix


def _of_one_shape(**values: npt.ArrayLike) -> dict[str, FloatArray]:
    """Check the matrices (see `_matrix`), and broadcast them to a common shape."""
    matrices = {name: _matrix(name, value) for name, value in values.items()}
    shapes = [matrix.shape for matrix in matrices.values()]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        rule = "must have equal shapes, or shapes that NumPy can broadcast"
        raise ParameterError(", ".join(matrices), rule, shapes) from None
    return {name: np.broadcast_to(matrix, shape) for name, matrix in matrices.items()}
