"""Softmax regression on digits, really trained in virtual time.

The staleness of a gradient determines its value, and no formula gives this value. So the models are
trained with the policy and the loop of a live run, while a virtual clock determines when each
answer arrives. Gradients are therefore exactly as stale as in a live run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from seqgc._digits import digit_images
from seqgc.comparison._training import LossWatch
from seqgc.errors import require_int
from seqgc.ports import Decoding, FloatArray, IntArray, MiniTask, WeightedPoints, WeightRef
from seqgc.rounds import Setting

__all__ = ["SoftmaxProblem", "SoftmaxTrainees", "SoftmaxWorkload", "diverging", "exact_curve"]

diverging = np.errstate(over="ignore", invalid="ignore")
"""Decorator of functions that overflow when training diverges, which their result shows."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SoftmaxProblem:
    """Softmax regression on 1,797 handwritten digits, from weights of 0, in float64.

    Batches have ``batch`` points, drawn with ``seed`` for each step, without replacement. The
    points of a step do not depend on the worker or the time of its computation.

    Raises
    ------
    ParameterError
        If ``batch`` is not from 1 to 1,797, or the digits' package is not installed.

    Examples
    --------
    >>> problem = SoftmaxProblem(batch=1024, seed=0)
    >>> weights = problem.start()
    >>> round(problem.loss(weights), 3)   # ln 10
    2.303
    >>> points = problem.points(step=0)
    >>> gradient = problem.gradient(weights, points, np.full(1024, 1 / 1024))
    >>> problem.loss(weights - 4 * gradient) < 2
    True
    """

    batch: int
    seed: int
    _x: FloatArray = field(init=False, repr=False)  # (1797, 65), shared by all problems
    _y: npt.NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        x, labels = _digits()
        require_int("batch", self.batch, least=1, most=len(labels))
        require_int("seed", self.seed, least=0)
        object.__setattr__(self, "_x", x)
        object.__setattr__(self, "_y", labels)

    def start(self) -> FloatArray:
        """Return the initial weights (650,)."""
        return np.zeros(650)

    def points(self, *, step: int) -> IntArray:
        """Return the points (batch,) of a step."""
        rng = np.random.default_rng([self.seed, step])
        return rng.choice(len(self._y), self.batch, replace=False)

    @diverging
    def loss(self, weights: FloatArray) -> float:
        """Return the mean cross-entropy of all points."""
        scores = self._x @ weights.reshape(65, 10)
        scores -= scores.max(axis=1, keepdims=True)
        of_labels = scores[np.arange(len(scores)), self._y]
        return float(np.mean(np.log(np.exp(scores).sum(axis=1)) - of_labels))

    @diverging
    def gradient(self, weights: FloatArray, points: IntArray, shares: FloatArray) -> FloatArray:
        """Return the gradient (650,) of the sum of the points' losses, times ``shares`` (m,)."""
        x = self._x[points]
        scores = x @ weights.reshape(65, 10)
        scores -= scores.max(axis=1, keepdims=True)
        errors = np.exp(scores)
        errors /= errors.sum(axis=1, keepdims=True)
        errors[np.arange(len(points)), self._y[points]] -= 1
        errors *= shares[:, None]
        gradient: FloatArray = (x.T @ errors).ravel()
        return gradient


@lru_cache(maxsize=1)  # a megabyte
def _digits() -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """Return all images (1797, 65), with a last column of 1, and their digits, read-only."""
    images, labels = digit_images()
    x = np.ones((len(labels), 65))
    x[:, :64] = images.reshape(len(labels), 64)
    x.flags.writeable = labels.flags.writeable = False
    return x, labels


@diverging
def exact_curve(problem: SoftmaxProblem, *, lr: float, target: float, most: int) -> FloatArray:
    """Return the losses (steps + 1,) of plain training, to the target or for ``most`` steps.

    Every exact defence has these losses.
    """
    weights = problem.start()
    losses, shares = [problem.loss(weights)], np.full(problem.batch, 1 / problem.batch)
    while losses[-1] > target and len(losses) <= most:
        step = len(losses) - 1
        weights -= lr * problem.gradient(weights, problem.points(step=step), shares)
        losses.append(problem.loss(weights))
    return np.array(losses)


