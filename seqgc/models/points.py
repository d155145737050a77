"""Data points: what a dataset must offer, and how points become a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, Sequence, Sized
from typing import Any, Final, Protocol, cast

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from seqgc.errors import ParameterError, refusing
from seqgc.ports import IntArray

__all__ = ["PointDataset", "collate", "leaves_of", "map_tensors", "require_points", "stacked"]

_REMEDY = (
    "use a loss such as torch.nn.CrossEntropyLoss(), or a function that returns one value for each "
    "point, or a pair (values, weights) for the mean sum(values) / sum(weights)"
)

_WEIGHTED: Final = (nn.CrossEntropyLoss, nn.NLLLoss)
_MEANS: Final = frozenset(
    {
        *_WEIGHTED,
        nn.BCELoss,
        nn.BCEWithLogitsLoss,
        nn.GaussianNLLLoss,
        nn.HingeEmbeddingLoss,
        nn.HuberLoss,
        nn.KLDivLoss,
        nn.L1Loss,
        nn.MSELoss,
        nn.MultiLabelMarginLoss,
        nn.MultiLabelSoftMarginLoss,
        nn.MultiMarginLoss,
        nn.PoissonNLLLoss,
        nn.SmoothL1Loss,
        nn.SoftMarginLoss,
    }
)
"""The losses of torch whose mean is that of the values which ``reduction='none'`` returns."""


class PointDataset(Protocol):
    """A map-style dataset: item ``i`` is ``(x, y)``, the same on every read.

    ``x`` and ``y`` are tensors, arrays or numbers, or nests of these in dictionaries, lists and
    tuples. The module is called with ``x``, the loss with the module's output and ``y``.
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> tuple[object, object]: ...


def require_points(argument: str, dataset: PointDataset) -> None:
    """Refuse what is no map-style dataset with a point."""
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


def collate(dataset: PointDataset, points: IntArray, *, dtype: torch.dtype) -> tuple[Any, Any]:
    """Return ``(x, y)`` of ``points`` (m,), stacked along a first axis; floats become ``dtype``.

    Each of the two is a tensor, or tensors in dictionaries, lists and tuples, as the items have it.
    """
    x, y = stacked(dataset, points)

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return map_tensors(x, cast), map_tensors(y, cast)


def stacked(dataset: PointDataset, points: IntArray) -> tuple[Any, Any]:
    """Return ``(x, y)`` of ``points`` (m,), stacked along a first axis, in the items' own dtypes.

    Raises
    ------
    ParameterError
        If the items are no pairs.
    """
    batch: object
    # The same tensors without m Python calls, unless a subclass has items of its own.
    if getattr(type(dataset), "__getitem__", None) is TensorDataset.__getitem__:
        index = torch.from_numpy(points.copy())  # torch warns of read-only arrays
        batch = [column.index_select(0, index) for column in cast("TensorDataset", dataset).tensors]
    else:
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


def map_tensors(value: object, function: Callable[[Tensor], Tensor]) -> object:
    """Apply ``function`` to every tensor of a value (tensor, sequence or mapping).

    Mappings and named tuples keep their types, other sequences become lists.
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


def leaves_of(value: object) -> list[Tensor]:
    """Return every tensor of a value (tensor, sequence or mapping)."""
    leaves: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        leaves.append(tensor)
        return tensor

    map_tensors(value, note)
    return leaves
