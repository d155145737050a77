"""The jobs of a run: the turns of bundles (`Turns`), the batches (`DataQueue`), and `JobPlan`.

Theory of operation
-------------------
Models are trained in bundles. Each job is a *turn* of one bundle, in which all models of the bundle
take a step. The bundles wait in a queue, and the first bundle in the queue takes the next job. The
workload decides whether the bundle may do so: usually the gradient of the bundle's last job must
have been decoded, or be certain to be decoded in time. If the bundle may not, the turn is *idle*:
the job computes nothing, and the bundle keeps its place in the queue. So a job never waits.

A bundle leaves the queue after its last step, or when all its models are parked. If there are fewer
bundles than the scheme's delay + 1, gradients are late and turns are *fixed*: a bundle that has
left still gets its turns, which are idle.

A model's data points form an endless sequence of *places*: one permutation of the data set for each
epoch. A batch takes the points at the next places. Points that are missing from a decoded gradient
(`Decoding.lost`) are drawn again at the end of the epoch, mixed with the new points of a batch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Final, Protocol

import numpy as np
import torch

from seqgc.errors import require_int
from seqgc.models.model import Model, ParameterVector
from seqgc.ports import BoolArray, FloatArray, IntArray, WeightedPoints, WeightRef
from seqgc.rounds import bundles_of, num_bundles, require_models
from seqgc.schemes import Deal

__all__ = [
    "ChunkedScheme",
    "DataQueue",
    "JobPlan",
    "Share",
    "Turn",
    "Turns",
    "TurnsState",
    "batch_indices",
    "bundle_size",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The turn of a bundle. ``step`` is the bundle's step, from 0, or None if the turn is idle."""

    bundle: int
    step: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsState:
    """The state of `Turns`, for checkpoints."""

    queue: list[int]  # the bundles that wait, in order
    begun: list[int]  # number of steps that have begun, by bundle
    latest: list[int]  # job of the last step, by bundle; -1 if there is none
    left: list[int]  # the bundles that have ended
    kept: dict[int, Turn]  # by job
    num_jobs: int | None
    stopped: dict[int, int] = field(default_factory=dict)  # bundle -> job that stopped it