@dataclass(slots=True, eq=False)
class _WeightVersion:
    weights: FloatArray
    tasks: int = 0  # that have yet to read the weights


@dataclass(slots=True, eq=False)
class _Model:
    weights: FloatArray
    applied: float = 0.0  # steps, as shares of a batch
    version: int = 0
    in_use: dict[int, _WeightVersion] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SoftmaxTrainees:
    """A number of equal problems, ``models``, trained by plain gradient descent."""

    problem: SoftmaxProblem
    models: int

    def check(self, setting: Setting) -> None:
        """Accept any defence."""

    def workload(
        self,
        setting: Setting,
        *,
        lr: float,
        target: float,
        until_s: float = math.inf,
        most: int,  # noqa: ARG002 (there is no schedule of learning rates)
    ) -> SoftmaxWorkload:
        """Return a new training."""
        return SoftmaxWorkload(self, setting=setting, lr=lr, target=target, until_s=until_s)

    def loss(self) -> float:
        """Return the loss of each model before any step."""
        return self.problem.loss(self.problem.start())

    def exact_steps(self, *, lr: float, target: float, most: int) -> float:
        """Return the steps of plain training to the target, which are equal for all models.

        Infinite if the target is not reached.
        """
        losses = exact_curve(self.problem, lr=lr, target=target, most=most)
        return len(losses) - 1 if losses[-1] <= target else math.inf


class SoftmaxWorkload:
    """The training of `SoftmaxTrainees`, bundle by bundle in turn; a `TrialWorkload`.

    If jobs arrive in parts, the weights of a task contain all updates so far; otherwise the weights
    of a job are fixed when it begins. A model that diverges ends the training before the target.
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
        """Return true: all decoded gradients must be applied before tasks leave."""
        return True

    def begin(self, job: int) -> None:
        """Draw a job's batch, and fix its weights unless the job arrives in parts."""
        self._points[job] = self._problem.points(step=self._step(job))
        if not self._in_parts:
            self._fixed[job] = [model.version for model in self._members(job).values()]

    def result_form(self, job: int) -> None:  # noqa: ARG002 (as the first one's)
        """Return nothing, because all results have the same form."""
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
            model.in_use.setdefault(version, _WeightVersion(model.weights)).tasks += 1
            lacks = self._step(job) - model.applied if self._in_parts else 0.0
            self.staleness.append(max(0.0, lacks))
            name = f"model-{index}"
            ref = WeightRef(model=name, version=version, digest="", dtype="float64", size=650)
            part = WeightedPoints(model=name, weights=ref, points=points, coefficients=shares)
            parts.append(part)
        return tuple(parts)

    def compute(self, parts: Sequence[WeightedPoints]) -> FloatArray:
        """Return a mini-task's result, (650,) for each model in turn."""
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
        """Take a step, or a part of one, with each model of the bundle."""
        members = self._members(decoding.job).values()
        for model, slope in zip(members, np.split(gradient, self._bundle), strict=True):
            model.weights = model.weights - self._lr * slope
            model.version += 1
            model.applied += decoding.share
        self.watch.apply(decoding.share * self._bundle)

    def park(self, names: Sequence[str], *, why: str, kind: object = None) -> None:  # noqa: ARG002
        """End the run, because one of its models has diverged."""
        self.watch.fail(names[0], why)

    def _loss(self) -> float:
        return max(self._problem.loss(model.weights) for model in self._models)

    def _step(self, job: int) -> int:
        return job * self._bundle // len(self._models)

    def _members(self, job: int) -> dict[int, _Model]:
        """Return the models whose gradients form the job, by number."""
        first = job * self._bundle % len(self._models)
        return {index: self._models[index] for index in range(first, first + self._bundle)}
