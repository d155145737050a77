"""A workload whose weights are the parts that have been applied, and workers that name theirs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqgc.ports import Decoding, FloatArray, MiniTask, WeightedPoints, WeightRef

__all__ = ["Applied", "all_parts", "named"]


class Applied:
    """Takes each part once, and only what the worker computed of it; jobs begin in order.

    Where parts ``may_repeat`` they say so, and do not once their job has ended.
    """

    def __init__(self, n: int, *, may_repeat: bool = False) -> None:
        self._n, self.begun, self._may_repeat = n, 0, may_repeat
        self.parts: list[tuple[int, int]] = []
        self.ended: list[int] = []

    def needs(self, job: int, finished: int) -> bool:  # noqa: ARG002 (all that there is)
        return True

    def begin(self, job: int) -> None:
        assert job == self.begun
        self.begun += 1

    def result_form(self, job: int) -> None:
        """As the first one's."""

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        (part,) = mini_task.chunks.tolist()
        assert self._may_repeat or (mini_task.job, part) not in self.parts
        assert mini_task.job not in self.ended
        ref = WeightRef(model="m", version=mini_task.job, digest="0" * 64, dtype="float64", size=2)
        points, one = np.array([part]), np.ones(1)
        return (WeightedPoints(model="m", weights=ref, points=points, coefficients=one),)

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        assert decoding.part is not None
        assert decoding.part.of == self._n
        part = (decoding.job, decoding.part.index)
        np.testing.assert_array_equal(gradient, part)
        assert decoding.part.again == (part in self.parts)
        assert decoding.job not in self.ended
        self.parts.append(part)
        assert (decoding.ends is not None) == self._may_repeat
        self.ended += decoding.ends or ()


def all_parts(jobs: int, n: int) -> list[tuple[int, int]]:
    return [(job, part) for job in range(jobs) for part in range(n)]


def named(parts: Sequence[WeightedPoints]) -> FloatArray:
    """A result that says what it is of."""
    (part,) = parts
    return np.array([float(part.weights.version), float(part.points[0])])
