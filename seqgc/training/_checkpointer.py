"""When checkpoints of a run are taken, and by whom they are written."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np
import torch

from seqgc._durable import is_full
from seqgc.errors import ParameterError, StoreError
from seqgc.ports import IntArray
from seqgc.training._counts import RunCounts
from seqgc.training._models import FLIGHT
from seqgc.training._packing import PackedJob
from seqgc.training._room import Room, room_bytes
from seqgc.training.adaptive import DirectorState
from seqgc.training.metrics import JobMetrics
from seqgc.training.rundir import Written
from seqgc.training.slowdown import SlowdownState
from seqgc.training.snapshots import Snapshot, SnapshotFolder
from seqgc.training.workload import WorkloadState

__all__ = ["Checkpointer", "RunSnapshot", "RunState"]

_ROOM = ".room"
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

    It keeps `Room` for the last one, and for the trained weights of the ``models``. ``warn`` is
    told in one line when one could not be taken or written, where the ones before stay, or when
    there is no such room.
    """

    def __init__(
        self,
        folder: SnapshotFolder[RunState],
        *,
        every_s: float,
        models: Sequence[str],
        warn: Callable[[str], None],
    ) -> None:
        self._folder, self._every_s, self._warn = folder, every_s, warn
        self._room = Room(folder.root / _ROOM)
        self._again = [f"{name}{of}.safetensors" for name in models for of in ("", ".best")]
        self._again.append(FLIGHT)
        self._due_at = -1.0
        self._writing: Future[None] | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self._shortage = ""
        self._warned = False
        self._measured = False
        self.latest: int | None = None  # rounds; of the last that is on the disk
        self.failure = ""  # of the last that could not be taken or written

    @property
    def due(self) -> bool:
        """Whether it is time for one; the first is due at once."""
        return self._idle and time.monotonic() >= self._due_at

    @property
    def _idle(self) -> bool:
        return self._writing is None or self._writing.done()

    @property
    def unmeasured(self) -> bool:
        """Whether it is yet to be seen what the last one will need, and could be now."""
        return self._idle and not self._measured

    def look(self) -> None:
        """Say what has failed by now."""
        if self._writing is not None and self._idle:
            self.settle()

    def begin(self, take: Callable[[], RunSnapshot]) -> None:
        """Take one now, and have it written beside whatever goes on.

        If the store cannot be read, where weights in flight are, the next is taken in its turn.
        """
        self._due_at = time.monotonic() + self._every_s
        self._begin(take, self._write)

    def measure(self, take: Callable[[], RunSnapshot]) -> None:
        """Take one now only for the room that the last one will need, when all have stepped."""
        self._measured = True
        self._begin(take, self._keep_room)

    def end(self, take: Callable[[], RunSnapshot]) -> None:
        """Take the last one, in the room that was kept for it; wait until it is written."""
        self.give_room_back()
        self._begin(take, self._write)
        self.settle()

    def settle(self) -> None:
        """Wait until what is being written is on the disk, or has failed; say what has failed."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            try:
                writing.result()
            except OSError as error:
                what = error.strerror or error
                self._fail(f"a checkpoint could not be written to {self._folder.shown}: {what}")
        if self._shortage and not self._warned:
            self._warned = True
            self._warn(self._shortage)

    def give_room_back(self) -> None:
        """Let what comes from now on have the room: the run ends."""
        self.settle()  # not what is being written
        self._room.give_back(to_another=bool(self._folder.lost()))

    def close(self) -> None:
        """Wait for the last one; nothing more is written."""
        self.give_room_back()
        self._thread.shutdown()

    def _begin(self, take: Callable[[], RunSnapshot], do: Callable[[RunSnapshot], None]) -> None:
        self.settle()
        try:
            self._writing = self._thread.submit(do, take())
        except StoreError as error:
            self._fail(f"a checkpoint could not be taken: {error}")

    def _fail(self, why: str) -> None:
        self.failure = why
        self._warn(why)

    def _write(self, snapshot: RunSnapshot) -> None:
        try:
            self._write_in_room(snapshot)
            self.latest = snapshot.rounds
        finally:
            self._keep_room(snapshot)

    def _write_in_room(self, snapshot: RunSnapshot) -> None:
        while True:
            try:
                self._folder.write(snapshot)
                return
            except OSError as error:
                if not (is_full(error) and self._make_room()):
                    raise

    def _make_room(self) -> bool:
        """Give up checkpoints that are of no use, or at the end the last but one, if there are."""
        if self._folder.lost():
            return False  # they are another master's
        if self._folder.remove_useless():
            return True
        is_last = self.latest is not None and self._room.is_over
        return is_last and self._folder.keep_only(self.latest)  # of the last two one will do

    def _keep_room(self, snapshot: RunSnapshot) -> None:
        if self._folder.lost():
            return
        size = room_bytes(snapshot, again=self._again)
        try:
            self._room.keep(size)
        except OSError as error:
            self._shortage = (
                f"{self._folder.shown}: no room for the last checkpoint and the trained weights "
                f"({size:,} bytes: {error.strerror or error}): should the disk become full, the "
                "run may have to go back to a checkpoint before"
            )
