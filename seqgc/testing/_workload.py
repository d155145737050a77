"""`ChunkWorkload`: gradients of which a test knows what they should be."""

from __future__ import annotations

from typing import Final

import numpy as np

from seqgc.ports import Decoding, FloatArray, MiniTask, WeightedPoints, WeightRef
from seqgc.schemes import Scheme

__all__ = ["ChunkWorkload"]


class ChunkWorkload:
    """A `seqgc.ports.Workload` of one data point a chunk, which checks the gradients it is handed.

    Job t's partial gradients, one for each of the scheme's chunks, are a random matrix of its own
    with rows of ``size`` components; ``compute`` is what a worker does with them. ``begun`` lists
    the jobs that have begun; ``errors[t]`` is the relative error of job t's gradient.

    Examples
    --------
    >>> from seqgc.master import run
    >>> from seqgc.rounds import ClosingRule, RoundPolicy
    >>> from seqgc.schemes import GC
    >>> from seqgc.search import ReplayBackend
    >>> scheme = GC(n=3, s=1)
    >>> workload = ChunkWorkload(scheme, seed=0)
    >>> backend = ReplayBackend(np.array([[1.0, 9.0, 1.5]]), compute=workload.compute)
    >>> run(RoundPolicy(scheme.start(1), ClosingRule(mu=0.5)), backend, workload)
    >>> workload.errors[0] < 1e-12
    True
    """

    def __init__(self, scheme: Scheme, *, seed: int, size: int = 5) -> None:
        self._shape: Final = (len(scheme.chunk_fractions), size)
        self._seed: Final = seed
        self.begun: Final[list[int]] = []
        self.errors: Final[dict[int, float]] = {}

    def partials(self, job: int) -> FloatArray:
        """Return a job's partial gradients, (chunks, size)."""
        return np.random.default_rng([self._seed, job]).normal(size=self._shape)

    def result_form(self, job: int) -> None:
        """Leave it to the first result."""

    def needs(self, job: int, finished: int) -> bool:  # noqa: ARG002 (the protocol's)
        """Say that no job needs another's gradient."""
        return False

    def begin(self, job: int) -> None:
        """Note that a job begins."""
        self.begun.append(job)

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        """Make a chunk's point its number, and the version of the weights the job's."""
        job, size = mini_task.job, self._shape[1]
        ref = WeightRef(model="m", version=job, digest="0" * 64, dtype="float64", size=size)
        points, coefficients = mini_task.chunks, mini_task.coefficients
        return (WeightedPoints(model="m", weights=ref, points=points, coefficients=coefficients),)

    def compute(self, parts: tuple[WeightedPoints, ...]) -> FloatArray:
        """Return a mini-task's result, (size,)."""
        (part,) = parts
        return part.coefficients @ self.partials(part.weights.version)[part.points]

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        """Compare a gradient with the sum of the job's partial ones; once, or `AssertionError`."""
        job = decoding.job
        if job in self.errors:
            raise AssertionError(f"job {job} finished twice")
        direct = self.partials(job).sum(axis=0)
        self.errors[job] = float(np.linalg.norm(gradient - direct) / np.linalg.norm(direct))
