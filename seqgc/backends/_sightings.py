"""`Sightings`: the task and model that each worker process was at, in memory that outlasts it."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from multiprocessing import reduction

from seqgc.ports import Computing
from seqgc.worker import PROGRESS, WorkerProgress

__all__ = ["Sightings"]


class Sightings:
    """Memory shared with ``n`` worker processes, each of which writes into its own part.

    It is pickled only as an argument of such a process, which then calls `watch`.
    """

    def __init__(self, n: int) -> None:
        size = n * WorkerProgress.BYTES
        if hasattr(os, "memfd_create"):  # in a file, a full disk would end the writer
            self._file = os.memfd_create("seqgc-sightings")
        else:
            with tempfile.TemporaryFile() as file:
                self._file = os.dup(file.fileno())
        os.ftruncate(self._file, size)
        self._open(size)

    def _open(self, size: int) -> None:
        self._size = size
        self._memory = mmap.mmap(self._file, size)

    def __reduce__(self) -> tuple[object, ...]:
        return _received, (reduction.DupFd(self._file), self._size)

    def watch(self, worker: int) -> None:
        """Make this process record its tasks, as this worker."""
        PROGRESS.attach(self._part(worker))

    def computing(self, worker: int) -> Computing | None:
        """Return what a worker's process computes, or computed at its end; None if it is idle."""
        if self._size == 0 or (seen := WorkerProgress.read(self._part(worker))) is None:
            return None
        now = time.monotonic()
        return Computing(
            round=seen.round,
            attempt=seen.attempt,
            model=seen.model,
            is_stuck=now - seen.model_began_at >= (now - seen.began_at) / 2,
        )

    def clear(self, worker: int) -> None:
        """Forget what a worker's process was computing, before another process takes its place."""
        self._memory[worker * WorkerProgress.BYTES] = 0

    def close(self) -> None:
        """Release the memory; a second call does nothing."""
        if self._size:
            self._size = 0
            self._memory.close()
            os.close(self._file)

    def _part(self, worker: int) -> memoryview:
        start = worker * WorkerProgress.BYTES
        return memoryview(self._memory)[start : start + WorkerProgress.BYTES]


def _received(descriptor: object, size: int) -> Sightings:
    """Return the same memory in a process that has received its descriptor."""
    sightings = Sightings.__new__(Sightings)
    sightings._file = descriptor.detach()  # type: ignore[attr-defined]
    sightings._open(size)
    return sightings
