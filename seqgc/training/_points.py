"""Data points as a batch of tensors, and losses with one value for each: what a code can weigh."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from seqgc.errors import ParameterError, did_you_mean, refusing
from seqgc.ports import IntArray

__all__ = [
    "LOSSES",
    "Loss",
    "PointDataset",
    "collate",
    "map_tensors",
    "named_loss",
    "per_point_loss",
    "point_losses",
    "require_points",
]

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]

LOSSES: Mapping[str, Callable[[], nn.Module]]
LOSSES = {"cross-entropy": nn.CrossEntropyLoss, "mse": nn.MSELoss}
"""Losses by name."""

_REMEDY = (
    "use reduction='none', e.g. functools.partial(torch.nn.functional.cross_entropy, "
    "reduction='none'); the division by the batch size is seqgc's"
)


class PointDataset(Protocol):
    """A map-style dataset: item ``i`` is ``(x, y)``, the same on every read."""

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


def named_loss(name: str) -> nn.Module:
    """Return a new loss of `LOSSES`, or raise `ParameterError`."""
    if name not in LOSSES:
        rule = f"must be one of {', '.join(LOSSES)}"
        raise ParameterError("loss", rule, name, did_you_mean(str(name), LOSSES))
    return LOSSES[name]()


def per_point_loss(loss: Loss) -> Loss:
    """Return ``loss``, or its twin that does not reduce, if ``loss`` is an nn loss with a mean.

    A sum is refused, and a mean whose divisor depends on which points share the batch.
    """
    if not callable(loss):
        raise ParameterError(
            "loss", "must be callable, (output, target) -> one value a point", loss
        )
    if not isinstance(loss, nn.modules.loss._Loss) or loss.reduction == "none":
        return loss
    if loss.reduction != "mean":
        raise ParameterError("loss", "must not add up its points", loss.reduction, _REMEDY)
    # Both options make torch divide by the total class weight of the batch's targets, which no
    # single chunk knows.
    if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss) and (
        loss.weight is not None or loss.ignore_index >= 0
    ):
        option = "weight" if loss.weight is not None else "ignore_index"
        raise ParameterError(
            "loss",
            "must divide by the batch size alone",
            f"{type(loss).__name__}({option}=..., reduction='mean')",
            "use reduction='none': each point keeps its weight, and the batch size divides",
        )
    unreduced = copy.deepcopy(loss)
    unreduced.reduction = "none"
    return unreduced


def point_losses(loss: Loss, output: Tensor, target: Tensor, *, count: int) -> Tensor:
    """Return the (count,) losses of ``count`` points, averaged over any further axes."""
    losses = loss(output, target)
    if losses.ndim == 0 or losses.shape[0] != count:
        rule = f"must yield one value for each of {count} points"
        raise ParameterError("loss", rule, tuple(losses.shape), _REMEDY)
    return losses if losses.ndim == 1 else losses.flatten(1).mean(1)
