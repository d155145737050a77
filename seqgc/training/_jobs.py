"""Which models a job trains, on which data points, cut into which chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from seqgc.ports import FloatArray, IntArray, WeightedPoints, WeightRef
from seqgc.rounds import require_models
from seqgc.schemes import Deal
from seqgc.training._queue import DataQueue
from seqgc.training._turns import Turns
from seqgc.training.model import Model, ParameterVector

__all__ = ["ChunkedScheme", "JobPlan", "Share", "bundle_size"]

_MOST_PARAMETERS: Final = 10**6  # of a bundle whose size nobody has chosen
_NO_POINTS: Final = np.zeros(0, dtype=np.intp)


class ChunkedScheme(Protocol):
    """What training must know of a scheme: its chunks, and how late a gradient may come."""

    def jobs_in_flight(self, bundles: int) -> int: ...
    def jobs_read(self, bundles: int) -> int: ...
    def cut(self, batch_size: int) -> IntArray: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Share:
    """One model's part of a job in flight: fixed weights, and a batch cut into chunks.

    ``points`` (batch_size,); chunk ``c`` is ``points[starts[c]:starts[c + 1]]``.
    """

    weights: WeightRef
    points: IntArray
    starts: IntArray
    pieces: tuple[int, ...] = ()  # of a result (`ResultLayout`)
    idle: bool = False  # nothing is computed: the result is zeros

    def resolve(self, chunks: IntArray, coefficients: FloatArray) -> WeightedPoints:
        """Return the chunks' points, each with its chunk's coefficient over the batch size."""
        if self.idle:
            chunks, coefficients = chunks[:0], coefficients[:0]
        sizes = self.starts[chunks + 1] - self.starts[chunks]
        pieces = [self.points[self.starts[c] : self.starts[c + 1]] for c in chunks]
        points = np.concatenate(pieces) if pieces else self.points[:0]
        per_point = np.repeat(np.asarray(coefficients, dtype=np.float64) / len(self.points), sizes)
        for array in (points, per_point):
            array.setflags(write=False)
        return WeightedPoints(
            model=self.weights.model,
            weights=self.weights,
            points=points,
            coefficients=per_point,
            pieces=self.pieces,
        )


class JobPlan:
    """How models take turns: M models in M / k bundles, one bundle a job (`Turns`).

    Gradients come as late as the scheme's delay, or by so many jobs as ``lateness`` says.
    """

    def __init__(
        self,
        models: Sequence[Model],
        *,
        scheme: ChunkedScheme,
        jobs_per_round: int,
        stale: bool = False,
        steps: int | None = None,
        lateness: int | None = None,
    ) -> None:
        self.models: Final = tuple(models)
        self.jobs_per_round: Final = jobs_per_round
        self.num_bundles: Final = len(self.models) // max(1, jobs_per_round)
        self._stale, self._lateness = stale, lateness
        self.adopt(scheme)
        self.is_late: Final = self.delay >= self.num_bundles  # weights lack some gradients
        self.turns: Final = Turns(self.num_bundles, steps=steps, fixed=self.is_late)
        self.deals: Final = isinstance(scheme, Deal)  # a run that begins so stays so
        self.handed_over: int | None = None
        """The job whose results the models are being given."""
        self._parked: set[int] = set()
        self.bundles_left = self.num_bundles
        """How many have a model that is not parked."""

    def adopt(self, scheme: ChunkedScheme) -> None:
        """Cut batches as ``scheme`` does from now on; raises like the constructor."""
        delay = scheme.jobs_in_flight(self.num_bundles) - 1
        if self._lateness is not None:  # however many jobs are under way
            delay = self._lateness
        require_models(
            [model.name for model in self.models],
            delay=delay,
            jobs_per_round=self.jobs_per_round,
            stale=self._stale,
        )
        cuts = [scheme.cut(model.batch_size) for model in self.models]
        self._starts = [np.concatenate([[0], np.cumsum(cut)]).astype(np.intp) for cut in cuts]
        self.delay = delay  # rounds that the gradient of a job may be late
        self.jobs_read = scheme.jobs_read(self.num_bundles)  # whose weights are kept

    def park(self, name: str) -> None:
        """Give a model's turns to the others once all models of its bundle are parked."""
        index = [model.name for model in self.models].index(name)
        bundle = index // self.jobs_per_round
        if index not in self._parked:
            self._parked.add(index)
            if self._parked.issuperset(self._members(bundle)):
                self.bundles_left -= 1
                if not self.deals:
                    self.turns.leave(bundle)
                    return
                by = self.handed_over
                self.turns.stop(bundle, by=self.turns.latest(bundle) if by is None else by)

    def horizon(self, job: int) -> int:
        """Return the last of the jobs that are sure to be decoded when ``job`` begins."""
        if not self.deals:
            return job - self.delay - 1
        stopped = self.turns.stopped(job - 2 * self.num_bundles)
        return job - max(1, self.num_bundles - len(stopped))

    def bundle(self, job: int) -> range:
        """Return the indices of the models whose step a job is, whose turn is known."""
        return self._members(self.turns[job].bundle)

    def _members(self, bundle: int) -> range:
        first = bundle * self.jobs_per_round
        return range(first, first + self.jobs_per_round)

    def share(
        self,
        index: int,
        *,
        job: int,
        weights: WeightRef,
        queue: DataQueue,
        pieces: tuple[int, ...],
        idle: bool = False,
    ) -> Share:
        """Return the part of ``job`` that model ``index`` has: its queue's next points."""
        step = None if idle else self.turns[job].step
        return Share(
            weights=weights,
            points=_NO_POINTS if step is None else queue.batch(step),
            starts=self._starts[index],
            pieces=pieces,
            idle=step is None,
        )

    def positions(self, index: int, chunks: Sequence[int]) -> IntArray:
        """Return which positions of a batch of model ``index`` are in these chunks."""
        starts = self._starts[index]
        pieces = [np.arange(starts[c], starts[c + 1]) for c in chunks]
        return np.concatenate(pieces) if pieces else _NO_POINTS


def bundle_size(models: Sequence[Model], *, bundles: int = 1) -> int:
    """Return how many models a job may well have, in at least so many ``bundles``.

    It is the largest divisor of the number of models with which a bundle's models have at most a
    million parameters together, or 1: small models share a round's overhead, and large ones neither
    the memory nor the messages of a round. A scheme needs one bundle more than its delay.

    Examples
    --------
    >>> import functools, torch
    >>> from seqgc.training import grid, registered_model
    >>> sgd = functools.partial(torch.optim.SGD, lr=0.1)
    >>> net = functools.partial(registered_model, "net", optimizer=sgd)
    >>> models = grid(net, {"module": ["mlp", "digits-cnn"], "seed": 3})
    >>> bundle_size(models), bundle_size(models, bundles=2), bundle_size(models, bundles=4)
    (6, 3, 1)
    """
    count = len(models)
    largest = max(ParameterVector(model.module).size for model in models)
    most = min(count // max(1, bundles), _MOST_PARAMETERS // largest)
    return next((k for k in range(most, 0, -1) if count % k == 0), 1)
