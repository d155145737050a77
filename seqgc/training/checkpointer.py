"""Checkpoints of a run while it is trained, and where to continue from."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np
import torch

from seqgc.errors import ParameterError, StoreError
from seqgc.ports import IntArray
from seqgc.runs.metrics import JobMetrics, Written
from seqgc.runs.packing import PackedJob
from seqgc.runs.snapshots import Snapshot, SnapshotFolder
from seqgc.training.adaptive import DirectorState, SlowdownState
from seqgc.training.results import RunCounts
from seqgc.training.workload import WorkloadState

__all__ = ["Checkpointer", "RunSnapshot", "RunState"]

_NUMPYS = "MT19937"


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomState:
    """The states of the global generators; seqgc draws from none, a user's module may."""

    torch: bytes
    numpy: tuple[str, list[int], int, int, float]
    python: tuple[int, list[int], float | None]

    @classmethod
    def now(cls) -> RandomState:
        """Return the states; `ParameterError` if numpy's generator is another than its own."""
        legacy = np.random.get_state(legacy=False)  # noqa: NPY002 (the global one is meant)
        state = cast("dict[str, object]", legacy)
        if state["bit_generator"] != _NUMPYS:
            rule = f"must be {_NUMPYS}, numpy's own, which checkpoints can hold"
            remedy = "leave out np.random.set_bit_generator; draw from a generator of your own"
            raise ParameterError("numpy.random", rule, state["bit_generator"], remedy)
        mt = cast("dict[str, object]", state["state"])
        version, words, gauss = random.getstate()
        return cls(
            torch=torch.get_rng_state().numpy().tobytes(),
            numpy=(
                str(state["bit_generator"]),
                cast("IntArray", mt["key"]).tolist(),
                cast("int", mt["pos"]),
                cast("int", state["has_gauss"]),
                cast("float", state["gauss"]),
            ),
            python=(version, list(words), gauss),
        )

    def restore(self) -> None:
        """Have the generators go on from here."""
        torch.set_rng_state(torch.frombuffer(bytearray(self.torch), dtype=torch.uint8))
        name, key, position, has_gauss, cached = self.numpy
        legacy = (name, np.array(key, dtype=np.uint32), position, has_gauss, cached)
        np.random.set_state(legacy)  # noqa: NPY002 (the global one is meant)
        version, words, gauss = self.python
        random.setstate((version, tuple(words), gauss))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """What a checkpoint knows of a run, apart from tensors."""

    jobs: int  # of the whole run, as far as is known
    begun: int  # jobs, by the loop
    held: list[PackedJob]
    workload: WorkloadState
    counts: RunCounts
    seconds: float  # of the loop so far
    metrics: Written  # of metrics.csv, as far as a power cut leaves it
    director: DirectorState | None  # in a run that looks for better settings
    random: RandomState
    unwritten: list[JobMetrics]  # that are not in it: the disk was full, or failed
    slowdown: SlowdownState
    policy: str = ""  # of a defence's own: JSON


RunSnapshot: TypeAlias = Snapshot[RunState]


class Checkpointer:
    """Takes a snapshot now and then, and has it written while the workers compute.

    ``warn`` is called with one line if a checkpoint cannot be taken or written. The checkpoints
    before it stay.
    """

    def __init__(
        self,
        folder: SnapshotFolder[RunState],
        *,
        every_s: float,
        warn: Callable[[str], None],
    ) -> None:
        self._folder, self._every_s, self._warn = folder, every_s, warn
        self._due_at = -1.0
        self._writing: Future[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self.latest: int | None = None  # rounds; of the last that is on the disk
        self.failure = ""  # of the last that could not be taken or written

    @property
    def due(self) -> bool:
        """Whether it is time for one; the first is due at once."""
        return self._idle and time.monotonic() >= self._due_at

    @property
    def _idle(self) -> bool:
        return self._writing is None or self._writing.done()

    def look(self) -> None:
        """Say what has failed by now."""
        if self._writing is not None and self._idle:
            self.settle()

    def begin(self, take: Callable[[], RunSnapshot]) -> None:
        """Take one now, and have it written beside whatever goes on.

        If the store cannot be read, where weights in flight are, the next is taken in its turn.
        """
        self.settle()
        self._due_at = time.monotonic() + self._every_s
        try:
            self._writing = self._thread.submit(self._write, take())
        except StoreError as error:
            self._fail(f"a checkpoint could not be taken: {error}")

    def end(self, take: Callable[[], RunSnapshot]) -> None:
        """Take the last checkpoint, and wait until it is written."""
        self.begin(take)
        self.settle()

    def settle(self) -> None:
        """Wait until what is being written is on the disk, or has failed; say what has failed."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            try:
                writing.result()
            except OSError as error:
                what = error.strerror or error
                self._fail(f"a checkpoint could not be written to {self._folder.root}: {what}")

    def close(self) -> None:
        """Wait for the checkpoint that is being written; nothing more is written."""
        self.settle()
        self._thread.shutdown()

    def _fail(self, why: str) -> None:
        self.failure = why
        self._warn(why)

    def _write(self, snapshot: RunSnapshot) -> None:
        self._folder.write(snapshot)
        self.latest = snapshot.rounds
