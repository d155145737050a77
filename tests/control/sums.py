"""A workload whose batches are cut as the shares of each round are."""

from __future__ import annotations

import numpy as np

from seqgc.ports import Decoding, FloatArray, MiniTask, WeightedPoints, WeightRef
from seqgc.rounds import SwitchingPolicy


class Sums:
    """Jobs whose gradient is the sum of the numbers of their batch's points, from 0 on."""

    def __init__(self, policy: SwitchingPolicy, *, batch: int) -> None:
        self._policy, self._batch = policy, batch
        self.done: list[int] = []
        self.largest = 0  # points of a mini-task

    def needs(self, job: int, finished: int) -> bool:
        return finished < job

    def begin(self, job: int) -> None:
        sizes = self._policy.scheme_of(job).cut(self._batch)
        self._ends = np.cumsum(sizes)

    def result_form(self, job: int) -> None:  # noqa: ARG002 (the protocol's)
        return None

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        (chunk,) = mini_task.chunks.tolist()
        begin = 0 if chunk == 0 else int(self._ends[chunk - 1])
        points = np.arange(begin, int(self._ends[chunk]))
        self.largest = max(self.largest, len(points))
        ref = WeightRef(model="m", version=0, digest="0" * 64, dtype="float64", size=1)
        return (
            WeightedPoints(
                model="m", weights=ref, points=points, coefficients=np.ones(len(points))
            ),
        )

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        assert gradient.tolist() == [self._batch * (self._batch - 1) / 2]
        assert decoding.job == len(self.done)
        self.done.append(decoding.job)


def summed(parts: tuple[WeightedPoints, ...]) -> FloatArray:
    return np.array([float(parts[0].coefficients @ parts[0].points)])
