"""`TableWorker`, which computes the changes of tables in a worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np

from seqgc._fault import fault_of
from seqgc.errors import ParameterError, reraise_stop
from seqgc.ports import (
    Flaw,
    FlawedResult,
    FloatArray,
    IntArray,
    WeightedPoints,
    WeightRef,
    WeightStore,
)
from seqgc.tables._app import App, Shapes, TableLayout

__all__ = ["MODEL", "TableWorker"]

MODEL: Final = "tables"
"""The name of the tables in stores and in messages."""

_Compute: TypeAlias = Callable[[tuple[WeightedPoints, ...]], FloatArray]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableWorker:
    """A factory of the workers' compute function for an app (`seqgc.worker.ComputeFactory`).

    ``starts`` (chunks,) are the first items of the chunks into which the items are cut. Each chunk
    is processed ``passes`` times, on its own copy of the tables that the task reads. The result of
    a chunk is the difference that this makes, (size,), in float64. The result of a task is the sum
    of its chunks' results, times their coefficients.
    """

    app: App
    shapes: Shapes
    store: WeightStore
    starts: IntArray
    seed: int
    passes: int

    def __call__(self) -> _Compute:
        layout, latest = TableLayout(self.shapes), dict[WeightRef, FloatArray]()

        def compute(parts: tuple[WeightedPoints, ...]) -> FloatArray:
            (part,) = parts
            if part.weights not in latest:
                latest.clear()
                latest[part.weights] = self.store.fetch(part.weights)
            try:
                return self._change(part, latest[part.weights], layout)
            except BaseException as error:  # raised by the user's own code
                reraise_stop(error)
                flaw = Flaw(kind="raised", why=fault_of(error))
                raise FlawedResult(np.zeros(layout.size), {MODEL: flaw}) from error

        return compute

    def _change(self, part: WeightedPoints, base: FloatArray, layout: TableLayout) -> FloatArray:
        points, total = part.points, np.zeros(layout.size)
        chunks = np.searchsorted(self.starts, points, side="right")
        borders = [0, *(np.flatnonzero(np.diff(chunks)) + 1).tolist(), len(points)]
        for start, end in pairwise(borders):
            if start == end:
                continue
            vector = base.copy()
            tables = layout.views(vector)
            before = dict(tables)
            for number in range(self.passes):
                key = [self.seed, part.weights.version, int(points[start]), number]
                items = points[start:end].copy()
                self.app.process(tables, items, np.random.default_rng(key))
            if tables.keys() != before.keys() or any(tables[k] is not before[k] for k in before):
                changed = [k for k in tables if tables[k] is not before.get(k)]
                rule = "must change tables in place, as in tables[name][...] = values"
                raise ParameterError("process", rule, changed or "a table was removed")
            for table in tables.values():  # changes by a later call would be lost
                table.flags.writeable = False
            vector -= base
            total += part.coefficients[start] * vector
        return total
