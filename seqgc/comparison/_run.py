"""What one defence comes to on one profile: seconds, money, staleness, and training in between."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from seqgc import master
from seqgc.comparison._curve import Curve, EnoughError, Trainees
from seqgc.ports import Close, Dispatch, Finish, Seen, Workload
from seqgc.profiles import Pace
from seqgc.rounds import Setting, policy_of
from seqgc.virtual import Compute, Conduct, VirtualBackend, WorkerKind

__all__ = ["Course", "Trained", "Workers", "course_of", "jobs_of", "trained"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workers:
    """``n`` workers of a pace: functions, each task an invocation, or residents with a queue.

    The pace is that of a job's work: of a bundle, all of its models'. A message to a worker, or one
    back, takes ``message_s`` seconds beside what the pace says.
    """

    pace: Pace
    kind: WorkerKind
    message_s: float = 0.0

    @property
    def n(self) -> int:
        """How many there are."""
        return self.pace.n

    def backend(self, compute: Compute | None = None) -> VirtualBackend:
        """Start them."""
        return VirtualBackend(
            self.n, self.pace, workers=self.kind, message_s=self.message_s, compute=compute
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Course:
    """How a run of K clocks of data went, without any computing.

    ``closed_s`` (K,), when each clock of data was complete, those of a bundle at once; ``busy_s``
    are worker-seconds of all tasks to their end, ``tasks`` how many there were, ``load`` what was
    asked of workers in units of a batch a clock: 1 where nothing is done twice. ``applied`` is the
    share of the data that was not left out.
    """

    closed_s: Sequence[float]
    busy_s: float
    tasks: int
    load: float
    applied: float = 1.0

    @property
    def runtime_s(self) -> float:
        """When the last point of the last clock was applied."""
        return self.closed_s[-1]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """How a training went: its curve, how stale each mini-task was (`TrialWorkload`).

    ``busy_s`` are worker-seconds of all tasks to their end, ``tasks`` how many there were.
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


def course_of(setting: Setting, workers: Workers, *, clocks: int) -> Course:
    """Run ``clocks`` >= 1 clocks of data under a setting; nothing is computed or decoded.

    The last bundle is run whole, so that there may be a few clocks more.
    """
    backend, jobs = workers.backend(), jobs_of(setting, clocks=clocks)
    watch = _drive(setting, backend, jobs=jobs)
    order = [watch.closed_s[job] for job in range(jobs)]
    return Course(
        closed_s=np.maximum.accumulate(order).repeat(setting.jobs_per_round).tolist(),
        busy_s=math.fsum(backend.busy_s.tolist()),
        tasks=watch.tasks,
        load=watch.loads / jobs,
        applied=1 - watch.lost / (jobs * len(setting.scheme.chunk_fractions)),
    )


def jobs_of(setting: Setting, *, clocks: int) -> int:
    """Return in how many jobs a setting does so many clocks of data, of a model each."""
    return math.ceil(clocks / setting.jobs_per_round)


def trained(
    setting: Setting,
    workers: Workers,
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
