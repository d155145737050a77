"""Checkpoints of a run: their content, and a `Checkpointer` that writes them in the background."""

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
from seqgc.master import PackedJob
from seqgc.ports import IntArray
from seqgc.runs.metrics import JobMetrics, Written
from seqgc.runs.snapshots import Snapshot, SnapshotFolder
from seqgc.training.adaptive import DirectorState, SlowdownState
from seqgc.training.history import ChoiceState, JournalState
from seqgc.training.results import RunCounts
from seqgc.training.workload import WorkloadState

__all__ = ["Checkpointer", "RunSnapshot", "RunState"]

_NUMPYS = "MT19937"


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomState:
    """The states of the global random generators, from which the user's code may draw."""

    torch: bytes
    numpy: tuple[str, list[int], int, int, float]
    python: tuple[int, list[int], float | None]

    @classmethod
    def now(cls) -> RandomState:
        """Return the present states.

        Raises `ParameterError` if the global generator of numpy is not an MT19937.
        """
        legacy = np.random.get_state(legacy=False)  # noqa: NPY002 (the global one is meant)
        state = cast("dict[str, object]", legacy)
        if state["bit_generator"] != _NUMPYS:
            rule = f"must be {_NUMPYS}, the only generator of numpy that a checkpoint can hold"
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
        """Set the global generators to the stored states."""
        torch.set_rng_state(torch.frombuffer(bytearray(self.torch), dtype=torch.uint8))
        name, key, position, has_gauss, cached = self.numpy
        legacy = (name, np.array(key, dtype=np.uint32), position, has_gauss, cached)
        np.random.set_state(legacy)  # noqa: NPY002 (the global one is meant)
        version, words, gauss = self.python
        random.setstate((version, tuple(words), gauss))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The state of a run without its tensors, for checkpoints."""

    begun: int  # number of jobs that the loop has begun
    held: list[PackedJob]  # results of jobs that the loop has begun but not decoded
    workload: WorkloadState
    counts: RunCounts
    seconds: float  # duration of the loop so far
    metrics: Written  # the part of metrics.csv that has been written to the disk
    director: DirectorState | None  # None if the run does not search for better settings
    random: RandomState
    unwritten: list[JobMetrics]  # losses that may not be in metrics.csv on the disk
    slowdown: SlowdownState
    policy: str  # state of the policy, as JSON
    journal: JournalState
    choices: list[ChoiceState]  # all choices to switch to another setting, in order
    switches: list[tuple[int, int]]  # the first job and the first round after each switch


RunSnapshot: TypeAlias = Snapshot[RunState]


class Checkpointer:
    """A writer of checkpoints. It has its own thread, so that the workers compute meanwhile.

    A checkpoint is due ``every_s`` seconds after the last one was taken. If a checkpoint cannot be
    taken or written, ``warn`` is called with a text of one line, and the earlier checkpoints
    remain.
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
        self.latest: int | None = None  # number of rounds of the last checkpoint on the disk
        self.failure = ""  # the reason of the last failure to take or write a checkpoint

    @property
    def due(self) -> bool:
        """True if it is time for the next checkpoint, and no checkpoint is being written.

        The first checkpoint is due at once.
        """
        return self._idle and time.monotonic() >= self._due_at

    @property
    def _idle(self) -> bool:
        return self._writing is None or self._writing.done()

    def report_failure(self) -> None:
        """Warn if the last checkpoint could not be written. If it is being written, do nothing."""
        if self._idle:
            self.settle()

    def begin(self, take: Callable[[], RunSnapshot]) -> None:
        """Take a checkpoint now by calling ``take``, and write it in the background.

        If ``take`` raises a `StoreError`, the checkpoint is skipped, with a warning. This happens
        if weights in flight cannot be read, or the journal cannot be written.
        """
        self.settle()
        self._due_at = time.monotonic() + self._every_s
        try:
            self._writing = self._thread.submit(self._write, take())
        except StoreError as error:
            self._fail(f"a checkpoint could not be taken: {error}")

    def end(self, take: Callable[[], RunSnapshot]) -> None:
        """Take a checkpoint and wait until it is on the disk or has failed."""
        self.begin(take)
        self.settle()

    def settle(self) -> None:
        """Wait until the checkpoint in progress is on the disk. If it has failed, warn."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            try:
                writing.result()
            except OSError as error:
                what = error.strerror or error
                self._fail(f"a checkpoint could not be written to {self._folder.root}: {what}")

    def close(self) -> None:
        """Wait for the checkpoint in progress, and then end the thread."""
        self.settle()
        self._thread.shutdown()

    def _fail(self, why: str) -> None:
        self.failure = why
        self._warn(why)

    def _write(self, snapshot: RunSnapshot) -> None:
        self._folder.write(snapshot)
        self.latest = snapshot.rounds
