"""What stands in for time, workers and their gradients in a test.

Nothing here guesses how long anything takes. A `HandWoundClock` moves when a test winds it.
`Scripted` is what real workers compute: a task's model names say what happens to each of its
mini-tasks, and workers and tests tell each other what has happened by files in a folder that both
see. `ScriptedBackend` has no workers: answers come when its script says, on a clock that nobody
waits for. `ChunkWorkload` knows what the gradients should be.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

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

_Found = TypeVar("_Found")

PATIENCE_S: Final = 60.0
"""How long a test waits for what must happen: reached only if it does not."""


class HandWoundClock:
    """A `seqgc.ports.Clock` that moves when it is wound, and at no other time.

    It shows ``time`` first, seconds; every look at it moves it on by ``step`` seconds, so that with
    a step no two looks see the same time.

    Examples
    --------
    >>> clock = HandWoundClock(100.0)
    >>> clock.wind(2.5)
    >>> clock.sleep(1.0)  # for what takes a `sleep`
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
        """Let some time pass."""
        self._time += seconds

    def sleep(self, seconds: float) -> None:
        """Let some time pass, and note how much in ``slept``."""
        self.slept.append(seconds)
        self.wind(seconds)


def eventually(
    condition: Callable[[], _Found], what: str, *, within_s: float = PATIENCE_S
) -> _Found:
    """Wait until a condition holds that other threads or processes bring about; return its value.

    `AssertionError` after ``within_s`` seconds: ``what`` did not happen.

    Examples
    --------
    >>> eventually(lambda: 7, "something true")
    7
    """
    give_up_at = time.monotonic() + within_s
    while not (found := condition()):
        if time.monotonic() >= give_up_at:
            raise AssertionError(f"{what} did not happen in {within_s:g} s")
        time.sleep(0.002)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted:
    """A compute factory: each part's model says what happens.

    ``plain``: nothing, the result is `gradient`; ``gate a``: the worker makes the file ``begun a``
    in the folder and goes on when there is a file ``go a`` (``gate-raise a``: then it raises);
    ``raise``: computing raises; ``flawed``: of this model alone; ``nan`` and
    ``matrix``: the result is none.

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
    """Return a part's result when nothing happens, (size,)."""
    return np.full(part.weights.size, part.coefficients @ part.points, part.weights.dtype)


def part(model: str = "plain", *, size: int = 3, points: int = 2) -> WeightedPoints:
    """Return a part whose result has ``size`` components."""
    weights = WeightRef(model="w", version=0, digest="0" * 64, dtype="float64", size=size)
    p, coefficients = np.arange(points), np.linspace(0.1, 0.7, points)
    return WeightedPoints(model=model, weights=weights, points=p, coefficients=coefficients)


def task(
    round: int, worker: int, *models: str, attempt: int = 0, size: int = 3, points: int = 2
) -> Task:
    """Return a task of one mini-task per model name, its slot ten times its place."""
    items = tuple(
        WorkItem(slot=10 * place, parts=(part(model, size=size, points=points),))
        for place, model in enumerate(models or ("plain",))
    )
    return Task(round=round, worker=worker, attempt=attempt, items=items)


def next_event(backend: Backend) -> Arrival | Failure:
    """Return a backend's next event, which must come (its clock shows the machine's seconds)."""
    event = backend.receive(time.monotonic() + PATIENCE_S)
    if event is None:
        raise AssertionError(f"no event in {PATIENCE_S:g} s")
    return event


def next_events(backend: Backend, count: int) -> list[Arrival | Failure]:
    """Return a backend's next events."""
    return [next_event(backend) for _ in range(count)]


def next_arrival(backend: Backend) -> Arrival:
    """Return a backend's next event, which must be an answer."""
    event = next_event(backend)
    if isinstance(event, Failure):
        raise AssertionError(f"{event} is no answer")
    return event


def address(event: Arrival | Failure) -> tuple[str, int, int, int]:
    """Return what an event is, and its task's round, worker and attempt."""
    return type(event).__name__, event.round, event.worker, event.attempt


