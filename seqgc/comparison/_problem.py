"""`SoftmaxProblem`: what is trained to find out how many batches a defence needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from seqgc._digits import digit_images
from seqgc.errors import require_int
from seqgc.ports import FloatArray, IntArray

__all__ = ["SoftmaxProblem", "diverging"]

diverging = np.errstate(over="ignore", invalid="ignore")
"""Around what overflows where training diverges: that is found in what comes of it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SoftmaxProblem:
    """Softmax regression on 1,797 handwritten digits, from weights of 0, in float64.

    Batches have ``batch`` points, drawn with ``seed`` for each step, without replacement; what a
    step is trained on does not depend on who computes it, or when.

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
    _x: FloatArray = field(init=False, repr=False)  # (1797, 65), of all problems
    _y: npt.NDArray[np.int64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        x, labels = _digits()
        require_int("batch", self.batch, least=1, most=len(labels))
        require_int("seed", self.seed, least=0)
        object.__setattr__(self, "_x", x)
        object.__setattr__(self, "_y", labels)

    def start(self) -> FloatArray:
        """Return the weights (650,) to begin with."""
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
    """Return all images (1797, 65), whose last column is 1, and their digits, read-only."""
    images, labels = digit_images()
    x = np.ones((len(labels), 65))
    x[:, :64] = images.reshape(len(labels), 64)
    x.flags.writeable = labels.flags.writeable = False
    return x, labels
