"""The timing and training of one defence in virtual time, on workers with a given pace."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np

from seqgc import master
from seqgc.ports import (
    BoolArray,
    Close,
    Decoding,
    Dispatch,
    Finish,
    FloatArray,
    MiniTask,
    ResultForm,
    Seen,
    WeightedPoints,
    Workload,
)
from seqgc.profiles import Pace
from seqgc.rounds import Setting, policy_of
from seqgc.virtual import Compute, Conduct, VirtualBackend, WorkerKind

__all__ = [
    "Curve",
    "EnoughError",
    "LossWatch",
    "PacedWorkers",
    "Race",
    "TimedRun",
    "Trained",
    "Trainees",
    "TrialTrainings",
    "TrialWork",
    "WorkloadTrial",
    "jobs_of",
    "time_first_clocks",
    "time_run",
    "trained",
]


_Inner = TypeVar("_Inner", bound=Workload)


class EnoughError(Exception):
    """The exception that ends the loop when all its trainings have ended."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """The worst model's loss over the data: ``clocks`` and ``losses`` (points,).

    A clock is a batch of one model; ``at_s`` (points,) is the time at which it was applied. If a
    model failed and ended the run, ``failed`` is its name and the reason.
    """

    clocks: FloatArray
    losses: FloatArray
    at_s: FloatArray
    failed: str = ""

    def reaches(self, target: float) -> int | None:
        """Return the index of the first point with a loss of at most ``target``, or None."""
        points = np.flatnonzero(self.losses <= target)
        return int(points[0]) if len(points) else None

    def point(self, index: int) -> tuple[float, float]:
        """Return the seconds and the clocks of the point with this index."""
        return float(self.at_s[index]), float(self.clocks[index])


class Race:
    """A time limit of trainings, which end when another learning rate is known to be faster.

    ``rates`` contains, for each learning rate, the numbers of its trainings. The limit is the
    smallest median, over these trainings, of the time to the target. The trainings in ``lasting``
    have no time limit.

    Examples
    --------
    >>> race = Race([[0, 1, 2], [3, 4, 5]], lasting=[0])
    >>> race.reach(0, 5.0)
    >>> race.reach(1, 7.0)  # the median of the first rate is now known
    >>> race.limit_s(0), race.limit_s(2), race.limit_s(3)
    (inf, 7.0, 7.0)
    """

    def __init__(
        self, rates: Iterable[Collection[int]] = (), *, lasting: Collection[int] = ()
    ) -> None:
        self._rates, self._lasting = list(rates), frozenset(lasting)
        self._seconds: dict[int, float] = {}
        self._limit_s = math.inf  # the least median

    def reach(self, training: int, seconds: float) -> None:
        """Record that a training has reached the target after ``seconds``."""
        self._seconds[training] = seconds
        for rate in self._rates:
            if training in rate:
                each = [self._seconds.get(number, math.inf) for number in rate]
                self._limit_s = min(self._limit_s, median(each))

    def limit_s(self, training: int) -> float:
        """Return the time limit of a training, in seconds."""
        return math.inf if training in self._lasting else self._limit_s


class LossWatch:
    """A recorder of the losses of several trainings after each clock of applied data.

    ``losses()`` returns the loss of the worst model of each training, (trainings,). A training ends
    when this loss is at most ``target``, at the time limit of the ``race``, or if a model fails.
    When all trainings have ended, `EnoughError` is raised. ``numbers`` are the trainings' numbers
    in the race. The attributes ``now`` and ``work`` must be set to functions that return the time,
    in seconds, and the work so far.
    """

    def __init__(
        self,
        losses: Callable[[], FloatArray],
        *,
        target: float,
        race: Race,
        numbers: Sequence[int] = (0,),
    ) -> None:
        self.now: Callable[[], float] = lambda: 0.0
        self.work: Callable[[], TrialWork] = TrialWork
        self.active: BoolArray = np.ones(len(numbers), dtype=np.bool_)
        """A mask (trainings,) of the trainings that have not ended."""
        self._losses_now, self._target, self._race, self._numbers = losses, target, race, numbers
        self._applied = 0.0  # clocks of data, of all models
        self._clocks, self._at_s, self._losses = list[float](), list[float](), list[FloatArray]()
        self._failures: dict[int, str] = {}
        self._ends: dict[int, tuple[int, TrialWork]] = {}  # number of points, and work, at the end

    def apply(self, clocks: float) -> None:
        """Record that more data have been applied: ``clocks`` batches, each of one model."""
        before = math.floor(self._applied + 1e-9)
        self._applied += clocks
        if math.floor(self._applied + 1e-9) == before:
            return
        losses, now = self._losses_now(), self.now()
        self._clocks.append(self._applied)
        self._at_s.append(now)
        self._losses.append(losses)
        for training in np.flatnonzero(self.active & (losses <= self._target)).tolist():
            self._race.reach(self._numbers[training], now)
            self._end(training)
        for training in np.flatnonzero(self.active).tolist():
            if now >= self._race.limit_s(self._numbers[training]):
                self._end(training)
        self._raise_if_all_ended()

    def fail(self, model: str, why: str, training: int = 0) -> None:
        """End a training because a model failed."""
        self._failures[training] = f"{model}: {why}"
        self._end(training)
        self._raise_if_all_ended()

    def _end(self, training: int) -> None:
        self.active[training] = False
        self._ends[training] = len(self._at_s), self.work()

    def _raise_if_all_ended(self) -> None:
        if not self.active.any():
            raise EnoughError

    def trained(self) -> list[Trained]:
        """Return the results of all trainings so far."""
        results, now = [], (len(self._at_s), self.work())
        for training in range(len(self.active)):
            points, work = self._ends.get(training, now)
            curve = Curve(
                clocks=np.array(self._clocks[:points]),
                losses=np.array([losses[training] for losses in self._losses[:points]]),
                at_s=np.array(self._at_s[:points]),
                failed=self._failures.get(training, ""),
            )
            results.append(Trained(curve=curve, work=work))
        return results


class TrialTrainings(Protocol):
    """Trainings whose losses are recorded, in one run of the loop.

    If there is a ``workload``, ``compute`` is the workers' function. Without a workload, the
    trainings only observe the loop. ``staleness`` contains, for each requested mini-task, the
    number of clocks whose updates are not in the weights of the mini-task.
    """

    @property
    def workload(self) -> Workload | None: ...

    @property
    def compute(self) -> Compute | None: ...

    @property
    def watch(self) -> LossWatch: ...

    @property
    def staleness(self) -> Sequence[float]: ...

    def see(self, seen: Seen, /) -> None:
        """Observe an event or an action of the loop."""

    def rest(self) -> None:
        """Observe that the loop waits for the next event."""


class WorkloadTrial(Generic[_Inner]):
    """Base class of a `TrialTrainings` whose results are decoded and given to a workload.

    A subclass sets ``_inner``, the workload, and ``watch``. If a model fails, its training ends
    before the target.
    """

    _inner: _Inner
    watch: LossWatch

    @property
    def workload(self) -> Self:
        return self

    def needs(self, job: int, finished: int) -> bool:
        return self._inner.needs(job, finished)

    def begin(self, job: int) -> None:
        self._inner.begin(job)

    def result_form(self, job: int) -> ResultForm | None:
        return self._inner.result_form(job)

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        return self._inner.resolve(mini_task)

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        self._inner.finish(decoding, gradient)

    def park(self, names: Sequence[str], *, why: str, kind: object = None) -> None:  # noqa: ARG002
        self.watch.fail(names[0], why)

    def see(self, seen: Seen) -> None:
        """Do nothing, because the loop gives the results to `finish`."""

    def rest(self) -> None:
        """Do nothing."""


class Trainees(Protocol):
    """Models that are trained on batches drawn with a seed."""

    @property
    def models(self) -> int:
        """The number of models."""

    def check(self, setting: Setting) -> None:
        """Raise `ParameterError` if the models cannot be trained by this defence."""

    def runs(
        self,
        setting: Setting,
        trainings: Sequence[tuple[Any, float]],
        *,
        target: float,
        most: int,
        race: Race,
    ) -> Iterator[TrialTrainings]:
        """Yield the ``trainings``, of at most ``most`` steps, as runs of the loop.

        Each training has trainees of this class, and a learning rate. A run contains one or several
        trainings, in order. It is driven to its end before the next run is created.
        """

    def loss(self) -> float:
        """Return the loss of the worst model before any step."""

    def exact_steps(self, *, lr: float, target: float, most: int) -> float:
        """Return the number of exact steps until all models reach the target.

        The number is infinite if more than ``most`` steps are necessary.

        Raises
        ------
        ModelError
            If a model fails before all models reach the target.
        """

    def steps_of(
        self, setting: Setting, exact: float, *, lr: float, target: float, most: int
    ) -> float:
        """Return an exact defence's number of steps; ``exact`` is the result of `exact_steps`.

        The number is infinite if a model fails, or if more than ``most`` steps are necessary.
        """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PacedWorkers:
    """Workers with a given pace: functions that are invoked for each task, or resident workers.

    A load of 1 is a job, which consists of one batch for each model of a bundle.
    """

    pace: Pace
    kind: WorkerKind

    @property
    def n(self) -> int:
        """The number of workers."""
        return self.pace.n

    def backend(self, compute: Compute | None = None) -> VirtualBackend:
        """Return a backend with these workers."""
        return VirtualBackend(self.n, self.pace, workers=self.kind, compute=compute)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TimedRun:
    """The timing of a run of K clocks of data, without computing gradients.

    ``closed_s`` (K,) are the times at which each clock of data was complete; the clocks of a bundle
    have the same time. ``busy_s`` are the worker-seconds of all tasks to their end, and ``tasks``
    is the number of tasks. ``load`` is the work of the workers in batches per clock, which is 1 if
    no work is done twice. ``applied`` is the fraction of the data that was not lost. ``received``
    and ``sent`` are the vectors, each as long as a model, that the workers receive and send per
    clock.
    """

    closed_s: Sequence[float]
    busy_s: float
    tasks: int
    load: float
    applied: float = 1.0
    received: float = 0.0
    sent: float = 0.0

    @property
    def runtime_s(self) -> float:
        """The time at which the last point of the last clock was applied."""
        return self.closed_s[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialWork:
    """The work of a training so far.

    ``staleness`` contains the staleness of each mini-task (`TrialTrainings`). ``busy_s`` are the
    worker-seconds of all tasks to their end, and ``tasks`` is the number of tasks.
    """

    staleness: Sequence[float] = ()
    busy_s: float = 0.0
    tasks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """The result of a training: its curve, and its work."""

    curve: Curve
    work: TrialWork


@dataclass(slots=True)
class _Watch:
    backend: VirtualBackend
    closed_s: dict[int, float] = field(default_factory=dict)
    loads: float = 0.0
    tasks: int = 0
    reads: int = 0  # tasks with work, each of which reads weights
    results: int = 0
    lost: int = 0  # number of lost chunks
    at_close: Callable[[], None] = lambda: None

    @property
    def busy_s(self) -> float:
        return math.fsum(self.backend.busy_s.tolist())

    def __call__(self, seen: Seen) -> None:
        if isinstance(seen, Close):
            self.closed_s |= dict.fromkeys(seen.jobs, self.backend.now)
            self.at_close()
        elif isinstance(seen, Finish):
            self.lost += len(seen.decoding().lost)
        elif isinstance(seen, Dispatch):
            self.tasks += len(seen.assignment)
            sizes = [len(tasks) for tasks in seen.assignment.values()]
            self.reads += sum(map(bool, sizes))
            self.results += sum(sizes)
            if seen.loads is not None:
                self.loads += float(seen.loads[list(seen.assignment)].sum())


def _drive(
    setting: Setting,
    backend: VirtualBackend,
    *,
    jobs: int,
    watch: _Watch,
    trainings: TrialTrainings | None = None,
) -> None:
    conduct = Conduct(setting.scheme.spec, n=setting.scheme.n, num_jobs=jobs)

    def see(seen: Seen) -> None:
        conduct(seen)
        watch(seen)
        if trainings is not None:
            trainings.see(seen)

    def rest(_: object) -> None:
        if trainings is not None:
            trainings.rest()

    with conduct.watching(), suppress(EnoughError):
        policy = policy_of(setting, num_jobs=jobs)
        workload = None if trainings is None else trainings.workload
        master.run(policy, backend, workload, observe=see, rest=rest)
        conduct.end()


def time_run(setting: Setting, workers: PacedWorkers, *, clocks: int) -> TimedRun:
    """Return the timing of a run of ``clocks`` >= 1 clocks of data; nothing is computed.

    The last job is completed, so there may be a few more clocks.
    """
    jobs = jobs_of(setting, clocks=clocks)
    watch = _Watch(workers.backend())
    _drive(setting, watch.backend, jobs=jobs, watch=watch)
    return _timed(watch, setting, jobs)


def time_first_clocks(
    setting: Setting, workers: PacedWorkers, *, clocks: Collection[int]
) -> dict[int, TimedRun]:
    """Return the results of `time_run` for several numbers of clocks, from a single run.

    The scheme must be exact and without delay. Jobs then end one after the other, and do not depend
    on the number of later jobs.
    """
    timed, watch = dict[int, TimedRun](), _Watch(workers.backend())
    ends = {jobs_of(setting, clocks=each) for each in clocks}

    def keep() -> None:
        if (jobs := len(watch.closed_s)) in ends:
            timed[jobs] = _timed(watch, setting, jobs)

    watch.at_close = keep
    _drive(setting, watch.backend, jobs=max(ends), watch=watch)
    return {each: timed[jobs_of(setting, clocks=each)] for each in clocks}


def _timed(watch: _Watch, setting: Setting, jobs: int) -> TimedRun:
    order = [watch.closed_s[job] for job in range(jobs)]
    return TimedRun(
        closed_s=np.maximum.accumulate(order).repeat(setting.jobs_per_round).tolist(),
        busy_s=watch.busy_s,
        tasks=watch.tasks,
        load=watch.loads / jobs,
        applied=1 - watch.lost / (jobs * len(setting.scheme.chunk_fractions)),
        received=watch.reads / jobs,
        sent=watch.results / jobs,
    )


def jobs_of(setting: Setting, *, clocks: int) -> int:
    """Return the number of jobs that contain ``clocks`` clocks of data."""
    return math.ceil(clocks / setting.jobs_per_round)


def trained(
    setting: Setting,
    workers: PacedWorkers,
    trainings: Sequence[tuple[Trainees, float]],
    *,
    target: float,
    most: int,
    race: Race | None = None,
) -> list[Trained]:
    """Train in virtual time, until the target, ``most`` steps of each model, or a time limit.

    ``trainings`` are trainees of one class, each with its learning rate. ``target`` is a loss, and
    ``race`` has the time limits.
    """
    results, first = list[Trained](), trainings[0][0]
    jobs = jobs_of(setting, clocks=most * first.models)
    race = race or Race()
    for run in first.runs(setting, trainings, target=target, most=most, race=race):
        watch = _Watch(workers.backend(run.compute))
        run.watch.now = partial(getattr, watch.backend, "now")
        run.watch.work = partial(_work, run, watch)
        _drive(setting, watch.backend, jobs=jobs, watch=watch, trainings=run)
        results += run.watch.trained()
    return results


def _work(run: TrialTrainings, watch: _Watch) -> TrialWork:
    return TrialWork(staleness=list(run.staleness), busy_s=watch.busy_s, tasks=watch.tasks)
