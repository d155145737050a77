"""Rounds of long answers: each chunk's gradient is a vector of ones, a job's is their number."""

from __future__ import annotations

import numpy as np

from seqgc.ports import Decoding, FloatArray, MiniTask, Task, WeightedPoints, WeightRef, WorkItem
from seqgc.wire import WorkloadRef


class Constant:
    """A workload of ``size`` float32 parameters: 400 KB are 100,000."""

    def __init__(self, size: int) -> None:
        self.ref = WorkloadRef(name="constant", settings={"size": size, "dtype": "float32"})
        self.gradients: dict[int, FloatArray] = {}
        self._weights = WeightRef(model="m", version=0, digest="0" * 64, dtype="float32", size=size)

    def task(self, round: int, worker: int) -> Task:
        part = self._part(np.arange(16), np.full(16, 1 / 16))
        items = (WorkItem(slot=0, parts=(part,)),)
        return Task(round=round, worker=worker, attempt=0, items=items)

    def result_form(self, job: int) -> None:  # noqa: ARG002 (the protocol's)
        return None

    def needs(self, job: int, finished: int) -> bool:  # noqa: ARG002 (the protocol's)
        return False

    def begin(self, job: int) -> None:
        """Begin nothing: there are no weights."""

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        return (self._part(mini_task.chunks, mini_task.coefficients),)

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        self.gradients[decoding.job] = gradient

    def _part(self, points: np.ndarray, coefficients: FloatArray) -> WeightedPoints:
        return WeightedPoints(
            model="m", weights=self._weights, points=points, coefficients=coefficients
        )
