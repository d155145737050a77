"""Dropout that is exact under every code: its mask follows from the seed, the epoch and the item.

A coded gradient is right only if all workers that compute a chunk drop the same elements, whichever
data points they compute together. `torch.nn.Dropout` draws from a state that each process has for
itself. The mask of a `Dropout` layer is instead a function of the model's seed, the data point's
place in training (item ``i`` in epoch ``e`` of a data set of ``n`` is point ``e * n + i``), the
layer, and how often the layer has been called before in the forward pass. So every worker drops the
same elements of a point.

The context `dropout_masks` tells the layers which points they compute. A worker opens it around the
forward and the backward pass. Bits are drawn by hashing: a counter is added to the point's key and
mixed, as in G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number generators", OOPSLA
2014.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod
from typing import Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from seqgc.errors import ParameterError, require_int, require_number
from seqgc.models.augmentation import AugmentedDataset
from seqgc.models.points import PointDataset
from seqgc.ports import IntArray

__all__ = ["Dropout", "Layers", "dropout_layers", "dropout_masks", "items_of", "masks_of"]

_Words: TypeAlias = NDArray[np.uint64]

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


class Dropout(nn.Module):
    """A layer like `torch.nn.Dropout`, whose gradient is exact under every code.

    In training mode each element is set to 0 with probability ``p``, and the others are multiplied
    by ``1 / (1 - p)``. In eval mode the input is returned. The data points of the batch must lie
    along the first axis of the input; a point may have several rows there, one after the other.

    With ``axes``, elements that have the same indices along the first ``axes`` axes are dropped
    together: 2 drops whole channels, as `torch.nn.Dropout2d` does, and 1 drops whole rows.

    A run draws masks by the model's seed, the epoch and the item. Every layer draws its own mask,
    and a layer that is called several times in a forward pass draws a new one each time. Outside a
    run and outside `dropout_masks`, masks are drawn from torch's global generator.

    Raises
    ------
    ParameterError
        If ``p`` is not in [0, 1), or ``axes`` below 1; in a forward pass, if the first axis of the
        input is not a multiple of the number of data points.

    Examples
    --------
    >>> import torch
    >>> from seqgc.training import Dropout, dropout_masks
    >>> layer, x = Dropout(0.5), torch.ones(3, 8)
    >>> with dropout_masks(layer, [4, 9, 2], seed=1):
    ...     three = layer(x)
    >>> with dropout_masks(layer, [9], seed=1):
    ...     one = layer(x[:1])
    >>> torch.equal(three[1:2], one), torch.equal(layer.eval()(x), x)
    (True, True)
    """

    def __init__(self, p: float = 0.5, *, axes: int | None = None) -> None:
        super().__init__()
        if not require_number("p", p, least=0, most=1) < 1:
            raise ParameterError("p", "must be below 1: nothing would be left", p)
        self.p: Final = p
        self.axes: Final = None if axes is None else require_int("axes", axes, least=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x``, in training mode with some elements set to 0 and the others scaled."""
        if not self.training or self.p == 0:
            return x
        axes = x.ndim if self.axes is None else min(self.axes, x.ndim)
        shape = (*x.shape[:axes], *[1] * (x.ndim - axes))
        draws = _current.get()
        kept = torch.rand(shape) >= self.p if draws is None else draws.kept(self, shape)
        return x * (kept.to(device=x.device, dtype=x.dtype) / (1 - self.p))

    def extra_repr(self) -> str:
        """Return the arguments."""
        return f"p={self.p}" + (f", axes={self.axes}" if self.axes is not None else "")


Layers: TypeAlias = Mapping[Dropout, int]
"""The `Dropout` layers of a module, numbered in their order."""


