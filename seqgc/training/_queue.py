"""The order in which a model's data points are drawn, and drawn again when a step has lost them.

Theory of operation
-------------------
A model's data are an endless stream of *places*: one permutation of the data set per epoch (see
`batch_indices`), place p being position ``p % size`` of epoch ``p // size``. A step draws as many
as a batch has. It may lose some: a round of backup workers closes without the slowest answers, and
the chunks that they hold are in no gradient (`seqgc.ports.Decoding.lost`).

What is lost goes to the end of the queue of the epoch under way, behind this epoch's points that
have not been drawn yet and those that were lost before it. It comes again before the next epoch
begins, as the item of the epoch that it was drawn from at first. So of all places that have been
drawn each is in one gradient, and in no second one, or waits to come again. A batch with which one
epoch ends and another begins may lose points of the one that ends: they come at the other's end.

*Positions.* A chunk is a range of positions in a batch. A worker that is always the slowest could
be given the same points whenever they come, and nobody would ever use them. So a batch in which
points come again is put in random order: of n workers, b of them too slow, such a point is lost
once more with probability b/n, whoever they are.

*State.* What a batch is follows from its step, how many points have come again before it, and those
that wait. The queue moves on when a step is over and what it lost is known, not when it begins: a
step that was broken off draws the same points when it is begun anew. While nothing is lost there
is no state at all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import Final

import numpy as np
import torch

from seqgc.errors import require_int
from seqgc.ports import IntArray

__all__ = ["DataQueue", "batch_indices"]

_MOST_BYTES: Final = 256 << 20  # of orders of data points that are kept,
_FEWEST_KEPT: Final = 16  # unless they are fewer than so many,
_EPOCHS_KEPT: Final = 3  # and of one model no more than so many: no run goes back further
_MIXING: Final = 1  # tells the random numbers of a batch from those of an epoch


class DataQueue:
    """The batches of one model, of a data set of ``size`` points; see this module's head.

    A batch is an array of indices (batch_size,). With ``by_epoch`` they go on from epoch to epoch,
    as `seqgc.training.AugmentedDataset` wants them: item i of epoch e is ``e * size + i``.

    Examples
    --------
    Of two batches of two points the first point each is lost, and comes again:

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
        self._repeated = 0  # points that have come again

    def batch(self, step: int) -> IntArray:
        """Return the data points of a step, all steps before it being settled; read-only."""
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
        """Go on to the next step: all of this one but these positions of its batch were used."""
        if not len(lost) and not len(self._again):
            return
        again = self._next(step)[1]
        losses = self._places(step)[lost]
        self._again = np.concatenate([self._again[len(again) :], losses])
        self._repeated += len(again)

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Return all that there is to know; nothing as long as nothing has been lost."""
        if not self._repeated and not len(self._again):
            return {}
        repeated = torch.tensor(self._repeated, dtype=torch.int64)
        return {"again": torch.from_numpy(self._again.astype(np.int64)), "repeated": repeated}

    def restore(self, state: Mapping[str, torch.Tensor]) -> None:
        """Be as the queue of which this is a snapshot."""
        self._again, self._repeated = np.zeros(0, dtype=np.intp), 0
        if state:
            self._again = state["again"].numpy().astype(np.intp)
            self._repeated = int(state["repeated"])

    def _next(self, step: int) -> tuple[int, IntArray]:
        """Return the first place that a step draws afresh, and which places it draws again."""
        first = step * self._batch_size - self._repeated
        left = -first % self._size  # of the epoch
        return first, self._again[: max(0, self._batch_size - left)]

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
    concatenation of one permutation of the dataset per epoch, epoch ``e`` drawn by
    ``numpy.random.default_rng([seed, e])``: every point comes once an epoch, and a step can be
    computed without the steps before it, unless these have lost points (`Decoding.lost`), which
    come again.

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
    """The orders of epochs that were asked for last: all that fit, and a few however long they are.

    Of each model one is asked for in every step, or two where an epoch ends. Those of epochs that
    are over are forgotten: of short ones millions would fit.
    """

    def __init__(self) -> None:
        self._kept: Final[OrderedDict[tuple[int, int, int], IntArray]] = OrderedDict()
        self._bytes = 0
        self._lock: Final = Lock()  # runs in several threads share them

    def find(self, size: int, seed: int, epoch: int) -> IntArray:
        """Return the points of a data set in the order of an epoch, (size,)."""
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
