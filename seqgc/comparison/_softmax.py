"""Softmax regression on digits, which is trained in virtual time.

The models are trained with the policy and the loop of a live run, while a virtual clock determines
the time at which each answer arrives. Gradients are then exactly as stale as in a live run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from seqgc._digits import digit_images
from seqgc.comparison._training import LossWatch, Race
from seqgc.errors import require_int
from seqgc.ports import Decoding, Dispatch, Finish, FloatArray, IntArray, MiniTask, Seen, Update
from seqgc.rounds import Setting

__all__ = ["SoftmaxProblem", "SoftmaxTrainees", "SoftmaxTrainings", "diverging", "exact_curve"]

diverging = np.errstate(over="ignore", invalid="ignore")
"""A decorator of functions that may overflow if training diverges."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SoftmaxProblem:
    """Softmax regression on 1,797 handwritten digits in float64, with initial weights of 0.

    Batches have ``batch`` points, drawn with ``seed`` for each step, without replacement. The
    points of a step do not depend on workers or on times.

    Raises
    ------
    ParameterError
        If ``batch`` is not from 1 to 1,797, or the package with the digits is not installed.

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
        return draw_points(self.seed, step, self.batch)

    @diverging
    def loss(self, weights: FloatArray) -> float:
        """Return the mean cross-entropy of all points."""
        scores = self._x @ weights.reshape(65, 10)
        scores -= scores.max(axis=1, keepdims=True)
        of_labels = scores[np.arange(len(scores)), self._y]
        return float(np.mean(np.log(np.exp(scores).sum(axis=1)) - of_labels))

    @diverging
    def gradient(self, weights: FloatArray, points: IntArray, shares: FloatArray) -> FloatArray:
        """Return the gradient (650,) of ``sum_k shares[k] * loss(points[k])``, both (m,)."""
        x = self._x[points]
        scores = x @ weights.reshape(65, 10)
        scores -= scores.max(axis=1, keepdims=True)
        errors = np.exp(scores)
        errors /= errors.sum(axis=1, keepdims=True)
        errors[np.arange(len(points)), self._y[points]] -= 1
        errors *= shares[:, None]
        gradient: FloatArray = (x.T @ errors).ravel()
        return gradient


def draw_points(seed: int, step: int, batch: int) -> IntArray:
    """Return the points (batch,) of a step."""
    return np.random.default_rng([seed, step]).choice(len(_digits()[1]), batch, replace=False)


@lru_cache(maxsize=1)  # takes one megabyte
def _digits() -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """Return all images (1797, 65), with a last column of 1, and their digits, read-only."""
    images, labels = digit_images()
    x = np.ones((len(labels), 65))
    x[:, :64] = images.reshape(len(labels), 64)
    x.flags.writeable = labels.flags.writeable = False
    return x, labels


@diverging
def exact_curve(problem: SoftmaxProblem, *, lr: float, target: float, most: int) -> FloatArray:
    """Return the losses (steps + 1,) of training without workers.

    The training ends at the target or after ``most`` steps. Every exact defence has these losses.
    """
    weights = problem.start()
    losses, shares = [problem.loss(weights)], np.full(problem.batch, 1 / problem.batch)
    while losses[-1] > target and len(losses) <= most:
        step = len(losses) - 1
        weights -= lr * problem.gradient(weights, problem.points(step=step), shares)
        losses.append(problem.loss(weights))
    return np.array(losses)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SoftmaxTrainees:
    """``models`` equal problems, which are trained by plain gradient descent."""

    problem: SoftmaxProblem
    models: int

    def check(self, setting: Setting) -> None:
        """Do nothing, because these models can be trained by any defence."""

    def steps_of(self, setting: Setting, exact: float, **_: float) -> float:  # noqa: ARG002
        """Return ``exact``, because all exact defences compute the same gradients."""
        return exact

    def runs(
        self,
        setting: Setting,
        trainings: Sequence[tuple[SoftmaxTrainees, float]],
        *,
        target: float,
        most: int,  # noqa: ARG002 (there is no schedule of learning rates)
        race: Race,
    ) -> Iterator[SoftmaxTrainings]:
        yield SoftmaxTrainings(trainings, setting=setting, target=target, race=race)

    def loss(self) -> float:
        return self.problem.loss(self.problem.start())

    def exact_steps(self, *, lr: float, target: float, most: int) -> float:
        """Return the number of exact steps to the target, which is equal for all models.

        The number is infinite if the target is not reached.
        """
        losses = exact_curve(self.problem, lr=lr, target=target, most=most)
        return len(losses) - 1 if losses[-1] <= target else math.inf


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _MiniTaskOnWeights:
    weights: FloatArray  # (trainings, 65, 10)
    step: int
    places: IntArray  # (m,), positions in the batch
    shares: FloatArray  # (m,)


@dataclass(slots=True, eq=False)
class _Bundle:
    """A bundle of models, which are equal, so that only one of them is computed."""

    weights: FloatArray  # (trainings, 65, 10), never changed in place
    applied: float = 0.0  # number of applied steps; parts of a batch count as fractions
    losses: FloatArray | None = None  # (trainings,), the losses at these weights


class SoftmaxTrainings:
    """Several trainings of `SoftmaxTrainees` at the same time; a `TrialTrainings`.

    If the defence is stale, the weights of a task contain all updates so far; otherwise the weights
    of a job are fixed when it begins. If a model diverges, its training ends before the target.

    Workers compute nothing. A gradient is computed when it is applied, in one pass for all
    trainings and all mini-tasks with the same weights.
    """

    def __init__(
        self,
        trainings: Sequence[tuple[SoftmaxTrainees, float]],
        *,
        setting: Setting,
        target: float,
        race: Race,
    ) -> None:
        first = trainings[0][0]
        self._batch, self._x, self._y = first.problem.batch, first.problem._x, first.problem._y
        seeds = sorted({trainees.problem.seed for trainees, _ in trainings})
        self._seeds: Final = seeds
        self._seed_of = np.array([seeds.index(each.problem.seed) for each, _ in trainings])
        self._rates = np.array([rate for _, rate in trainings])
        self._in_parts = setting.scheme.kind == "stale"
        cut = np.cumsum([0, *setting.scheme.cut(self._batch).tolist()])
        self._chunks = [np.arange(start, end) for start, end in pairwise(cut.tolist())]
        start = np.zeros((len(trainings), 65, 10))
        self._bundle_size = setting.jobs_per_round
        self._bundles = [_Bundle(start) for _ in range(first.models // self._bundle_size)]
        self._points = lru_cache(maxsize=64)(self._points_of)
        self._begun, self._fixed = 0, dict[int, FloatArray]()  # weights, by job
        # By job, then by round, worker and slot.
        self._asked: dict[int, dict[tuple[int, int, int], _MiniTaskOnWeights]] = {}
        self._decoded: list[Decoding] = []  # not applied yet
        numbers = range(len(trainings))
        self.watch = LossWatch(self._losses, target=target, race=race, numbers=numbers)
        self.staleness: list[float] = []

    @property
    def workload(self) -> None:
        """None, because the loop has no results to decode."""

    @property
    def compute(self) -> None:
        """None, because workers compute nothing."""

    def see(self, seen: Seen) -> None:
        """Record the weights that tasks read, and the gradients that can be decoded."""
        if isinstance(seen, Finish | Update):
            self._decoded.append(seen.decoding())
        elif isinstance(seen, Dispatch):
            self.rest()  # the tasks read the weights with all decoded gradients
            for worker, mini_tasks in seen.assignment.items():
                for task in mini_tasks:
                    address = seen.round, worker, task.slot
                    self._asked.setdefault(task.job, {})[address] = self._read(task)

    def rest(self) -> None:
        """Apply the decoded gradients."""
        decoded, self._decoded = self._decoded, []
        for decoding in decoded:
            self._apply(decoding)

    def _read(self, mini_task: MiniTask) -> _MiniTaskOnWeights:
        job, bundle = mini_task.job, self._bundle(mini_task.job)
        while not self._in_parts and self._begun <= job:
            self._fixed[self._begun] = self._bundle(self._begun).weights
            self._begun += 1
        step = job // len(self._bundles)
        self.staleness.append(max(0.0, step - bundle.applied) if self._in_parts else 0.0)
        chunks = [self._chunks[chunk] for chunk in mini_task.chunks.tolist()]
        return _MiniTaskOnWeights(
            weights=self._fixed.get(job, bundle.weights),
            step=step,
            places=np.concatenate(chunks),
            shares=np.repeat(mini_task.coefficients, [len(each) for each in chunks]) / self._batch,
        )

    @diverging
    def _apply(self, decoding: Decoding) -> None:
        """Take a step, or a part of a step, with the models of a bundle."""
        job, bundle, active = decoding.job, self._bundle(decoding.job), self._active()
        terms: dict[int, list[tuple[_MiniTaskOnWeights, float]]] = {}
        for term in decoding.terms:
            asked = self._asked[job].pop((term.round, term.worker, term.slot))
            terms.setdefault(id(asked.weights), []).append((asked, term.weight))
        if decoding.part is None or not self._asked[job]:  # so that old weights are freed
            del self._asked[job]
            self._fixed.pop(job, None)
        weights, rates = bundle.weights.copy(), self._rates[active, None, None]
        for each in terms.values():
            weights[active] -= rates * self._slopes(each, active)
        bundle.weights, bundle.losses = weights, None
        bundle.applied += decoding.share
        self.watch.apply(decoding.share * self._bundle_size)

    def _slopes(
        self, terms: Sequence[tuple[_MiniTaskOnWeights, float]], active: IntArray | slice
    ) -> FloatArray:
        """Return the weighted sum of the gradients of mini-tasks with the same weights.

        The shape is (active trainings, 65, 10).
        """
        asked = terms[0][0]
        places = np.concatenate([each.places for each, _ in terms])
        shares = np.concatenate([each.shares * weight for each, weight in terms])
        points = self._points(asked.step)[self._seed_of[active]][:, places]
        x, weights = self._x[points], asked.weights[active]
        errors = x @ weights
        errors -= errors.max(axis=2, keepdims=True)
        np.exp(errors, out=errors)
        errors /= errors.sum(axis=2, keepdims=True)
        rows = np.arange(len(points))[:, None], np.arange(len(places))[None], self._y[points]
        errors[rows] -= 1
        errors *= shares[:, None]
        slopes: FloatArray = x.transpose(0, 2, 1) @ errors
        return slopes

    @diverging
    def _losses(self) -> FloatArray:
        """Return the loss of the worst model of each active training, (trainings,)."""
        worst, active = np.full(len(self._rates), -math.inf), self._active()
        for bundle in self._bundles:
            if bundle.losses is None:
                weights = bundle.weights[active]
                scores = self._x @ weights.transpose(1, 0, 2).reshape(65, -1)
                scores = scores.reshape(len(scores), len(weights), 10)
                scores -= scores.max(axis=2, keepdims=True)
                of_labels = scores[np.arange(len(scores)), :, self._y]
                np.exp(scores, out=scores)
                each = (np.log(scores.sum(axis=2)) - of_labels).mean(axis=0)
                bundle.losses = np.full(len(self._rates), math.nan)
                bundle.losses[active] = each
            worst = np.maximum(worst, bundle.losses)
        for training in np.flatnonzero(self.watch.active & ~np.isfinite(worst)).tolist():
            why = "its results are not finite; lower the learning rate"
            self.watch.fail("model-0", why, training)
        return worst

    def _active(self) -> IntArray | slice:
        """Return an index of the trainings that have not ended; a slice if no training has."""
        active = self.watch.active
        return slice(None) if active.all() else np.flatnonzero(active)

    def _points_of(self, step: int) -> IntArray:
        """Return the points of a step, (seeds, batch)."""
        return np.array([draw_points(seed, step, self._batch) for seed in self._seeds])

    def _bundle(self, job: int) -> _Bundle:
        return self._bundles[job % len(self._bundles)]