class _Draws:
    """The masks of one forward pass and of the backward pass that follows it."""

    def __init__(self, layers: Layers, points: IntArray, seed: int) -> None:
        self._layers, self._seed = layers, seed
        self._points: Final = np.asarray(points).astype(np.uint64)
        self._calls = Counter[Dropout]()

    def kept(self, layer: Dropout, shape: Sequence[int]) -> Tensor:
        """Return a mask of this shape that is True for the elements that the layer keeps."""
        if layer not in self._layers:
            rule = "must have each Dropout layer as a submodule, so that it can be numbered"
            raise ParameterError("module", rule, repr(layer), "assign it in __init__")
        count = len(self._points)
        if not shape or shape[0] % count:
            rule = f"must give a Dropout layer its {count} data points along the first axis"
            remedy = "use batch_first=True, or apply the layer before the axes are exchanged"
            raise ParameterError("module", rule, tuple(shape), remedy)
        seed = np.random.SeedSequence([self._seed, self._layers[layer], self._call(layer)])
        keys = _mixed(seed.generate_state(1, np.uint64) + self._points * _GOLDEN)
        words = _words(keys, prod(shape) // count)
        kept = words >= np.uint32(min(round(layer.p * 2**32), 2**32 - 1))
        return torch.from_numpy(kept).reshape(tuple(shape))

    def _call(self, layer: Dropout) -> int:
        """Return how often the layer has been called before in this forward pass.

        A call that is recomputed in the backward pass has the number of the original call.
        """
        if torch._C._current_graph_task_id() < 0:
            self._calls[layer] += 1
            return self._calls[layer] - 1
        # A backward pass recomputes activations that were not kept (torch.utils.checkpoint).
        if self._calls[layer] > 1:
            rule = "must not call a Dropout layer several times where activations are recomputed"
            raise ParameterError(
                "module", rule, repr(layer), "use a layer of its own for each call"
            )
        return 0


_current: Final = ContextVar[_Draws | None]("_current", default=None)


def dropout_layers(module: nn.Module) -> Layers:
    """Return the `Dropout` layers of a module with their numbers."""
    found = (each for each in module.modules() if isinstance(each, Dropout))
    return {layer: number for number, layer in enumerate(found)}


@contextmanager
def dropout_masks(
    module: nn.Module, points: IntArray | Sequence[int], *, seed: int
) -> Iterator[None]:
    """Let the `Dropout` layers of ``module`` draw the masks of ``points`` (m,) in this block.

    A run opens this context by itself. A loop without workers has the masks of a run if its forward
    and its backward pass are both in the block. Point ``e * n + i`` is item ``i`` of a data set of
    ``n`` in epoch ``e``. ``seed`` is that of the model.

    Examples
    --------
    >>> import torch
    >>> from seqgc.training import Dropout, dropout_masks
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 64), Dropout(0.25))
    >>> with dropout_masks(net, [0, 1], seed=0):
    ...     first = net(torch.ones(2, 2))
    >>> with dropout_masks(net, [0, 1], seed=0):
    ...     again = net(torch.ones(2, 2))
    >>> torch.equal(first, again)
    True
    """
    with masks_of(dropout_layers(module), points, seed=seed):
        yield


@contextmanager
def masks_of(layers: Layers, points: IntArray | Sequence[int], *, seed: int) -> Iterator[None]:
    """Let these layers draw the masks of ``points`` in this block, see `dropout_masks`."""
    before = _current.set(_Draws(layers, np.asarray(points), seed))
    try:
        yield
    finally:
        _current.reset(before)


def items_of(dataset: PointDataset, points: IntArray) -> IntArray:
    """Return the indices into a data set of points, which count on from epoch to epoch."""
    if isinstance(dataset, AugmentedDataset):
        return points
    return points % len(dataset)


def _words(keys: _Words, size: int) -> NDArray[np.uint32]:
    """Return ``size`` random numbers for each key, (keys, size)."""
    counters = np.arange(1, -(-size // 2) + 1, dtype=np.uint64) * _GOLDEN
    drawn = _mixed(keys[:, None] + counters).astype("<u8", copy=False)
    return drawn.view("<u4")[:, :size]


def _mixed(words: _Words) -> _Words:
    """Mix the bits of words in place, by the finaliser of SplitMix64, and return them."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words
