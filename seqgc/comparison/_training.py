"""A real training in virtual time: true gradients, of the weights that workers would have had.

How stale a gradient is decides how much it is worth, and no formula says how much. So the models
are trained, by the policy and the loop of a live run, while a virtual clock says when each answer
comes. What is stale here is exactly as stale as it would be live.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from seqgc.comparison._curve import LossWatch
from seqgc.comparison._problem import SoftmaxProblem, diverging
from seqgc.ports import Decoding, FloatArray, IntArray, MiniTask, WeightedPoints, WeightRef
from seqgc.rounds import Setting

__all__ = ["SoftmaxTrainees", "SoftmaxWorkload", "exact_curve"]


@diverging
def exact_curve(problem: SoftmaxProblem, *, lr: float, target: float, most: int) -> FloatArray:
    """Return the losses (steps + 1,) of plain training, to the target or for ``most`` steps.

    Every exact defence has these, whoever computes its gradients.
    """
    weights = problem.start()
    losses, shares = [problem.loss(weights)], np.full(problem.batch, 1 / problem.batch)
    while losses[-1] > target and len(losses) <= most:
        step = len(losses) - 1
        weights -= lr * problem.gradient(weights, problem.points(step=step), shares)
        losses.append(problem.loss(weights))
    return np.array(losses)


@dataclass(slots=True, eq=False)
class _Version:
    weights: FloatArray
    tasks: int = 0  # that are yet to read them


@dataclass(slots=True, eq=False)
class _Model:
    weights: FloatArray
    applied: float = 0.0  # steps, as shares of a batch
    version: int = 0
    in_use: dict[int, _Version] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SoftmaxTrainees:
    """``models`` equal problems, trained by plain gradient descent."""

    problem: SoftmaxProblem
    models: int

    def check(self, setting: Setting) -> None:
        """Do nothing: any defence will do."""

    def workload(
        self,
        setting: Setting,
        *,
        lr: float,
        target: float,
        until_s: float = math.inf,
        most: int,  # noqa: ARG002 (there is no schedule of learning rates)
    ) -> SoftmaxWorkload:
        """Return a training from the start."""
        return SoftmaxWorkload(self, setting=setting, lr=lr, target=target, until_s=until_s)

    def loss(self) -> float:
        """Return the loss of each before any step."""
        return self.problem.loss(self.problem.start())

    def exact_steps(self, *, lr: float, target: float, most: int) -> float:
        """Return the steps of plain training, or infinity: those of one are those of all."""
        losses = exact_curve(self.problem, lr=lr, target=target, most=most)
        return len(losses) - 1 if losses[-1] <= target else math.inf


class SoftmaxWorkload:
    """Trains `SoftmaxTrainees`, bundle by bundle in turn; a `TrialWorkload`.

    Where jobs come in parts, the weights of a task hold all updates that have arrived by then; else
    those of a job are fixed as it begins. A model that diverges ends it: so it comes to no target.
    """

    def __init__(
        self,
        trainees: SoftmaxTrainees,
        *,
        setting: Setting,
        lr: float,
        target: float,
        until_s: float,
    ) -> None:
        self._problem, self._lr = trainees.problem, lr
        self._in_parts = setting.scheme.kind == "stale"
        cut = np.cumsum([0, *setting.scheme.cut(self._problem.batch).tolist()])
        self._chunks = [np.arange(first, end) for first, end in pairwise(cut)]
        self._models = [_Model(self._problem.start()) for _ in range(trainees.models)]
        self._bundle = setting.jobs_per_round
        self._points: dict[int, IntArray] = {}  # by job
        self._fixed: dict[int, list[int]] = {}  # versions of the bundle's models, by job
        self.watch = LossWatch(self._loss, target=target, until_s=until_s)
        self.staleness: list[float] = []

    def needs(self, job: int, finished: int) -> bool:  # noqa: ARG002 (whichever they are)
        """Say that all that is decoded is to be handed over before tasks leave."""
        return True

    def begin(self, job: int) -> None:
        """Draw a job's batch; fix its weights, unless it comes in parts."""
        self._points[job] = self._problem.points(step=self._step(job))
        if not self._in_parts:
            self._fixed[job] = [model.version for model in self._members(job).values()]

    def result_form(self, job: int) -> None:  # noqa: ARG002 (as the first one's)
        """Return nothing: all results are alike."""
        return

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        """Return the points of a mini-task, and each model's weights for them."""
        job, members = mini_task.job, self._members(mini_task.job)
        versions = self._fixed.get(job) or [model.version for model in members.values()]
        places = [self._chunks[chunk] for chunk in mini_task.chunks]
        sizes = [len(each) for each in places]
        shares = np.repeat(mini_task.coefficients, sizes) / self._problem.batch
        points = self._points[job][np.concatenate(places)]
        parts = []
        for (index, model), version in zip(members.items(), versions, strict=True):
            model.in_use.setdefault(version, _Version(model.weights)).tasks += 1
            lacks = self._step(job) - model.applied if self._in_parts else 0.0
            self.staleness.append(max(0.0, lacks))
            name = f"model-{index}"
            ref = WeightRef(model=name, version=version, digest="", dtype="float64", size=650)
            part = WeightedPoints(model=name, weights=ref, points=points, coefficients=shares)
            parts.append(part)
        return tuple(parts)

    def compute(self, parts: Sequence[WeightedPoints]) -> FloatArray:
        """Return a mini-task's result, (650,) of each model one after the other."""
        return np.concatenate([self._gradient(part) for part in parts])

    def _gradient(self, part: WeightedPoints) -> FloatArray:
        model = self._models[int(part.weights.model.removeprefix("model-"))]
        version = model.in_use[part.weights.version]
        version.tasks -= 1
        if version.tasks == 0 and part.weights.version != model.version:
            del model.in_use[part.weights.version]
        return self._problem.gradient(version.weights, part.points, part.coefficients)

    @diverging
    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        """Take a step along a gradient, or a part of one, with each model of the bundle."""
        members = self._members(decoding.job).values()
        for model, slope in zip(members, np.split(gradient, self._bundle), strict=True):
            model.weights = model.weights - self._lr * slope
            model.version += 1
            model.applied += decoding.share
        self.watch.apply(decoding.share * self._bundle)

    def park(self, names: Sequence[str], *, why: str, kind: object = None) -> None:  # noqa: ARG002
        """End the run: one of its models has diverged."""
        self.watch.fail(names[0], why)

    def _loss(self) -> float:
        return max(self._problem.loss(model.weights) for model in self._models)

    def _step(self, job: int) -> int:
        return job * self._bundle // len(self._models)

    def _members(self, job: int) -> dict[int, _Model]:
        """Return the models whose gradients are one job, by number."""
        first = job * self._bundle % len(self._models)
        return {index: self._models[index] for index in range(first, first + self._bundle)}