Address: TypeAlias = tuple[int, int, int]


class ScriptedBackend:
    """A backend whose answers come when a script says, on a hand-wound clock.

    The script says by (round, worker, attempt) after how many seconds the answer comes (inf:
    never), or gives a pair of seconds and the reason of a failure. Who is not in it answers after
    one second.

    Examples
    --------
    >>> backend = ScriptedBackend({(0, 1, 0): (0.5, "killed")})
    >>> backend.dispatch(0, [task(0, 0), task(0, 1)])
    [100.0, 100.0]
    >>> [event.at for event in (backend.receive(math.inf), backend.receive(math.inf))]
    [100.5, 101.0]
    """

    def __init__(self, script: Mapping[Address, float | tuple[float, str]] | None = None) -> None:
        self._script: Final = {} if script is None else script
        self._events: Final[list[Arrival | Failure]] = []
        self.clock: Final = HandWoundClock()
        self.sent: Final[list[Address]] = []
        self.cancelled: Final[list[tuple[int, tuple[int, ...]]]] = []

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        """Note the tasks; queue what will become of them."""
        now = self.clock.now()
        for worker, attempt in ((task.worker, task.attempt) for task in tasks):
            self.sent.append((round, worker, attempt))
            turn = self._script.get(self.sent[-1], 1.0)
            if isinstance(turn, tuple):
                at, reason = now + turn[0], turn[1]
                failure = Failure(round=round, worker=worker, attempt=attempt, at=at, reason=reason)
                self._events.append(failure)
            elif turn < math.inf:
                at = now + turn
                answer = Arrival(round=round, worker=worker, attempt=attempt, at=at, results={})
                self._events.append(answer)
        self._events.sort(key=lambda event: event.at)
        return [now] * len(tasks)

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        """Note who is not needed any more; what they send comes all the same."""
        self.cancelled.append((round, tuple(workers)))

    def receive(self, until: float) -> Arrival | Failure | None:
        """Wind the clock to the next event, or to ``until``."""
        due = bool(self._events) and self._events[0].at <= until
        at = self._events[0].at if due else until
        self.clock.wind(max(0.0, at - self.clock.now()))
        return self._events.pop(0) if due else None

    def close(self) -> None:
        """Do nothing: nothing was started."""


class ChunkWorkload:
    """A `seqgc.ports.Workload` of one data point a chunk, which checks the gradients it is handed.

    Job t's partial gradients, one for each of the scheme's chunks, are a random matrix of its own
    with rows of ``size`` components; ``compute`` is what a worker does with them. ``begun`` lists
    the jobs that have begun; ``errors[t]`` is the relative error of job t's gradient.

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
        """Return a job's partial gradients, (chunks, size)."""
        return np.random.default_rng([self._seed, job]).normal(size=self._shape)

    def result_form(self, job: int) -> None:
        """Leave it to the first result."""

    def needs(self, job: int, finished: int) -> bool:  # noqa: ARG002 (the protocol's)
        return False

    def begin(self, job: int) -> None:
        self.begun.append(job)

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        """Make a chunk's point its number, and the version of the weights the job's."""
        job, size = mini_task.job, self._shape[1]
        ref = WeightRef(model="m", version=job, digest="0" * 64, dtype="float64", size=size)
        points, coefficients = mini_task.chunks, mini_task.coefficients
        return (WeightedPoints(model="m", weights=ref, points=points, coefficients=coefficients),)

    def compute(self, parts: tuple[WeightedPoints, ...]) -> FloatArray:
        """Return a mini-task's result, (size,)."""
        (part,) = parts
        return part.coefficients @ self.partials(part.weights.version)[part.points]

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        """Compare a gradient with the sum of the job's partial ones; once, or `AssertionError`."""
        job = decoding.job
        if job in self.errors:
            raise AssertionError(f"job {job} finished twice")
        direct = self.partials(job).sum(axis=0)
        self.errors[job] = float(np.linalg.norm(gradient - direct) / np.linalg.norm(direct))
