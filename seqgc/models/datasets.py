"""Datasets: points, batches of points, augmentation, and datasets stored by `seqgc data put`.

All workers that compute a chunk must use the same data. Therefore an augmented item of an
`AugmentedDataset` depends only on a seed, the epoch and the item: every worker, on any machine and
at any time, draws the same random numbers. The epoch is contained in the index: item ``i`` in epoch
``e`` of a dataset of ``n`` items is point ``e * n + i``.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence, Sized
from contextlib import ExitStack
from functools import cached_property
from typing import Any, Final, Protocol, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Subset, TensorDataset, default_collate

from seqgc.errors import ParameterError, refusing, require_int
from seqgc.ports import IntArray
from seqgc.stores import StoredData, data_places, find_data

__all__ = [
    "AugmentedDataset",
    "PointDataset",
    "StoredPoints",
    "cast_floats",
    "collate",
    "has_tensors",
    "items_of",
    "leaves_of",
    "map_tensors",
    "require_points",
    "sample_points",
    "stacked",
    "stored_points",
]


class PointDataset(Protocol):
    """A map-style dataset: item ``i`` is ``(x, y)``, the same on every read.

    ``x`` and ``y`` are tensors, arrays or numbers, or nested dictionaries, lists and tuples of
    them. The module is called with ``x``, and the loss with the module's output and ``y``.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> tuple[object, object]: ...


def require_points(argument: str, dataset: PointDataset) -> None:
    """Raise `ParameterError` unless the dataset is map-style and has at least one point."""
    kind = type(dataset).__name__
    # IterableDataset inherits a __getitem__ that only raises.
    if isinstance(dataset, IterableDataset) or not (
        hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    ):
        rule = "must be map-style (__len__ and __getitem__): a worker reads any chunk of any batch"
        raise ParameterError(argument, rule, kind, "gather the items, e.g. list(dataset)")
    with refusing(argument, "must say how many points it holds ({})", kind):
        length = len(dataset)
    if length < 1:
        raise ParameterError(argument, "must hold at least one data point", length)


def sample_points(dataset: PointDataset, most: int) -> IntArray:
    """Return the indices of at most ``most`` items, spread evenly from the first to the last."""
    return np.unique(np.linspace(0, len(dataset) - 1, most).astype(np.intp))


# ---- batches -------------------------------------------------------------------------------------


def collate(dataset: PointDataset, points: IntArray, *, dtype: torch.dtype) -> tuple[Any, Any]:
    """Return ``(x, y)`` of ``points`` (m,), stacked along a first axis, floats as ``dtype``.

    ``x`` and ``y`` are tensors, or dictionaries, lists and tuples of tensors, as in the items.
    """
    x, y = stacked(dataset, points)
    return cast_floats(x, dtype), cast_floats(y, dtype)


def stacked(dataset: PointDataset, points: IntArray) -> tuple[Any, Any]:
    """Return ``(x, y)`` of ``points`` (m,), stacked along a first axis, in the items' dtypes."""
    batch: object = _rows(dataset, points)
    if batch is None:
        batch = default_collate([dataset[int(point)] for point in points])
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        item: object = dataset[int(points[0])]
        length = f" of length {len(item)}" if isinstance(item, Sized) else ""
        raise ParameterError(
            "dataset",
            "must give pairs (x, y), each a tensor or tensors in dictionaries, lists and tuples",
            f"items of type {type(item).__name__}{length} in {type(dataset).__name__}",
            "nest several inputs or targets, e.g. ((x1, x2), y) or (x, {'a': y1, 'b': y2})",
        )
    return batch[0], batch[1]


def has_tensors(dataset: PointDataset) -> bool:
    """Return True if the items are certainly rows of the dataset's tensors.

    A subclass of `TensorDataset` that overrides ``__getitem__`` may change the items.
    """
    return getattr(type(dataset), "__getitem__", None) is TensorDataset.__getitem__


