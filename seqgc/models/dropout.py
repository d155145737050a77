"""Dropout that is exact under every code: its mask depends only on the seed, epoch and item.

A coded gradient is correct only if all workers that compute a chunk drop the same elements,
whichever data points they compute together. `torch.nn.Dropout` draws from a state that differs
between processes. The mask of a `Dropout` layer is instead a function of four values: the model's
seed, the data point (item ``i`` in epoch ``e`` of a dataset of ``n`` items is point
``e * n + i``), the layer, and the number of earlier calls of the layer in the same forward pass.

The context `dropout_masks` sets the points that the layers compute. A worker opens it around the
forward and the backward pass. Random bits come from a hash: a counter is added to the point's key,
and the sum is mixed as in G. Steele, D. Lea, C. Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from math import prod
from typing import Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from seqgc.errors import ParameterError, require_int, require_number
from seqgc.ports import IntArray

__all__ = ["Dropout", "Layers", "dropout_layers", "dropout_masks", "masks_of", "stacked_masks_of"]

_Words: TypeAlias = NDArray[np.uint64]

_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)


class Dropout(nn.Module):
    """A layer like `torch.nn.Dropout`, whose gradient is exact under every code.

    In training mode each element is set to 0 with probability ``p``, and the others are multiplied
    by ``1 / (1 - p)``. In eval mode the input is returned. The data points of the batch must lie
    along the first axis of the input; a point may have several consecutive rows. If ``axes`` is
    given, elements that have the same indices along the first ``axes`` axes are dropped together: 2
    drops whole channels, as `torch.nn.Dropout2d` does, and 1 drops whole rows.

    In a run, masks follow from the model's seed, the epoch and the item. Every layer has its own
    mask, and each call of a layer in a forward pass has a new one. Outside a run and outside
    `dropout_masks`, masks are drawn from torch's global generator.

    Raises
    ------
    ParameterError
        If ``p`` is not in [0, 1), or ``axes`` is below 1. In a forward pass, if the length of the
        first axis is not a multiple of the number of data points.

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
            raise ParameterError("p", "must be below 1: with 1 every element is dropped", p)
        self.p: Final = p
        self.axes: Final = None if axes is None else require_int("axes", axes, least=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``x``; in training mode, set some elements to 0 and scale the rest."""
        if not self.training or self.p == 0:
            return x
        axes = x.ndim if self.axes is None else min(self.axes, x.ndim)
        shape = (*x.shape[:axes], *[1] * (x.ndim - axes))
        masks = _current.get()
        mask = torch.rand(shape) >= self.p if masks is None else masks.draw(self, shape)
        return x * (mask.to(device=x.device, dtype=x.dtype) / (1 - self.p))

    def extra_repr(self) -> str:
        """Return the arguments, as `torch.nn.Module` shows them."""
        return f"p={self.p}" + (f", axes={self.axes}" if self.axes is not None else "")


Layers: TypeAlias = Mapping[Dropout, int]
"""The `Dropout` layers of a module, numbered in their order."""


class _PassMasks:
    """The masks of one forward pass and of its backward pass."""

    def __init__(self, layers: Layers, points: IntArray, seed: int) -> None:
        self._layers, self._seed = layers, seed
        self._points: Final = np.asarray(points).astype(np.uint64)
        self._calls = Counter[Dropout]()

    def draw(self, layer: Dropout, shape: Sequence[int]) -> Tensor:
        """Return a mask of this shape that is True for elements that are not dropped."""
        if layer not in self._layers:
            rule = "must have each Dropout layer as a submodule, since submodules are numbered"
            raise ParameterError("module", rule, repr(layer), "assign the layer in __init__")
        count = len(self._points)
        if not shape or shape[0] % count:
            rule = f"must give a Dropout layer its {count} data points along the first axis"
            remedy = "use batch_first=True, or apply the layer before the axes are swapped"
            raise ParameterError("module", rule, tuple(shape), remedy)
        seed = np.random.SeedSequence([self._seed, self._layers[layer], self._call(layer)])
        keys = _mix(seed.generate_state(1, np.uint64) + self._points * _GOLDEN)
        numbers = _random_numbers(keys, prod(shape) // count)
        mask = numbers >= np.uint32(min(round(layer.p * 2**32), 2**32 - 1))
        return torch.from_numpy(mask).reshape(tuple(shape))

    def _call(self, layer: Dropout) -> int:
        """Return the number of earlier calls of the layer in this forward pass.

        If the backward pass recomputes a call, the result is the same as for the original call.
        """
        if torch._C._current_graph_task_id() < 0:
            self._calls[layer] += 1
            return self._calls[layer] - 1
        # torch.utils.checkpoint recomputes activations in the backward pass.
        if self._calls[layer] > 1:
            rule = "must not call a Dropout layer several times where activations are recomputed"
            raise ParameterError("module", rule, repr(layer), "use a new layer for each call")
        return 0


class _StackedMasks:
    """The masks of a forward pass that computes several models (`stacked_masks_of`)."""

    def __init__(self, passes: Sequence[_PassMasks], number: Tensor) -> None:
        self._passes, self._number = passes, number

    def draw(self, layer: Dropout, shape: Sequence[int]) -> Tensor:
        """Return the mask of the model whose number `torch.vmap` maps over."""
        return torch.stack([each.draw(layer, shape) for each in self._passes])[self._number]


_current: Final = ContextVar[_PassMasks | _StackedMasks | None]("_current", default=None)


def dropout_layers(module: nn.Module) -> Layers:
    """Return the `Dropout` layers of a module with their numbers."""
    layers = (part for part in module.modules() if isinstance(part, Dropout))
    return {layer: number for number, layer in enumerate(layers)}


@contextmanager
def dropout_masks(
    module: nn.Module, points: IntArray | Sequence[int], *, seed: int
) -> Iterator[None]:
    """Make the `Dropout` layers of ``module`` draw the masks of ``points`` (m,) in this block.

    A run opens this context itself. A training loop without workers gets the same masks if its
    forward and its backward pass are both in the block. Item ``i`` in epoch ``e`` of a dataset of
    ``n`` items is point ``e * n + i``. ``seed`` is the seed of the model.
    """
    with masks_of(dropout_layers(module), points, seed=seed):
        yield


@contextmanager
def masks_of(layers: Layers, points: IntArray | Sequence[int], *, seed: int) -> Iterator[None]:
    """Do the same as `dropout_masks` for layers that are already numbered."""
    token = _current.set(_PassMasks(layers, np.asarray(points), seed))
    try:
        yield
    finally:
        _current.reset(token)


def stacked_masks_of(
    layers: Layers, points: Sequence[IntArray], *, seeds: Sequence[int]
) -> Callable[[Tensor], AbstractContextManager[None]]:
    """Return a context for a function that `torch.vmap` maps over several models.

    The argument of the context is the number of a model, a tensor (). In the context, the `Dropout`
    layers draw the same masks as in `masks_of` with the ``points`` and the seed of this model.
    """
    passes = [
        _PassMasks(layers, each, seed) for each, seed in zip(points, seeds, strict=True) if layers
    ]

    @contextmanager
    def masks(number: Tensor) -> Iterator[None]:
        token = _current.set(_StackedMasks(passes, number))
        try:
            yield
        finally:
            _current.reset(token)

    return masks


def _random_numbers(keys: _Words, size: int) -> NDArray[np.uint32]:
    """Return ``size`` random numbers for each key, (keys, size)."""
    counters = np.arange(1, -(-size // 2) + 1, dtype=np.uint64) * _GOLDEN
    words = _mix(keys[:, None] + counters).astype("<u8", copy=False)
    return words.view("<u4")[:, :size]


def _mix(words: _Words) -> _Words:
    """Mix the bits of ``words`` in place, by the finaliser of SplitMix64, and return them."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words
