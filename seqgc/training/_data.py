"""Data points of a map-style dataset as one batch of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from seqgc.ports import IntArray

__all__ = ["PointDataset", "collate", "map_tensors"]


class PointDataset(Protocol):
    """A map-style dataset: item ``i`` is ``(x, y)``, the same on every read."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> tuple[object, object]: ...


def collate(
    dataset: PointDataset, points: IntArray, *, dtype: torch.dtype
) -> tuple[object, Tensor]:
    """Return ``(x, y)`` of ``points`` (m,), stacked along a first axis; floats become ``dtype``."""
    if isinstance(dataset, TensorDataset):  # the same tensors, without m Python calls
        index = torch.tensor(points)
        x, y = (column[index] for column in dataset.tensors)
    else:
        x, y = default_collate([dataset[int(point)] for point in points])

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return map_tensors(x, cast), cast(y)


def map_tensors(value: object, function: Callable[[Tensor], Tensor]) -> object:
    """Apply ``function`` to every tensor of a collated value (tensor, sequence or mapping)."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(item, function) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [map_tensors(item, function) for item in value]
    return value
