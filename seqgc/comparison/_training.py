"""Timing and training of one defence in virtual time, on workers with a given pace."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

import numpy as np

from seqgc import master
from seqgc.ports import Close, Dispatch, Finish, FloatArray, Seen, WeightedPoints, Workload
from seqgc.profiles import Pace
from seqgc.rounds import Setting, policy_of
from seqgc.virtual import Compute, Conduct, VirtualBackend, WorkerKind

__all__ = [
    "Curve",
    "EnoughError",
    "LossWatch",
    "PacedWorkers",
    "TimedRun",
    "Trained",
    "Trainees",
    "TrialWorkload",
    "jobs_of",
    "time_run",
    "trained",
]


class EnoughError(Exception):
    """Ends a run because it reached the target or its time limit, or because a model failed."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """The worst model's loss over the data: ``clocks`` and ``losses`` (points,).

    A clock is a batch of one model; ``at_s`` (points,) is the time at which it was applied.
    ``failed`` names the model that ended the run, and why.
    """

    clocks: FloatArray
    losses: FloatArray
    at_s: FloatArray
    failed: str = ""

    def reaches(self, target: float) -> int | None:
        """Return the first point at which the loss is at most ``target``; None: never."""
        points = np.flatnonzero(self.losses <= target)
        return int(points[0]) if len(points) else None

    def point(self, index: int) -> tuple[float, float]:
        """Return the seconds and the clocks of a point."""
        return float(self.at_s[index]), float(self.clocks[index])


class LossWatch:
    """Recorder of the losses of all models after each clock of applied data.

    ``loss`` returns the loss of the worst model. Once it is at most ``target``, or after
    ``until_s``, `EnoughError` ends the run. ``now`` must be set to a function that returns the
    time.
    """

    def __init__(self, loss: Callable[[], float], *, target: float, until_s: float) -> None:
        self.now: Callable[[], float] = lambda: 0.0
        self._loss, self._target, self._until_s = loss, target, until_s
        self._applied = 0.0  # clocks of data, of all models
        self._points: list[tuple[float, float, float]] = []  # clocks, loss, seconds
        self._failed = ""

    def apply(self, clocks: float) -> None:
        """Add applied data."""
        before = math.floor(self._applied + 1e-9)
        self._applied += clocks
        if math.floor(self._applied + 1e-9) == before:
            return
        worst, now = self._loss(), self.now()
        self._points.append((self._applied, worst, now))
        if worst <= self._target or now >= self._until_s:
            raise EnoughError

    def fail(self, model: str, why: str) -> NoReturn:
        """End the run because a model failed."""
        self._failed = f"{model}: {why}"
        raise EnoughError

    def curve(self) -> Curve:
        """Return the losses so far."""
        clocks, losses, at_s = np.array(self._points).reshape(-1, 3).T
        return Curve(clocks=clocks, losses=losses, at_s=at_s, failed=self._failed)


class TrialWorkload(Workload, Protocol):
    """A workload whose results are computed at once, and whose losses are watched.

    ``staleness`` has, for each requested mini-task and each of its models, the number of clocks
    whose updates its weights lack.
    """

    @property
    def watch(self) -> LossWatch: ...

    @property
    def staleness(self) -> Sequence[float]: ...

    def compute(self, parts: tuple[WeightedPoints, ...], /) -> FloatArray: ...


class Trainees(Protocol):
    """Models that are trained on batches drawn with a seed."""

    @property
    def models(self) -> int:
        """Number of models."""

    def check(self, setting: Setting) -> None:
        """Raise `ParameterError` if the models cannot be trained by this defence."""

    def workload(
        self, setting: Setting, *, lr: float, target: float, until_s: float, most: int
    ) -> TrialWorkload:
        """Return a new training of ``most`` steps of each model."""

    def loss(self) -> float:
        """Return the loss of the worst model before any step."""

    def exact_steps(self, *, lr: float, target: float, most: int) -> float:
        """Return the steps with exact gradients until all models reach the target.

        Infinite if more than ``most`` are necessary. Raises `ModelError` if a model fails earlier.
        """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PacedWorkers:
    """Workers with a pace: functions, which are invoked per task, or residents with a queue.

    The pace is for the work of a job, that is of all models of a bundle.
    """

    pace: Pace
    kind: WorkerKind

    @property
    def n(self) -> int:
        """Number of workers."""
        return self.pace.n

    def backend(self, compute: Compute | None = None) -> VirtualBackend:
        """Start the workers."""
        return VirtualBackend(self.n, self.pace, workers=self.kind, compute=compute)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TimedRun:
    """The timing of a run of K clocks of data, without any computing.

    ``closed_s`` (K,) are the times at which each clock of data was complete; the clocks of a bundle
    share one time. ``busy_s`` are the worker-seconds of all tasks to their end, and ``tasks`` is
    their number. ``load`` is the work of the workers in batches per clock: 1 if nothing is computed
    twice. ``applied`` is the share of the data that was not left out.
    """

    closed_s: Sequence[float]
    busy_s: float
    tasks: int
    load: float
    applied: float = 1.0

    @property
    def runtime_s(self) -> float:
        """Time at which the last point of the last clock was applied."""
        return self.closed_s[-1]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """The result of a training: its curve, and the staleness of each mini-task (`TrialWorkload`).

    ``busy_s`` are the worker-seconds of all tasks to their end, and ``tasks`` is their number.
    """

    curve: Curve
    staleness: Sequence[float]
    busy_s: float
    tasks: int


@dataclass(slots=True)
class _Watch:
    now: Callable[[], float]
    closed_s: dict[int, float] = field(default_factory=dict)
    loads: float = 0.0
    tasks: int = 0
    lost: int = 0  # chunks

    def __call__(self, seen: Seen) -> None:
        if isinstance(seen, Close):
            self.closed_s |= dict.fromkeys(seen.jobs, self.now())
        elif isinstance(seen, Finish):
            self.lost += len(seen.decoding().lost)
        elif isinstance(seen, Dispatch):
            self.tasks += len(seen.assignment)
            if seen.loads is not None:
                self.loads += float(seen.loads[list(seen.assignment)].sum())


def _drive(
    setting: Setting,
    backend: VirtualBackend,
    *,
    jobs: int,
    workload: Workload | None = None,
) -> _Watch:
    watch = _Watch(lambda: backend.now)
    conduct = Conduct(setting.scheme.spec, n=setting.scheme.n, num_jobs=jobs)

    def see(seen: Seen) -> None:
        conduct(seen)
        watch(seen)

    with conduct.watching(), suppress(EnoughError):
        policy = policy_of(setting, num_jobs=jobs)
        master.run(policy, backend, workload, observe=see)
        conduct.end()
    return watch


def time_run(setting: Setting, workers: PacedWorkers, *, clocks: int) -> TimedRun:
    """Run ``clocks`` >= 1 clocks of data under a setting, without computing or decoding.

    The last bundle runs to its end, so that there may be a few more clocks.
    """
    backend, jobs = workers.backend(), jobs_of(setting, clocks=clocks)
    watch = _drive(setting, backend, jobs=jobs)
    order = [watch.closed_s[job] for job in range(jobs)]
    return TimedRun(
        closed_s=np.maximum.accumulate(order).repeat(setting.jobs_per_round).tolist(),
        busy_s=math.fsum(backend.busy_s.tolist()),
        tasks=watch.tasks,
        load=watch.loads / jobs,
        applied=1 - watch.lost / (jobs * len(setting.scheme.chunk_fractions)),
    )


def jobs_of(setting: Setting, *, clocks: int) -> int:
    """Return the number of jobs in which a setting processes ``clocks`` clocks of data."""
    return math.ceil(clocks / setting.jobs_per_round)


def trained(
    setting: Setting,
    workers: PacedWorkers,
    trainees: Trainees,
    *,
    lr: float,
    target: float,
    most: int,
    until_s: float = math.inf,
) -> Trained:
    """Train in virtual time, to the target, for ``most`` steps of each model or ``until_s``."""
    workload = trainees.workload(setting, lr=lr, target=target, until_s=until_s, most=most)
    backend = workers.backend(workload.compute)
    workload.watch.now = lambda: backend.now
    jobs = jobs_of(setting, clocks=most * trainees.models)
    watch = _drive(setting, backend, jobs=jobs, workload=workload)
    return Trained(
        curve=workload.watch.curve(),
        staleness=workload.staleness,
        busy_s=math.fsum(backend.busy_s.tolist()),
        tasks=watch.tasks,
    )
