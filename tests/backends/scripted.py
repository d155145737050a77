"""A computation whose course the task scripts: each part's model name says what happens.

Workers and tests tell each other what has happened by files in a folder, so no test has to guess
how long anything takes.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

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
from seqgc.worker import Compute, FetchWeights, register

PATIENCE_S = 60.0  # how long a test waits for what must happen: reached only if it does not


NOISE = {
    "of a huge length": b"\xff" * 64,
    "of a fair length": (64).to_bytes(8, "little") + b"\xff" * 64,
}


@dataclass(frozen=True, kw_only=True)
class Scripted:
    """A compute factory; ``plan`` names what happens while the worker starts."""

    folder: Path
    plan: str = "start"

    def __call__(self) -> Compute:
        match self.plan:
            case "raise":
                raise RuntimeError("no dataset here")
            case "exit":
                os._exit(7)
            case "hang":
                time.sleep(PATIENCE_S)
            case "only first":
                with (self.folder / "starts").open("a") as file:
                    file.write("x")
                if (self.folder / "no more").exists():
                    raise RuntimeError("no dataset any more")
        return self._compute

    def _compute(self, parts: tuple[WeightedPoints, ...]) -> FloatArray:
        return np.concatenate([self._act(part) for part in parts])

    def _wait_at_gate(self, name: str) -> None:
        (self.folder / f"begun {name}").touch()
        while not (self.folder / f"go {name}").exists():
            time.sleep(0.002)

    def _act(self, part: WeightedPoints) -> FloatArray:
        act, _, name = part.model.partition(" ")
        match act:
            case "gate" | "gate-raise":
                self._wait_at_gate(name)
                if act == "gate-raise":
                    raise TypeError("its weights are gone")
            case "raise":
                raise TypeError("the loss is\na string")
            case "exit":
                os._exit(7)
            case "nan":
                return np.array([np.nan])
            case "matrix":
                return np.ones((2, 2))
            case "noise":
                os.write(_connection(), NOISE[name])
            case "hang-up":
                os.close(_connection())
                time.sleep(PATIENCE_S)
            case "threads":
                return np.array([float(os.environ["OMP_NUM_THREADS"])])
        return gradient(part)


@register("scripted")
def scripted(settings: Mapping[str, object], _: FetchWeights) -> Compute:
    """The same, for functions, which know it by its name."""
    return Scripted(folder=Path(str(settings["folder"])), plan=str(settings["plan"]))()


def _connection() -> int:
    """The descriptor of this worker's connection: the only socket that it has."""
    (found,) = (fd for fd in range(3, 256) if _is_socket(fd))
    return found


def _is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def gradient(part: WeightedPoints) -> FloatArray:
    """What a part's result is when nothing happens."""
    return np.full(part.weights.size, part.coefficients @ part.points, part.weights.dtype)


def part(model: str = "plain", *, size: int = 3, points: int = 2) -> WeightedPoints:
    weights = WeightRef(model="w", version=0, digest="0" * 64, dtype="float64", size=size)
    return WeightedPoints(
        model=model,
        weights=weights,
        points=np.arange(points),
        coefficients=np.linspace(0.1, 0.7, points),
    )


def task(
    round: int, worker: int, *models: str, attempt: int = 0, size: int = 3, points: int = 2
) -> Task:
    """One mini-task per model name, its slot ten times its place."""
    items = tuple(
        WorkItem(slot=10 * place, parts=(part(model, size=size, points=points),))
        for place, model in enumerate(models or ("plain",))
    )
    return Task(round=round, worker=worker, attempt=attempt, items=items)


def eventually(condition: Callable[[], object], what: str) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at, f"{what} did not happen in {PATIENCE_S} s"
        time.sleep(0.005)


def next_event(backend: Backend) -> Arrival | Failure:
    event = backend.receive(time.monotonic() + PATIENCE_S)
    assert event is not None, f"no event in {PATIENCE_S} s"
    return event


def next_events(backend: Backend, count: int) -> list[Arrival | Failure]:
    return [next_event(backend) for _ in range(count)]


def address(event: Arrival | Failure) -> tuple[str, int, int, int]:
    return type(event).__name__, event.round, event.worker, event.attempt


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state.rpartition(")")[2].split()[0] != "Z"


def running_in_session(session: int) -> list[int]:
    """The processes of a session; zombies, which only wait to be counted, are none."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]
    return [pid for pid in pids if is_running(pid) and _session(pid) == session]


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1
