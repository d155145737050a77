"""Workers whose course the test scripts, and a backend that needs no workers at all.

`Scripted` is what real workers compute: a task's model names say what happens to each of its
mini-tasks. Workers and tests tell each other what has happened by files in a folder that both see,
so that no test has to guess how long anything takes. `ScriptedBackend` has no workers: answers come
when its script says, on a clock that nobody waits for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from seqgc.ports import (
    Arrival,
    Backend,
    Failure,
    FloatArray,
    Task,
    WeightedPoints,
    WeightRef,
    WorkItem,
)
from seqgc.testing._clock import PATIENCE_S, HandWoundClock, eventually
from seqgc.worker import Compute

__all__ = [
    "Scripted",
    "ScriptedBackend",
    "address",
    "gradient",
    "next_arrival",
    "next_event",
    "next_events",
    "part",
    "task",
]

# ---- what workers compute -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted:
    """A compute factory: each part's model says what happens.

    ``plain``: nothing, the result is `gradient`; ``gate a``: the worker makes the file ``begun a``
    in the folder and goes on when there is a file ``go a`` (``gate-raise a``: then it raises);
    ``raise``: computing raises; ``nan`` and ``matrix``: the result is none.

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


# ---- no workers at all --------------------------------------------------------------------------

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
