"""Which models a job trains, on which data points, cut into which chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from seqgc.errors import ParameterError
from seqgc.ports import FloatArray, IntArray, WeightedPoints, WeightRef
from seqgc.training.batches import batch_indices
from seqgc.training.model import Model

__all__ = ["ChunkedScheme", "JobPlan", "Share"]


class ChunkedScheme(Protocol):
    """What training must know of a scheme: its chunks, and how late a gradient may come."""

    @property
    def delay(self) -> int: ...
    def cut(self, batch_size: int) -> IntArray: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Share:
    """One model's part of a job in flight: fixed weights, and a batch cut into chunks.

    ``points`` (batch_size,); chunk ``c`` is ``points[starts[c]:starts[c + 1]]``.
    """

    weights: WeightRef
    points: IntArray
    starts: IntArray

    def resolve(self, chunks: IntArray, coefficients: FloatArray) -> WeightedPoints:
        """Return the chunks' points, each with its chunk's coefficient over the batch size."""
        sizes = self.starts[chunks + 1] - self.starts[chunks]
        pieces = [self.points[self.starts[c] : self.starts[c + 1]] for c in chunks]
        points = np.concatenate(pieces) if pieces else self.points[:0]
        per_point = np.repeat(np.asarray(coefficients, dtype=np.float64) / len(self.points), sizes)
        for array in (points, per_point):
            array.setflags(write=False)
        return WeightedPoints(
            model=self.weights.model, weights=self.weights, points=points, coefficients=per_point
        )


class JobPlan:
    """The order in which models take turns: M models in M / k bundles, one bundle a job.

    Raises
    ------
    ParameterError
        If names repeat, k does not divide M, or ``M / k <= delay`` without ``stale``.
    """

    def __init__(
        self,
        models: Sequence[Model],
        *,
        scheme: ChunkedScheme,
        jobs_per_round: int,
        stale: bool,
    ) -> None:
        self.models: Final = tuple(models)
        _require_distinct_names(self.models)
        self.jobs_per_round: Final = jobs_per_round
        self._stale = stale
        self.adopt(scheme)
        self.num_bundles: Final = len(self.models) // jobs_per_round

    @property
    def delay(self) -> int:
        """How many rounds late the gradient of a job may come."""
        return self._delay

    def adopt(self, scheme: ChunkedScheme) -> None:
        """Cut batches as ``scheme`` does from now on; raises like the constructor."""
        k, delay = self.jobs_per_round, scheme.delay
        _require_bundles(len(self.models), jobs_per_round=k, delay=delay, stale=self._stale)
        self._starts = [_starts(scheme.cut(m.batch_size)) for m in self.models]
        self._delay = delay

    def bundle(self, job: int) -> range:
        """Return the indices of the models whose step the job is."""
        first = (job % self.num_bundles) * self.jobs_per_round
        return range(first, first + self.jobs_per_round)

    def step(self, job: int) -> int:
        """Return which step of its models the job is, from 0."""
        return job // self.num_bundles

    def share(self, index: int, *, job: int, weights: WeightRef) -> Share:
        """Return the part of ``job`` that model ``index`` has, at the given weights."""
        model = self.models[index]
        points = batch_indices(
            len(model.dataset),
            batch_size=model.batch_size,
            seed=model.seed,
            step=self.step(job),
        )
        return Share(weights=weights, points=points, starts=self._starts[index])


def _starts(sizes: IntArray) -> IntArray:
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.intp)
    starts.setflags(write=False)
    return starts


def _require_distinct_names(models: Sequence[Model]) -> None:
    names = [model.name for model in models]
    if not names:
        raise ParameterError("models", "must hold at least one model", names)
    if len(set(names)) < len(names):
        raise ParameterError("models", "must have distinct names", names)


def _require_bundles(num_models: int, *, jobs_per_round: int, delay: int, stale: bool) -> None:
    if jobs_per_round < 1 or num_models % jobs_per_round:
        rule = f"must be >= 1 and divide the number of models, M={num_models}"
        raise ParameterError("jobs_per_round", rule, jobs_per_round)
    least = (delay + 1) * jobs_per_round
    if num_models < least and not stale:
        raise ParameterError(
            "models",
            f"must number at least (T + 1) * jobs_per_round = {least}, because a gradient may come "
            f"T={delay} rounds late",
            num_models,
            "train more models, take a scheme with a smaller delay, or allow gradients that are "
            "applied T rounds late (stale)",
        )
