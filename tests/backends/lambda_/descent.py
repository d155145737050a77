"""Least squares by gradient descent, as a numpy workload: its weights go through a store."""

from __future__ import annotations

import numpy as np

from lambda_handlers.gradient_worker.numpy_factories import least_squares_data
from seqgc.ports import BlobStore, Decoding, FloatArray, MiniTask, WeightedPoints, WeightRef
from seqgc.schemes import Scheme
from seqgc.wire import WorkloadRef

SETTINGS = {"points": 96, "features": 5, "seed": 4}
RATE = 0.5


class Descent:
    """Job t steps from weights that know the gradients up to job ``t - 1 - delay``."""

    def __init__(self, scheme: Scheme, store: BlobStore) -> None:
        self._scheme, self._store = scheme, store
        edges = np.cumsum([0.0, *scheme.chunk_fractions]) * SETTINGS["points"]
        self._chunks = [
            np.arange(a, b) for a, b in zip(np.rint(edges), np.rint(edges[1:]), strict=False)
        ]
        self._refs: dict[int, WeightRef] = {}
        self.gradients: dict[int, FloatArray] = {}
        self.weights = np.zeros(SETTINGS["features"])

    @property
    def ref(self) -> WorkloadRef:
        return WorkloadRef(name="least-squares", settings=dict(SETTINGS))

    def result_form(self, job: int) -> None:  # noqa: ARG002 (the protocol's)
        return None

    def needs(self, job: int, finished: int) -> bool:
        return finished < job - self._scheme.delay

    def begin(self, job: int) -> None:
        if (known := job - 1 - self._scheme.delay) >= 0:
            self.weights = self.weights - RATE * self.gradients[known]
        self._refs[job] = self._store.publish("w", job, self.weights)

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        points = [self._chunks[chunk].astype(np.intp) for chunk in mini_task.chunks]
        shares = [
            np.full(len(each), coefficient / SETTINGS["points"])
            for each, coefficient in zip(points, mini_task.coefficients, strict=True)
        ]
        return (
            WeightedPoints(
                model="w",
                weights=self._refs[mini_task.job],
                points=np.concatenate(points),
                coefficients=np.concatenate(shares),
            ),
        )

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        assert decoding.job not in self.gradients, f"job {decoding.job} finished twice"
        self.gradients[decoding.job] = gradient


def undisturbed(jobs: int, *, delay: int) -> list[FloatArray]:
    """Return the gradients that one machine, which never fails, would compute."""
    x, y = least_squares_data(**SETTINGS)
    weights, gradients = np.zeros(SETTINGS["features"]), []
    for job in range(jobs):
        if (known := job - 1 - delay) >= 0:
            weights = weights - RATE * gradients[known]
        gradients.append((x @ weights - y) @ x / SETTINGS["points"])
    return gradients
