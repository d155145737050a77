"""When checkpoints of a run are taken, and by whom they are written."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from seqgc.training._counts import RunCounts
from seqgc.training._packing import PackedJob
from seqgc.training._snapshots import Snapshot, SnapshotFolder
from seqgc.training.workload import WorkloadState

__all__ = ["Checkpointer", "RunSnapshot", "RunState"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """What a checkpoint knows of a run, apart from tensors."""

    begun: int  # jobs, by the loop
    held: list[PackedJob]
    workload: WorkloadState
    counts: RunCounts
    observers: list[dict[str, float]]  # what those that last have to remember, in their order
    seconds: float  # of the loop so far
    metrics_bytes: int  # of metrics.csv
    torch_random: str  # base64


RunSnapshot: TypeAlias = Snapshot[RunState]


class Checkpointer:
    """Takes a snapshot now and then, and has it written while the workers compute.

    ``warn`` is told in one line when a checkpoint could not be written: the ones before stay.
    """

    def __init__(
        self, folder: SnapshotFolder[RunState], *, every_s: float, warn: Callable[[str], None]
    ) -> None:
        self._folder, self._every_s, self._warn = folder, every_s, warn
        self._due_at = -1.0
        self._writing: Future[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self.latest: int | None = None  # rounds; of the last that is on the disk

    @property
    def due(self) -> bool:
        """Whether it is time for one; the first is due at once."""
        idle = self._writing is None or self._writing.done()
        return idle and time.monotonic() >= self._due_at

    def begin(self, snapshot: RunSnapshot) -> None:
        """Have it written beside whatever goes on."""
        self.settle()
        self._due_at = time.monotonic() + self._every_s
        self._writing = self._thread.submit(self._write, snapshot)

    def settle(self) -> None:
        """Wait until what is being written is on the disk, or has failed."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            try:
                writing.result()
            except OSError as error:
                what = error.strerror or error
                self._warn(f"a checkpoint could not be written to {self._folder.root}: {what}")

    def close(self) -> None:
        """Wait for the last one."""
        self.settle()
        self._thread.shutdown()

    def _write(self, snapshot: RunSnapshot) -> None:
        self._folder.write(snapshot)
        self.latest = snapshot.rounds
