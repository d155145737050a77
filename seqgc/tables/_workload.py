"""`TableWorkload`, which keeps the tables of a run, and adds the workers' changes to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from seqgc.errors import ScheduleError
from seqgc.ports import (
    Decoding,
    FloatArray,
    IntArray,
    MiniTask,
    Part,
    ResultForm,
    WeightedPoints,
    WeightRef,
    WeightStore,
)
from seqgc.schemes import Defence
from seqgc.tables._compute import MODEL

__all__ = ["TableWorkload"]


class TableWorkload:
    """A `seqgc.ports.Workload` whose jobs are clocks of an app, and whose weights are its tables.

    ``vector`` (size,) are the numbers of the tables at the beginning, which are copied. ``items``
    is the number of items. With an exact defence, all tasks of a clock read the tables after the
    clock before. With a stale one, each part is added when it arrives, and a task reads the newest
    tables. The number of a version is the number of parts that have been added, with ``n`` parts in
    a clock.

    Examples
    --------
    >>> from seqgc.schemes import Uncoded
    >>> from seqgc.stores import MemoryStore
    >>> workload = TableWorkload(np.zeros(2), Uncoded(n=2), items=5, store=MemoryStore())
    >>> workload.begin(0)
    >>> half = MiniTask(job=0, slot=0, chunks=np.array([1]), coefficients=np.ones(1), cover=0)
    >>> (part,) = workload.resolve(half)
    >>> part.points, part.weights.version
    (array([2, 3, 4]), 0)
    >>> workload.finish(Decoding(job=0, terms=()), np.array([1.0, 2.0]))
    >>> workload.vector, workload.version
    (array([1., 2.]), 2)
    """

    def __init__(
        self, vector: FloatArray, defence: Defence, *, items: int, store: WeightStore
    ) -> None:
        self.vector: Final = np.array(vector, dtype=np.float64)
        self.version = 0
        self._n, self._store = defence.n, store
        self._is_stale = defence.kind == "stale"
        ends = np.cumsum(defence.cut(items))
        self._chunks = np.split(np.arange(items), ends[:-1])
        self._begun = 0
        self._published: list[WeightRef] = []
        self._reads: dict[tuple[int, int | None], set[WeightRef]] = {}  # by job and part
        self._parts: dict[int, dict[int, FloatArray]] = {}  # by job, of an exact defence

    @property
    def starts(self) -> IntArray:
        """The first items of the chunks, (chunks,); chunks without items are left out."""
        return np.array([chunk[0] for chunk in self._chunks if len(chunk)])

    def needs(self, job: int, finished: int) -> bool:  # noqa: ARG002 (tasks read all that arrived)
        return True

    def begin(self, job: int) -> None:
        if job != self._begun:
            raise ScheduleError(f"clock {job} cannot begin: the next clock is {self._begun}")
        self._begun = job + 1

    def result_form(self, job: int) -> ResultForm:  # noqa: ARG002 (all clocks are alike)
        return ResultForm(dtype=np.dtype(np.float64), size=len(self.vector))

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        """Return the items of a mini-task, and the tables that it must read."""
        weights = self._publish()
        self._reads.setdefault((mini_task.job, mini_task.cover), set()).add(weights)
        chunks = [self._chunks[chunk] for chunk in mini_task.chunks]
        sizes = [len(chunk) for chunk in chunks]
        part = WeightedPoints(
            model=MODEL,
            weights=weights,
            points=np.concatenate(chunks),
            coefficients=np.repeat(mini_task.coefficients, sizes),
        )
        return (part,)

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        """Add the changes of a clock, or of a part of it, to the tables."""
        job, part = decoding.job, decoding.part
        if part is None:
            self._add(gradient, parts=self._n)
            self._forget(job)
        elif self._is_stale:
            self._add(gradient, parts=1)
            self._forget(job, part)
        else:
            arrived = self._parts.setdefault(job, {})
            arrived[part.index] = gradient
            if len(arrived) == part.of:  # in a fixed order, so that the sum has the same bits
                total = np.zeros_like(self.vector)
                for index in range(part.of):
                    total += arrived[index]
                self._add(total, parts=self._n)
                del self._parts[job]
                self._forget(job)

    def _add(self, change: FloatArray, *, parts: int) -> None:
        np.add(self.vector, change, out=self.vector)
        self.version += parts

    # ---- published versions ----------------------------------------------------------------------

    def _publish(self) -> WeightRef:
        """Return a reference to the present tables; publish them if they are new."""
        if not self._published or self._published[-1].version != self.version:
            self._published.append(self._store.publish(MODEL, self.version, self.vector))
        return self._published[-1]

    def _forget(self, job: int, part: Part | None = None) -> None:
        """Discard the versions that no task reads any more."""
        for key in [key for key in self._reads if key[0] == job]:
            if part is None or key[1] == part.index:
                del self._reads[key]
        needed = {ref for refs in self._reads.values() for ref in refs}
        for ref in [ref for ref in self._published if ref not in needed]:
            self._published.remove(ref)
            self._store.discard(ref)

    # ---- checkpoints -----------------------------------------------------------------------------

    def snapshot(self) -> dict[str, FloatArray]:
        """Return copies of the tables, and of the parts that are not added yet, by name."""
        parts = {
            f"part.{job}.{index}": change
            for job, arrived in self._parts.items()
            for index, change in arrived.items()
        }
        return {"tables": self.vector.copy(), **parts}

    def restore(self, arrays: Mapping[str, FloatArray], *, version: int, begun: int) -> None:
        """Continue from a `snapshot`, with ``begun`` clocks; call this before any other method."""
        self.vector[...] = arrays["tables"]
        self.version, self._begun = version, begun
        for name, change in arrays.items():
            if name.startswith("part."):
                job, index = map(int, name.split(".")[1:])
                self._parts.setdefault(job, {})[index] = change
