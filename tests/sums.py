"""A workload of known gradients that costs next to nothing, for runs of very many rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from seqgc.ports import Decoding, FloatArray, MiniTask, WeightedPoints, WeightRef
from seqgc.schemes import Scheme
from seqgc.worker import Compute

_SIZE, _DIGEST = 3, "0" * 64


@dataclass(frozen=True)
class Chunks:
    """A `seqgc.worker.ComputeFactory`: a job's partial gradients are the chunks', times a factor.

    Neighbouring jobs have different factors: no result of one is right for another.
    """

    count: int

    def __call__(self) -> Compute:
        partials = self.partials

        def compute(parts: Sequence[WeightedPoints]) -> FloatArray:
            (part,) = parts
            product: FloatArray = part.coefficients @ partials[part.points]
            return _factor(part.weights.version) * product

        return compute

    @property
    def partials(self) -> FloatArray:
        """The chunks' partial gradients, (count, 3)."""
        return np.random.default_rng(self.count).normal(size=(self.count, _SIZE))


class Sums:
    """A `seqgc.ports.Workload` that checks each gradient which it is handed, and counts them."""

    def __init__(self, scheme: Scheme) -> None:
        self.factory = Chunks(len(scheme.chunk_fractions))
        self.compute = self.factory()
        self._sum = self.factory.partials.sum(axis=0)
        self._tolerance = 1e-9 * float(np.linalg.norm(self._sum))
        self.finished = 0

    def needs(self, job: int, finished: int) -> bool:
        return finished < job

    def begin(self, job: int) -> None:
        pass

    def result_form(self, job: int) -> None:
        pass

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        version = mini_task.job
        ref = WeightRef(model="sums", version=version, digest=_DIGEST, dtype="float64", size=_SIZE)
        part = WeightedPoints(
            model="sums",
            weights=ref,
            points=mini_task.chunks,
            coefficients=mini_task.coefficients,
        )
        return (part,)

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        factor = _factor(decoding.job)
        off = float(np.linalg.norm(gradient - factor * self._sum))
        if not off <= factor * self._tolerance:
            raise AssertionError(f"the gradient of job {decoding.job} is off by {off}")
        self.finished += 1


def _factor(job: int) -> float:
    return 1.0 + job % 11
