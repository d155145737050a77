"""A record of the task and model that a worker process is computing, for the master to read.

A process that dies or hangs can report nothing. Therefore each worker process shares memory with
its master. The worker writes the task that it begins to this memory, and the name of a model before
it computes a gradient of this model. After the end of the process, the master reads the record. In
a cloud function there is no shared memory, and nothing is written.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from typing import ClassVar, Final

__all__ = ["PROGRESS", "Sighting", "WorkerProgress"]

_LAYOUT = struct.Struct("<?qqqddH800s")  # a name has 200 characters at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """The task and the ``model`` that a process was computing.

    The process began the task at ``began_at`` and the model's gradient at ``model_began_at``, in
    seconds of `time.monotonic`.
    """

    round: int
    worker: int
    attempt: int
    model: str
    began_at: float
    model_began_at: float


class WorkerProgress:
    """The writer and reader of a process's record in shared memory, which has `BYTES` bytes.

    Examples
    --------
    >>> memory, progress = bytearray(WorkerProgress.BYTES), WorkerProgress()
    >>> progress.attach(memoryview(memory))
    >>> progress.begin(7, 1, 0)
    >>> progress.enter("net")
    >>> seen = WorkerProgress.read(memoryview(memory))
    >>> seen.round, seen.worker, seen.attempt, seen.model
    (7, 1, 0, 'net')
    >>> progress.end()
    >>> WorkerProgress.read(memoryview(memory)) is None
    True
    """

    BYTES: ClassVar[int] = _LAYOUT.size

    def __init__(self) -> None:
        self._memory: memoryview | None = None
        self._task = (0, 0, 0, 0.0)

    def attach(self, memory: memoryview) -> None:
        self._memory = memory

    def begin(self, round: int, worker: int, attempt: int) -> None:
        if self._memory is not None:
            self._task = round, worker, attempt, time.monotonic()
            self.enter("")

    def enter(self, model: str) -> None:
        """Record that the process begins to compute a gradient of this model."""
        if self._memory is not None:
            name = model.encode()
            now = time.monotonic()
            _LAYOUT.pack_into(self._memory, 0, True, *self._task, now, len(name), name)

    def end(self) -> None:
        if self._memory is not None:
            self._memory[0] = 0

    @staticmethod
    def read(memory: memoryview) -> Sighting | None:
        """Return the task and model that a process wrote last, or None if it was between tasks."""
        is_at_work, *task, began_at, model_began_at, size, name = _LAYOUT.unpack_from(memory)
        if not is_at_work:
            return None
        round, worker, attempt = task
        return Sighting(
            round=round,
            worker=worker,
            attempt=attempt,
            model=name[:size].decode(errors="replace"),
            began_at=began_at,
            model_began_at=model_began_at,
        )


PROGRESS: Final = WorkerProgress()
"""The record of this process."""
