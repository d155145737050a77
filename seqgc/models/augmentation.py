"""Augmentation that differs by epoch, and is the same for every worker that computes a point.

A coded gradient needs all workers that repeat a chunk to see the same data. So an augmented item is
a function of a seed, the epoch and the item, and of nothing else: whoever reads it, whenever, on
whatever machine, draws the same random numbers. The epoch reaches workers in the index: item ``i``
in epoch ``e`` of a data set of ``n`` is index ``e * n + i``, the point's place in training.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

import numpy as np
import torch

from seqgc.errors import ParameterError, require_int
from seqgc.models.points import PointDataset

__all__ = ["AugmentedDataset"]


class AugmentedDataset:
    """A map-style dataset whose inputs are changed at random, differently in every epoch.

    ``transform`` is ``x -> x``; the random numbers that it draws from torch's, numpy's or Python's
    global generators follow from ``seed``, the epoch and the item, and leave the generators as they
    were. So torchvision's transforms will do. An index from ``len(dataset)`` on is an item of a
    later epoch; read as any data set, it has the items of the first one.

    Raises
    ------
    ParameterError
        If an argument breaks its rule.

    Examples
    --------
    >>> points = torch.utils.data.TensorDataset(torch.zeros(2, 3), torch.tensor([0, 1]))
    >>> noisy = AugmentedDataset(points, transform=lambda x: x + torch.randn(3), seed=1)
    >>> first, again, second = (noisy[index][0] for index in (1, 1, 1 + len(noisy)))
    >>> torch.equal(first, again), torch.equal(first, second)
    (True, False)
    """

    def __init__(
        self, dataset: PointDataset, *, transform: Callable[[object], object], seed: int = 0
    ) -> None:
        if not callable(transform):
            raise ParameterError("transform", "must be a function x -> x", transform)
        self.dataset: Final = dataset
        self.transform: Final = transform
        self.seed: Final = require_int("seed", seed, least=0)

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[tuple[object, object]]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> tuple[object, object]:
        if index < 0:
            raise IndexError(index)
        epoch, item = divmod(index, len(self))
        x, y = self.dataset[item]
        with ExitStack() as states:
            states.enter_context(torch.random.fork_rng(devices=[]))
            states.callback(random.setstate, random.getstate())
            states.callback(np.random.set_state, np.random.get_state())  # noqa: NPY002 (as transforms)
            words = np.random.SeedSequence([self.seed, epoch, item]).generate_state(4)
            torch.manual_seed(int(words[0]) << 32 | int(words[1]))
            random.seed(int(words[2]))
            np.random.seed(words[3])  # noqa: NPY002
            return self.transform(x), y