class Turns:
    """The turns of ``bundles`` bundles, each with ``steps`` steps (None: no limit).

    If ``fixed`` is True, a bundle that has left still gets turns, which are idle.

    Examples
    --------
    >>> turns = Turns(3, steps=2)
    >>> [turns.take(job, may_follow=lambda last: True).bundle for job in range(4)]
    [0, 1, 2, 0]
    >>> turns.leave(1)
    >>> turns.take(4, may_follow=lambda last: True), turns.num_jobs
    (Turn(bundle=2, step=1), 5)
    """

    def __init__(self, bundles: int, *, steps: int | None, fixed: bool = False) -> None:
        self._steps, self._fixed = steps, fixed
        self._queue = list(range(bundles))
        self._begun, self._latest = [0] * bundles, [-1] * bundles  # steps; job of the last step
        self._left: set[int] = set()
        self._stopped: dict[int, int] = {}  # if work is dealt: bundle -> job that stopped it
        self._kept: dict[int, Turn] = {}
        self.num_jobs: int | None = None
        """The number of jobs; None until a turn is taken when all bundles have left."""

    def __getitem__(self, job: int) -> Turn:
        return self._kept[job]

    def __contains__(self, job: int) -> bool:
        return job in self._kept

    @property
    def awaited(self) -> int:
        """The last job of the bundle that is first in the queue, or -1.

        It is -1 if the bundle has no job yet, if the queue is empty, or if turns are fixed.
        """
        return -1 if self._fixed or not self._queue else self._latest[self._queue[0]]

    def leave(self, bundle: int) -> None:
        """End the steps of a bundle. Further calls for the bundle do nothing."""
        self._left.add(bundle)
        if not self._fixed and bundle in self._queue:
            self._queue.remove(bundle)

    def latest(self, bundle: int) -> int:
        """Return the job of a bundle's latest step; -1 if the bundle has not begun a step."""
        return self._latest[bundle]

    def stop(self, bundle: int, *, by: int) -> None:
        """Record that the results of job ``by`` stop a bundle. It leaves the queue at a later turn.

        Further calls for the bundle do nothing.
        """
        self._stopped.setdefault(bundle, by)

    def stopped(self, last: int) -> list[int]:
        """Return the bundles that were stopped by results of job ``last`` or of earlier jobs."""
        return [bundle for bundle, by in self._stopped.items() if by <= last]

    def take(self, job: int, *, may_follow: Callable[[int], bool]) -> Turn:
        """Decide and return the turn of ``job``, which must be the next job.

        ``may_follow(last)`` returns True if the bundle whose latest job is ``last`` may take
        another job.
        """
        turn = Turn(bundle=self._queue[0] if self._queue else 0, step=None)
        last = self._latest[turn.bundle]
        if self._queue and (self._fixed or last < 0 or may_follow(last)):
            turn = self._step(self._queue.pop(0), job)
        self._kept[job] = turn
        if len(self._left) == len(self._begun) and self.num_jobs is None:
            self.num_jobs = job + 1
        return turn

    def _step(self, bundle: int, job: int) -> Turn:
        step = None if bundle in self._left else self._begun[bundle]
        self._queue.append(bundle)
        if step is not None:
            self._begun[bundle], self._latest[bundle] = step + 1, job
            if step + 1 == self._steps:
                self.leave(bundle)
        return Turn(bundle=bundle, step=step)

    def forget(self, needed: Container[int]) -> None:
        """Forget the turns of all jobs except the ``needed`` jobs."""
        self._kept = {job: turn for job, turn in self._kept.items() if job in needed}

    def snapshot(self) -> TurnsState:
        return TurnsState(
            queue=list(self._queue),
            begun=list(self._begun),
            latest=list(self._latest),
            left=sorted(self._left),
            kept=dict(self._kept),
            num_jobs=self.num_jobs,
            stopped=dict(self._stopped),
        )

    def restore(self, state: TurnsState) -> None:
        """Restore a snapshot.

        The number of steps may now be smaller, but not smaller than the number of steps that a
        bundle has begun.

        Raises
        ------
        ValueError
            If the number of bundles differs.
        """
        if len(state.begun) != len(self._begun):
            raise ValueError(f"expected {len(self._begun)} bundles, got {len(state.begun)}")
        self._queue, self._left = list(state.queue), set(state.left)
        self._begun, self._latest = list(state.begun), list(state.latest)
        self._kept, self.num_jobs = dict(state.kept), state.num_jobs
        self._stopped = dict(state.stopped)
        for bundle, begun in enumerate(self._begun):
            if begun == self._steps:
                self.leave(bundle)


_MOST_BYTES: Final = 256 << 20  # size of all cached permutations
_FEWEST_KEPT: Final = 16  # number of permutations that are cached, however large they are
_EPOCHS_KEPT: Final = 3  # cached permutations of one model; runs do not return to older epochs
_MIXING: Final = 1  # gives a batch other random numbers than an epoch


