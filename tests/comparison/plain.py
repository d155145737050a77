"""Softmax regression as the workload of a live run: every worker computes its own results.

It is the oracle of trainings in `seqgc.comparison`, which compute nothing in the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from seqgc import master
from seqgc.comparison import SoftmaxProblem
from seqgc.ports import Decoding, FloatArray, MiniTask, WeightedPoints, WeightRef
from seqgc.rounds import Setting, policy_of
from seqgc.virtual import VirtualBackend

__all__ = ["PlainTraining"]


class PlainTraining:
    """One training of ``models`` models that take turns, for ``steps`` steps of each.

    ``losses`` are those of the worst model each time that a clock of data is complete, at the times
    ``at_s``. ``lacks`` are the clocks that the weights of each mini-task lack.
    """

    def __init__(
        self,
        setting: Setting,
        make_backend: Callable[..., VirtualBackend],
        problem: SoftmaxProblem,
        *,
        lr: float,
        models: int,
        steps: int,
    ) -> None:
        self._problem, self._lr, self._stale = problem, lr, setting.scheme.kind == "stale"
        self._weights = [problem.start() for _ in range(models)]
        self._read: list[FloatArray] = []  # by version
        self._fixed: dict[int, FloatArray] = {}
        self._steps, self._applied = [0.0] * models, 0.0
        self._ends = np.cumsum(setting.scheme.cut(problem.batch))
        self.losses, self.at_s, self.lacks = list[float](), list[float](), list[float]()
        self._backend = make_backend(self._compute)
        master.run(policy_of(setting, num_jobs=steps * models), self._backend, self)

    def needs(self, job: int, finished: int) -> bool:  # noqa: ARG002
        return True

    def begin(self, job: int) -> None:
        self._fixed[job] = self._weights[job % len(self._weights)]

    def result_form(self, job: int) -> None:
        pass

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        job, model = mini_task.job, mini_task.job % len(self._weights)
        step = job // len(self._weights)
        self._read.append(self._weights[model] if self._stale else self._fixed[job])
        self.lacks.append(max(0.0, step - self._steps[model]) if self._stale else 0.0)
        sizes = np.diff(self._ends, prepend=0)[mini_task.chunks]
        ends = self._ends[mini_task.chunks]
        places = [np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        name, version = f"model-{model}", len(self._read) - 1
        ref = WeightRef(model=name, version=version, digest="", dtype="float64", size=650)
        points = self._problem.points(step=step)[np.concatenate(places)]
        shares = np.repeat(mini_task.coefficients, sizes) / self._problem.batch
        return (WeightedPoints(model=name, weights=ref, points=points, coefficients=shares),)

    def _compute(self, parts: Sequence[WeightedPoints]) -> FloatArray:
        (part,) = parts
        weights = self._read[part.weights.version]
        return self._problem.gradient(weights, part.points, part.coefficients)

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        model = decoding.job % len(self._weights)
        self._weights[model] = self._weights[model] - self._lr * gradient
        self._steps[model] += decoding.share
        before, self._applied = self._applied, self._applied + decoding.share
        if int(self._applied + 1e-9) > int(before + 1e-9):
            self.losses.append(max(map(self._problem.loss, self._weights)))
            self.at_s.append(self._backend.now)
