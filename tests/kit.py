"""A numpy workload for tests: job t's partial gradients are a random matrix of its own."""

from __future__ import annotations

import numpy as np

from seqgc.ports import Decoding, Dispatched, FloatArray, MiniTask, WeightedPoints, WeightRef
from seqgc.schemes import Scheme


class ChunkWorkload:
    """One data point per chunk; ``errors[t]`` is the relative error of job t's decoded gradient."""

    def __init__(self, scheme: Scheme, *, seed: int, size: int = 5) -> None:
        self._shape = (len(scheme.chunk_fractions), size)
        self._seed = seed
        self.begun: list[int] = []
        self.errors: dict[int, float] = {}

    def partials(self, job: int) -> FloatArray:
        return np.random.default_rng([self._seed, job]).normal(size=self._shape)

    def result_form(self, job: int) -> None:  # noqa: ARG002 (the protocol's)
        return None

    def needs(self, job: int, finished: int) -> bool:  # noqa: ARG002 (the protocol's)
        return False

    def begin(self, job: int) -> None:
        self.begun.append(job)

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        ref = WeightRef(
            model="m", version=mini_task.job, digest="0" * 64, dtype="float64", size=self._shape[1]
        )
        return (
            WeightedPoints(
                model="m", weights=ref, points=mini_task.chunks, coefficients=mini_task.coefficients
            ),
        )

    def compute(self, parts: tuple[WeightedPoints, ...]) -> FloatArray:
        (part,) = parts
        return part.coefficients @ self.partials(part.weights.version)[part.points]

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        job = decoding.job
        assert job not in self.errors, f"job {job} finished twice"
        direct = self.partials(job).sum(axis=0)
        self.errors[job] = float(np.linalg.norm(gradient - direct) / np.linalg.norm(direct))


def decoded(job: int) -> Decoding:
    """The decoding of a gradient that somebody else has added up."""
    return Decoding(job=job, terms=())


def left(round: int, n: int, *, at: float, attempt: int = 0) -> Dispatched:
    """The tasks of all of n workers left at one instant."""
    return Dispatched(round=round, attempt=attempt, workers=tuple(range(n)), left_at=(at,) * n)
