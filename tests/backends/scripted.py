"""What only processes can do of what a task scripts, and who runs."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from seqgc import testing
from seqgc.backends import Messaging
from seqgc.ports import FloatArray, WeightedPoints
from seqgc.testing import PATIENCE_S
from seqgc.wire import ResultMessage, Subject, encode
from seqgc.worker import Compute, FetchWeights, register

NOISE = {
    "of a huge length": b"\xff" * 64,
    "of a fair length": (64).to_bytes(8, "little") + b"\xff" * 64,
}


@dataclass(frozen=True, kw_only=True)
class Scripted:
    """`seqgc.testing.Scripted`, and acts that only processes can; ``plan`` is how it starts."""

    folder: Path
    plan: str = "start"

    def __call__(self) -> Compute:
        match self.plan:
            case "raise":
                raise RuntimeError("no dataset here")
            case "exit":
                os._exit(7)
            case "hang":
                threading.Event().wait(PATIENCE_S)
            case "only first":
                with (self.folder / "starts").open("a") as file:
                    file.write("x")
                if (self.folder / "no more").exists():
                    raise RuntimeError("no dataset any more")
        return self._compute

    def _compute(self, parts: tuple[WeightedPoints, ...]) -> FloatArray:
        return np.concatenate([self._act(part) for part in parts])

    def _act(self, part: WeightedPoints) -> FloatArray:
        act, _, name = part.model.partition(" ")
        match act:
            case "exit":
                os._exit(7)
            case "pid":
                return np.array([float(os.getpid())])
            case "noise":
                os.write(connection(), NOISE[name])
            case "gossip":
                for address in (0, 0), (0, 1), (1, 1), (7, 0):
                    os.write(connection(), _answer(*address))
            case "hang-up":
                os.close(connection())
                threading.Event().wait(PATIENCE_S)
            case "threads":
                return np.array([float(os.environ["OMP_NUM_THREADS"])])
        return testing.Scripted(folder=self.folder)()((part,))


@register("scripted")
def scripted(settings: Mapping[str, object], _: FetchWeights) -> Compute:
    """The same, for functions, which know it by its name."""
    return Scripted(folder=Path(str(settings["folder"])))()


def _answer(round: int, attempt: int) -> bytes:
    """Worker 0's answer to a task."""
    subject = Subject(round=round, worker=0, attempt=attempt)
    message = ResultMessage(subject=subject, results={0: np.ones(3)})
    frame = encode(message, run_id=Messaging().run_id, sealed=False)
    return len(frame).to_bytes(8, "little") + frame


def connection() -> int:
    """The descriptor of this worker's connection: the only socket that it has."""
    (found,) = (fd for fd in range(3, 256) if _is_socket(fd))
    return found


def _is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        return False


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
