"""Stand-ins for time, computations, workers and training in tests.

With these classes, a test never guesses how long something takes. A `HandWoundClock` moves only
when the test winds it. `Scripted` is a computation for real workers: the model name of each
mini-task determines its behaviour, and workers and test signal to each other through files in a
common folder. A `ScriptedBackend` has no workers: its script gives the time at which each answer
arrives on a hand-wound clock. A `ChunkWorkload` computes the correct gradients for comparison.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np

from seqgc.ports import (
    Arrival,
    Backend,
    Decoding,
    Failure,
    Flaw,
    FlawedResult,
    FloatArray,
    MiniTask,
    Notice,
    PartialArrival,
    Task,
    WeightedPoints,
    WeightRef,
    WorkItem,
)
from seqgc.schemes import Scheme
from seqgc.worker import Compute

__all__ = [
    "PATIENCE_S",
    "ChunkWorkload",
    "HandWoundClock",
    "Scripted",
    "ScriptedBackend",
    "address",
    "eventually",
    "gradient",
    "next_arrival",
    "next_event",
    "next_events",
    "part",
    "task",
]

_Result = TypeVar("_Result")

PATIENCE_S: Final = 60.0
"""Time limit, in seconds, of an event that a test waits for. Only a failing test reaches it."""


class HandWoundClock:
    """A `seqgc.ports.Clock` that moves only when it is wound.

    The clock begins at ``time``, in seconds. Each reading moves it by ``step`` seconds; if ``step``
    is above 0, no two readings are equal.

    Examples
    --------
    >>> clock = HandWoundClock(100.0)
    >>> clock.wind(2.5)
    >>> clock.sleep(1.0)  # a stand-in for `time.sleep`
    >>> clock.now(), clock.slept
    (103.5, [1.0])
    """

    def __init__(self, time: float = 100.0, *, step: float = 0.0) -> None:
        self._time, self._step = time, step
        self.slept: Final[list[float]] = []

    def now(self) -> float:
        now = self._time
        self._time += self._step
        return now

    def wind(self, seconds: float) -> None:
        """Move the clock forward."""
        self._time += seconds

    def sleep(self, seconds: float) -> None:
        """Move the clock forward, and record the duration in ``slept``."""
        self.slept.append(seconds)
        self.wind(seconds)


def eventually(
    condition: Callable[[], _Result], what: str, *, within_s: float = PATIENCE_S
) -> _Result:
    """Wait until other threads or processes make a condition true; return the condition's value.

    Raises `AssertionError` after ``within_s`` seconds. The message contains ``what``, a description
    of the condition.

    Examples
    --------
    >>> eventually(lambda: 7, "something true")
    7
    """
    give_up_at = time.monotonic() + within_s
    while not (result := condition()):
        if time.monotonic() >= give_up_at:
            raise AssertionError(f"{what} did not happen in {within_s:g} s")
        time.sleep(0.002)
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted:
    """A compute factory in which the model name of each part determines its behaviour.

    - ``plain``: the result is `gradient`. - ``gate a``: the worker makes the file ``begun a`` in
    the folder, and waits for a file ``go a``. - ``gate-raise a``: the worker does the same, and
    then raises an error. - ``raise``: the computation raises an error. - ``flawed``: the
    computation raises an error that concerns only this model. - ``nan`` and ``matrix``: the result
    is not a finite vector.

    Examples
    --------
    >>> compute = Scripted(folder=Path("."))()
    >>> compute((part(size=2),)).tolist() == [0.7, 0.7]
    True
    """

    folder: Path

    def __call__(self) -> Compute:
        """Return the compute function of one worker."""
        return lambda parts: np.concatenate([self._act(part) for part in parts])

    def _act(self, part: WeightedPoints) -> FloatArray:
        act, _, name = part.model.partition(" ")
        match act:
            case "gate" | "gate-raise":
                (self.folder / f"begun {name}").touch()
                eventually((self.folder / f"go {name}").exists, f"opening gate {name}")
                if act == "gate-raise":
                    raise TypeError("its weights are gone")
            case "raise":
                raise TypeError("the loss is\na string")
            case "flawed":
                flaw = Flaw(kind="raised", why="the loss is\na string")
                raise FlawedResult(np.zeros(part.weights.size), {part.model: flaw})
            case "nan":
                return np.array([np.nan])
            case "matrix":
                return np.ones((2, 2))
        return gradient(part)


def gradient(part: WeightedPoints) -> FloatArray:
    """Return the result (size,) of a ``plain`` part."""
    return np.full(part.weights.size, part.coefficients @ part.points, part.weights.dtype)


def part(model: str = "plain", *, size: int = 3, points: int = 2) -> WeightedPoints:
    """Return a part whose result has ``size`` components."""
    weights = WeightRef(model="w", version=0, digest="0" * 64, dtype="float64", size=size)
    p, coefficients = np.arange(points), np.linspace(0.1, 0.7, points)
    return WeightedPoints(model=model, weights=weights, points=p, coefficients=coefficients)


def task(
    round: int, worker: int, *models: str, attempt: int = 0, size: int = 3, points: int = 2
) -> Task:
    """Return a task with one mini-task for each model name; its slot is ten times its index."""
    items = tuple(
        WorkItem(slot=10 * place, parts=(part(model, size=size, points=points),))
        for place, model in enumerate(models or ("plain",))
    )
    return Task(round=round, worker=worker, attempt=attempt, items=items)


def next_event(backend: Backend) -> Arrival | PartialArrival | Failure:
    """Return the next event of a backend; raise `AssertionError` if none comes within 60 s."""
    until = time.monotonic() + PATIENCE_S
    while isinstance(event := backend.receive(until), Notice):
        pass
    if event is None:
        raise AssertionError(f"no event in {PATIENCE_S:g} s")
    return event


def next_events(backend: Backend, count: int) -> list[Arrival | PartialArrival | Failure]:
    """Return the next ``count`` events of a backend."""
    return [next_event(backend) for _ in range(count)]


def next_arrival(backend: Backend) -> Arrival:
    """Return the next event of a backend; raise `AssertionError` if it is not an answer."""
    event = next_event(backend)
    if not isinstance(event, Arrival):
        raise AssertionError(f"{event} is not an answer")
    return event


def address(event: Arrival | PartialArrival | Failure) -> tuple[str, int, int, int]:
    """Return the class name of an event, and the round, worker and attempt of its task."""
    return type(event).__name__, event.round, event.worker, event.attempt


Address: TypeAlias = tuple[int, int, int]
Turn: TypeAlias = float | tuple[float, str]


class ScriptedBackend:
    """A backend whose answers arrive at scripted times on a hand-wound clock.

    For each (round, worker, attempt), the script contains the seconds until the answer arrives
    (infinite if it never arrives), or the seconds and the reason of a failure. For a task that asks
    for an answer to each mini-task (`seqgc.ports.Dispatch.item_loads`), it may contain a list with
    the seconds of each of these answers, in order; the last entry may be a failure. A task that is
    not in the script is answered after one second.

    Examples
    --------
    >>> backend = ScriptedBackend({(0, 1, 0): (0.5, "killed")})
    >>> backend.dispatch(0, [task(0, 0), task(0, 1)])
    [100.0, 100.0]
    >>> [event.at for event in (backend.receive(math.inf), backend.receive(math.inf))]
    [100.5, 101.0]
    """

    sends_parts: Final = True

    def __init__(self, script: Mapping[Address, Turn | Sequence[Turn]] | None = None) -> None:
        self._script: Final = {} if script is None else script
        self._events: Final[list[Arrival | PartialArrival | Failure]] = []
        self.clock: Final = HandWoundClock()
        self.sent: Final[list[Address]] = []
        self.cancelled: Final[list[tuple[int, tuple[int, ...]]]] = []

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        """Record the tasks, and queue their events."""
        now = self.clock.now()
        for task in tasks:
            worker, attempt = task.worker, task.attempt
            self.sent.append((round, worker, attempt))
            turn = self._script.get(self.sent[-1], 1.0)
            turns = turn if isinstance(turn, list) else [turn]
            slots = [*(item.slot for item in task.items[: len(turns) - 1]), None]
            for each, slot in zip(turns, slots, strict=True):
                self._queue(task, each, slot=slot)
        self._events.sort(key=lambda event: event.at)
        return [now] * len(tasks)

    def _queue(self, task: Task, turn: Turn, *, slot: int | None) -> None:
        """Queue an event of a task; if ``slot`` is given, it is an answer to this mini-task."""
        round, worker, attempt = task.round, task.worker, task.attempt
        about: dict[str, Any] = {"round": round, "worker": worker, "attempt": attempt}
        if isinstance(turn, tuple):
            at, reason = self.clock.now() + turn[0], turn[1]
            self._events.append(Failure(**about, at=at, reason=reason))
        elif turn < math.inf:
            about |= {"at": self.clock.now() + turn, "results": {}}
            answer = Arrival(**about) if slot is None else PartialArrival(**about, slot=slot)
            self._events.append(answer)

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        """Record the cancellation; it does not stop the answers."""
        self.cancelled.append((round, tuple(workers)))

    def receive(self, until: float) -> Arrival | PartialArrival | Failure | None:
        """Wind the clock to the next event, or to ``until``."""
        ready = bool(self._events) and self._events[0].at <= until
        at = self._events[0].at if ready else until
        self.clock.wind(max(0.0, at - self.clock.now()))
        return self._events.pop(0) if ready else None

    def close(self) -> None:
        """Do nothing, because nothing was started."""


class ChunkWorkload:
    """A `seqgc.ports.Workload` that checks the gradients it receives.

    Each chunk has one data point. Each job has its own random partial gradients, a matrix with a
    row of ``size`` components for each chunk of the scheme. ``compute`` is the computation of a
    worker. ``begun`` lists the jobs that have begun, and ``errors[t]`` is the relative error of the
    gradient of job t.

    Examples
    --------
    >>> from seqgc.master import run
    >>> from seqgc.rounds import ClosingRule, RoundPolicy
    >>> from seqgc.schemes import GC
    >>> from seqgc.search import ReplayBackend
    >>> scheme = GC(n=3, s=1)
    >>> workload = ChunkWorkload(scheme, seed=0)
    >>> backend = ReplayBackend(np.array([[1.0, 9.0, 1.5]]), compute=workload.compute)
    >>> run(RoundPolicy(scheme.start(1), ClosingRule(mu=0.5)), backend, workload)
    >>> workload.errors[0] < 1e-12
    True
    """

    def __init__(self, scheme: Scheme, *, seed: int, size: int = 5) -> None:
        self._shape: Final = (len(scheme.chunk_fractions), size)
        self._seed: Final = seed
        self.begun: Final[list[int]] = []
        self.errors: Final[dict[int, float]] = {}

    def partials(self, job: int) -> FloatArray:
        """Return the partial gradients of a job, (chunks, size)."""
        return np.random.default_rng([self._seed, job]).normal(size=self._shape)

    def result_form(self, job: int) -> None:
        """Return None, because the first result determines the form of all results."""

    def needs(self, job: int, finished: int) -> bool:  # noqa: ARG002 (the protocol's)
        return False

    def begin(self, job: int) -> None:
        self.begun.append(job)

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        """Return each chunk as a data point, with the job as the version of the weights."""
        job, size = mini_task.job, self._shape[1]
        ref = WeightRef(model="m", version=job, digest="0" * 64, dtype="float64", size=size)
        points, coefficients = mini_task.chunks, mini_task.coefficients
        return (WeightedPoints(model="m", weights=ref, points=points, coefficients=coefficients),)

    def compute(self, parts: tuple[WeightedPoints, ...]) -> FloatArray:
        """Return the result of a mini-task, (size,)."""
        (part,) = parts
        return part.coefficients @ self.partials(part.weights.version)[part.points]

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        """Compare a gradient with the sum of the job's partial gradients.

        Raises `AssertionError` if the job has already finished.
        """
        job = decoding.job
        if job in self.errors:
            raise AssertionError(f"job {job} finished twice")
        direct = self.partials(job).sum(axis=0)
        self.errors[job] = float(np.linalg.norm(gradient - direct) / np.linalg.norm(direct))