class DataQueue:
    """The batches of one model, from a data set of ``size`` points (see the module docstring).

    A batch is an array of indices (batch_size,). If ``by_epoch`` is True, item i of epoch e has the
    index ``e * size + i``, as `seqgc.training.AugmentedDataset` requires.

    Examples
    --------
    Of each of two batches of two points, the first point is lost and comes again:

    >>> queue = DataQueue(4, batch_size=2, seed=0)
    >>> lost = []
    >>> for step in range(2):
    ...     batch = queue.batch(step)
    ...     assert batch.tolist() == batch_indices(4, batch_size=2, seed=0, step=step).tolist()
    ...     lost.append(int(batch[0]))
    ...     queue.settle(step, lost=np.array([0]))
    >>> sorted(lost) == sorted(queue.batch(2).tolist())
    True
    """

    def __init__(self, size: int, *, batch_size: int, seed: int, by_epoch: bool = False) -> None:
        self._size, self._batch_size, self._seed = size, batch_size, seed
        self._by_epoch = by_epoch
        self._again: IntArray = np.zeros(0, dtype=np.intp)  # places, in the order of their loss
        self._repeated = 0  # number of points that have been drawn again

    def batch(self, step: int) -> IntArray:
        """Return the data points of a step, read-only. All earlier steps must be settled."""
        places = self._places(step)
        if len(self._next(step)[1]):
            points = self._items(places)
        else:
            points = _stretch(self._size, self._seed, int(places[0]), int(places[-1]) + 1)
        if self._by_epoch:
            points = points + self._size * (places // self._size)
        points.setflags(write=False)
        return points

    def settle(self, step: int, *, lost: IntArray) -> None:
        """End a step. The points at the positions ``lost`` of its batch were not used."""
        if not len(lost) and not len(self._again):
            return
        again = self._next(step)[1]
        losses = self._places(step)[lost]
        self._again = np.concatenate([self._again[len(again) :], losses])
        self._repeated += len(again)

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Return the state. It is an empty dictionary if no point has been lost."""
        if not self._repeated and not len(self._again):
            return {}
        repeated = torch.tensor(self._repeated, dtype=torch.int64)
        return {"again": torch.from_numpy(self._again.astype(np.int64)), "repeated": repeated}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        self._again, self._repeated = np.zeros(0, dtype=np.intp), 0
        if state:
            self._again = state["again"].numpy().astype(np.intp)
            self._repeated = int(state["repeated"])

    def _next(self, step: int) -> tuple[int, IntArray]:
        """Return the first new place of a step, and the lost places that the step draws again."""
        first = step * self._batch_size - self._repeated
        rest_of_epoch = -first % self._size
        return first, self._again[: max(0, self._batch_size - rest_of_epoch)]

    def _places(self, step: int) -> IntArray:
        first, again = self._next(step)
        fresh = np.arange(first, first + self._batch_size - len(again))
        if not len(again):
            return fresh
        mixed = np.random.default_rng([self._seed, step, _MIXING])
        return mixed.permutation(np.concatenate([fresh, again]))

    def _items(self, places: IntArray) -> IntArray:
        epochs, items = places // self._size, np.empty_like(places)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            order = _permutations.find(self._size, self._seed, epoch)
            items[here] = order[places[here] - epoch * self._size]
        return items


def batch_indices(dataset_size: int, *, batch_size: int, seed: int, step: int) -> IntArray:
    """Return the data points of one training step, (batch_size,), read-only.

    The points are positions ``step * batch_size`` up to ``(step + 1) * batch_size`` of the endless
    concatenation of one permutation of the dataset for each epoch. The permutation of epoch ``e``
    is drawn by ``numpy.random.default_rng([seed, e])``. Therefore every point is used once in an
    epoch, and the batch of a step can be computed without the earlier batches. In a run, points
    that are missing from a gradient (`Decoding.lost`) are drawn again, which shifts the following
    batches.

    Raises
    ------
    ParameterError
        If a size is below 1, or ``seed`` or ``step`` below 0.

    Examples
    --------
    >>> from seqgc.training import batch_indices
    >>> steps = [batch_indices(5, batch_size=2, seed=0, step=step) for step in range(5)]
    >>> sorted(int(point) for batch in steps for point in batch)
    [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    """
    size = require_int("dataset_size", dataset_size, least=1)
    batch = require_int("batch_size", batch_size, least=1)
    start = require_int("step", step, least=0) * batch
    indices = _stretch(size, require_int("seed", seed, least=0), start, start + batch)
    indices.setflags(write=False)
    return indices


def _stretch(size: int, seed: int, start: int, stop: int) -> IntArray:
    """Return the data points at the places from ``start`` up to ``stop``."""
    pieces = [
        _permutations.find(size, seed, epoch)[max(start - epoch * size, 0) : stop - epoch * size]
        for epoch in range(start // size, (stop - 1) // size + 1)
    ]
    return np.concatenate(pieces, dtype=np.intp)


class _Permutations:
    """A cache of the permutations of epochs.

    Each step of a model needs one permutation, or two at the end of an epoch. The cache limits its
    size in bytes, and the number of epochs of a model.
    """

    def __init__(self) -> None:
        self._kept: Final[OrderedDict[tuple[int, int, int], IntArray]] = OrderedDict()
        self._bytes = 0
        self._lock: Final = Lock()  # runs in several threads share them

    def find(self, size: int, seed: int, epoch: int) -> IntArray:
        """Return the permutation of an epoch, (size,)."""
        key = size, seed, epoch
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            drawn = np.random.default_rng([seed, epoch]).permutation(size)
            kept = self._kept[key] = drawn.astype(np.min_scalar_type(size))
            self._bytes += kept.nbytes
            over = self._kept.pop((size, seed, epoch - _EPOCHS_KEPT), None)
            self._bytes -= 0 if over is None else over.nbytes
            while self._bytes > _MOST_BYTES and len(self._kept) > _FEWEST_KEPT:
                self._bytes -= self._kept.popitem(last=False)[1].nbytes
            return kept


_permutations: Final = _Permutations()


_MOST_PARAMETERS: Final = 10**6  # in a bundle, unless the user has chosen its size
_NO_POINTS: Final = np.zeros(0, dtype=np.intp)


class ChunkedScheme(Protocol):
    """The methods of a scheme that training needs: the cut into chunks, and the jobs in flight."""

    def jobs_in_flight(self, bundles: int) -> int: ...
    def jobs_read(self, bundles: int) -> int: ...
    def cut(self, batch_size: int) -> IntArray: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Share:
    """One model's part of a job in flight: fixed weights, and a batch that is cut into chunks.

    Chunk ``c`` consists of ``points[starts[c]:starts[c + 1]]``. ``points`` has shape (batch_size,),
    or is shorter if some points of the batch have already moved the weights (`JobPlan.share`).
    """

    model: str
    weights: WeightRef
    span: tuple[int, int]  # the model's range in the vector of weights
    points: IntArray
    starts: IntArray
    batch_size: int
    pieces: tuple[int, ...] = ()  # lengths of the pieces of a result (`ResultLayout`)
    idle: bool = False  # True if no points are computed, so that the result is zeros

    def resolve(self, chunks: IntArray, coefficients: FloatArray) -> WeightedPoints:
        """Return the points of ``chunks`` (c,) with their coefficients.

        The coefficient of a point is the coefficient of its chunk divided by the batch size.
        """
        if self.idle:
            chunks, coefficients = chunks[:0], coefficients[:0]
        sizes = self.starts[chunks + 1] - self.starts[chunks]
        pieces = [self.points[self.starts[c] : self.starts[c + 1]] for c in chunks]
        points = np.concatenate(pieces) if pieces else self.points[:0]
        per_point = np.repeat(np.asarray(coefficients, dtype=np.float64) / self.batch_size, sizes)
        for array in (points, per_point):
            array.setflags(write=False)
        return WeightedPoints(
            model=self.model,
            weights=self.weights,
            span=self.span,
            points=points,
            coefficients=per_point,
            pieces=self.pieces,
        )


class JobPlan:
    """The bundles of a run, with their turns and batches. Each job is a turn of one bundle.

    A bundle has at most ``jobs_per_round`` models. The sizes of bundles differ by at most one
    model, and the larger bundles come first. ``steps`` is the number of steps of each model (None:
    no limit). ``lateness`` is the number of jobs by which gradients may be late (None: the delay of
    the scheme). Unless ``stale`` is True, there must be more bundles than this number.

    Raises
    ------
    ParameterError
        If the models do not fit the scheme or ``jobs_per_round`` (`require_models`).
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
        self._bundles: Final = bundles_of(len(self.models), max(1, jobs_per_round))
        self.num_bundles: Final = len(self._bundles)
        self._stale, self._lateness = stale, lateness
        self.adopt(scheme)
        self.is_late: Final = self.delay >= self.num_bundles  # weights lack some gradients
        self.turns: Final = Turns(self.num_bundles, steps=steps, fixed=self.is_late)
        self.deals: Final = isinstance(scheme, Deal)  # does not change during the run
        self.handed_over: int | None = None
        """The job whose results the models are getting now, or None."""
        self._parked: set[int] = set()
        self.bundles_left = self.num_bundles
        """The number of bundles with a model that is not parked."""

    def adopt(self, scheme: ChunkedScheme) -> None:
        """Use the chunks and the delay of ``scheme`` from now on.

        Raises `ParameterError` if there are too few bundles for the delay.
        """
        delay = scheme.jobs_in_flight(self.num_bundles) - 1
        if self._lateness is not None:
            delay = self._lateness
        require_models(
            [model.name for model in self.models],
            delay=delay,
            jobs_per_round=self.jobs_per_round,
            stale=self._stale,
        )
        cuts = [scheme.cut(model.batch_size) for model in self.models]
        self._starts = [np.concatenate([[0], np.cumsum(cut)]).astype(np.intp) for cut in cuts]
        self.delay = delay  # the number of rounds by which the gradient of a job may be late
        self.jobs_read = scheme.jobs_read(self.num_bundles)  # recent jobs whose weights are needed

    def park(self, name: str) -> None:
        """Record that a model is parked. If all models of its bundle are parked, end the bundle.

        If work is dealt, the bundle ends later, at a job that does not depend on the order of the
        answers (`horizon`).
        """
        index = [model.name for model in self.models].index(name)
        bundle = next(b for b, members in enumerate(self._bundles) if index in members)
        if index not in self._parked:
            self._parked.add(index)
            if self._parked.issuperset(self.members(bundle)):
                self.bundles_left -= 1
                if not self.deals:
                    self.turns.leave(bundle)
                    return
                by = self.handed_over
                self.turns.stop(bundle, by=self.turns.latest(bundle) if by is None else by)

    def horizon(self, job: int) -> int:
        """Return the last job that is certain to be decoded before ``job`` begins."""
        if not self.deals:
            return job - self.delay - 1
        stopped = self.turns.stopped(job - 2 * self.num_bundles)
        return job - max(1, self.num_bundles - len(stopped))

    def bundle(self, job: int) -> range:
        """Return the indices of the models of a job, whose turn must have been decided."""
        return self.members(self.turns[job].bundle)

    def members(self, bundle: int) -> range:
        """Return the indices of the models of a bundle."""
        return self._bundles[bundle]

    def share(
        self,
        index: int,
        *,
        job: int,
        weights: WeightRef,
        span: tuple[int, int],
        queue: DataQueue,
        pieces: tuple[int, ...],
        idle: bool = False,
        used: BoolArray | None = None,
    ) -> Share:
        """Return the share of model ``index`` in ``job``, with the batch of the job's step.

        ``queue`` draws the batch. ``used`` (batch_size,) marks points that the share must not
        contain, because they have already moved the weights.
        """
        step, starts = None if idle else self.turns[job].step, self._starts[index]
        points = _NO_POINTS if step is None else queue.batch(step)
        if used is not None and step is not None:
            points = points[~used]
            starts = np.concatenate([[0], np.cumsum(~used)])[starts]
        return Share(
            model=self.models[index].name,
            weights=weights,
            span=span,
            points=points,
            starts=starts,
            batch_size=self.models[index].batch_size,
            pieces=pieces,
            idle=step is None,
        )

    def positions(self, index: int, chunks: Sequence[int]) -> IntArray:
        """Return the positions in a batch of model ``index`` that the ``chunks`` cover."""
        starts = self._starts[index]
        pieces = [np.arange(starts[c], starts[c + 1]) for c in chunks]
        return np.concatenate(pieces) if pieces else _NO_POINTS


def bundle_size(models: Sequence[Model], *, bundles: int = 1) -> int:
    """Return a good number of models per job, if there must be at least ``bundles`` bundles.

    The models are divided into as few bundles as possible. There are at least ``bundles`` bundles,
    and no bundle has more than a million parameters if each model counts like the largest. The
    result is the size of the largest bundle, or 1 if the conditions cannot be met. So small models
    share the overhead of a round, and a round of large models does not need too much memory. A
    scheme needs one bundle more than its delay.

    Examples
    --------
    >>> import functools, torch
    >>> from seqgc.training import grid, registered_model
    >>> sgd = functools.partial(torch.optim.SGD, lr=0.1)
    >>> net = functools.partial(registered_model, "net", optimizer=sgd)
    >>> models = grid(net, {"module": ["mlp", "digits-cnn"], "seed": 3})
    >>> bundle_size(models), bundle_size(models, bundles=2), bundle_size(models[:5], bundles=2)
    (6, 3, 3)
    """
    count = len(models)
    largest = max(1, *(ParameterVector(model.module).size for model in models))
    most = min(count if bundles <= 1 else (count - 1) // (bundles - 1), _MOST_PARAMETERS // largest)
    return -(-count // num_bundles(count, max(1, most)))