def _rows(dataset: PointDataset, points: IntArray) -> list[Tensor] | None:
    """Return the tensors of a batch without m Python calls; None if the dataset has other items.

    A subclass of `Subset` that has its own ``__getitem__`` has other items.
    """
    if getattr(type(dataset), "__getitem__", None) is Subset.__getitem__:
        subset = cast("Subset[tuple[object, object]]", dataset)
        whole: Any = subset.dataset
        inner = np.array([int(subset.indices[point]) for point in points.tolist()], dtype=np.intp)
        return _rows(whole, np.where(inner < 0, inner + len(whole), inner))
    if not has_tensors(dataset):
        return None
    index = torch.from_numpy(points.copy())  # torch warns of read-only arrays
    return [column.index_select(0, index) for column in cast("TensorDataset", dataset).tensors]


def map_tensors(value: object, function: Callable[[Tensor], Tensor]) -> object:
    """Apply ``function`` to every tensor of a value (tensor, sequence or mapping).

    The types of mappings and named tuples are preserved; other sequences become lists.
    """
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        parts = {key: map_tensors(item, function) for key, item in value.items()}
        if type(value) is dict or not isinstance(value, MutableMapping):
            return parts
        same = copy.copy(value)
        same.update(parts)
        return same
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        named = cast("Callable[..., object]", type(value))
        return named(*(map_tensors(item, function) for item in value))
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [map_tensors(item, function) for item in value]
    return value


def cast_floats(value: object, dtype: torch.dtype) -> object:
    """Cast every floating-point tensor of a value (tensor, sequence or mapping) to ``dtype``."""
    return map_tensors(value, lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf)


def leaves_of(value: object) -> list[Tensor]:
    """Return every tensor of a value (tensor, sequence or mapping)."""
    leaves: list[Tensor] = []

    def collect(leaf: Tensor) -> Tensor:
        leaves.append(leaf)
        return leaf

    map_tensors(value, collect)
    return leaves


# ---- augmentation --------------------------------------------------------------------------------


class AugmentedDataset:
    """A map-style dataset whose inputs are changed at random, differently in every epoch.

    ``transform`` is a function ``x -> x``, for example from torchvision. The numbers that it draws
    from the global generators of torch, numpy and Python depend only on ``seed``, the epoch and the
    item; afterwards, the states of the generators are restored. An index from ``len(dataset)`` on
    is an item of a later epoch; iteration yields the items of the first epoch.

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


def items_of(dataset: PointDataset, points: IntArray) -> IntArray:
    """Return the dataset's indices of points whose numbers also contain the epoch."""
    return points if isinstance(dataset, AugmentedDataset) else points % len(dataset)


# ---- stored datasets -----------------------------------------------------------------------------


class StoredPoints(TensorDataset):
    """The points of a stored dataset, read when first needed; ``part`` is ``""`` or ``"_test"``.

    The pickle contains only the name, the place and the digest. Unpickling opens the dataset again,
    in the same place or in the places of the other process, even if a newer version has replaced
    it. If only a dataset with the same name and other contents is found, `ParameterError` is
    raised.
    """

    def __init__(self, stored: StoredData, part: str = "") -> None:
        self.stored, self.part = stored, part

    @cached_property
    def tensors(self) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        """The inputs and the targets, mapped to memory or fetched on first use."""
        return tuple(torch.from_numpy(self.stored.read(f"{key}{self.part}")) for key in ("x", "y"))

    def __len__(self) -> int:
        return self.stored.arrays[f"x{self.part}"].shape[0]

    @property
    def digest(self) -> str:
        """A text that is equal only for equal points."""
        return f"{self.stored.digest}{self.part}"

    @property
    def data_bytes(self) -> int:
        """The size of inputs and targets together."""
        return sum(self.stored.arrays[f"{key}{self.part}"].data_bytes for key in ("x", "y"))

    def __reduce__(self) -> tuple[object, ...]:
        stored = self.stored
        return _opened, (stored.name, stored.place, stored.digest, self.part)


def _opened(name: str, place: str, digest: str, part: str) -> StoredPoints:
    stored = find_data(name, (place, *data_places()), digest=digest)
    if stored is None or stored.digest != digest:
        rule = f"must be the dataset that the run began with, digest {digest[:12]}, which is gone"
        raise ParameterError("data", rule, name, "store it again: seqgc data put")
    return StoredPoints(stored, part)


def stored_points(stored: StoredData) -> tuple[StoredPoints, StoredPoints]:
    """Return the points for training and the points for testing.

    If the dataset has no test part, both are the same.
    """
    train = StoredPoints(stored)
    return train, StoredPoints(stored, "_test") if "x_test" in stored.arrays else train
