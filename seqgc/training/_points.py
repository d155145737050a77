"""Data points as a batch of tensors, and losses with one value for each: what a code can weigh."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence, Sized
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset, TensorDataset, default_collate

from seqgc.errors import ParameterError, refusing
from seqgc.ports import FloatArray, IntArray

__all__ = [
    "LOSSES",
    "Loss",
    "PointDataset",
    "PointLoss",
    "PointLosses",
    "collate",
    "leaves_of",
    "loss_in",
    "map_tensors",
    "per_point_loss",
    "point_losses",
    "require_mean",
    "require_points",
    "stacked",
]

Loss: TypeAlias = Callable[[Any, Any], Tensor | tuple[Tensor, Tensor]]
"""``(output, target) -> values``, or ``(values, weights)`` for a mean of ``sum v / sum w``."""

LOSSES: Mapping[str, Callable[[], nn.Module]]
LOSSES = {"cross-entropy": nn.CrossEntropyLoss, "mse": nn.MSELoss}
"""Losses by name."""

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


def per_point_loss(loss: Loss) -> Loss:
    """Return a loss that returns one value for each point, made of a torch loss if it has a mean.

    Sums are refused, as are losses whose mean is not known to be one over points, and losses with
    trainable parameters of their own. A ``loss`` that is no torch loss is returned as it is.
    """
    if not callable(loss):
        raise ParameterError(
            "loss", "must be callable, (output, target) -> one value a point", loss
        )
    if not isinstance(loss, nn.Module):
        return loss
    if trained := [name for name, each in loss.named_parameters() if each.requires_grad]:
        rule = "must have no trainable parameters: only those of the module are trained"
        remedy = "move them into the module, or set requires_grad=False"
        raise ParameterError("loss", rule, f"{type(loss).__name__} with {trained[0]}", remedy)
    if not isinstance(loss, nn.modules.loss._Loss) or loss.reduction == "none":
        return loss
    own = type(loss).__module__ != nn.modules.loss.__name__  # a subclass, with a mean of its own
    if loss.reduction == "mean" and (type(loss) in _MEANS or own):
        return PointLoss(loss) if own or type(loss) in _WEIGHTED else _unreduced(loss)
    if loss.reduction == "batchmean" and isinstance(loss, nn.KLDivLoss):
        return PointLoss(loss)
    rule = "must be a mean over the data points"
    got = f"{type(loss).__name__} with reduction={loss.reduction!r}"
    raise ParameterError("loss", rule, got, _REMEDY)


class PointLoss(nn.Module):
    """The values and weights of single data points, made of a torch loss that is their mean.

    ``mean`` is the torch loss: it equals ``sum(values) / sum(weights)``. ``forward`` returns
    ``values`` alone if all weights are 1. `torch.nn.CrossEntropyLoss` and `torch.nn.NLLLoss` give a
    target the weight of its class (``weight``), or 0 if it is ``ignore_index``. Label smoothing
    changes no weight; targets that are probabilities have the weight 1.

    Examples
    --------
    >>> output, target = torch.zeros(3, 2), torch.tensor([0, 1, -100])
    >>> loss = PointLoss(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0])))
    >>> values, weights = loss(output, target)
    >>> weights
    tensor([1., 3., 0.])
    >>> bool(values.sum() / weights.sum() == loss.mean(output, target))
    True
    """

    reduction: Final = "none"

    def __init__(self, mean: nn.Module) -> None:
        super().__init__()
        self.mean: Final = copy.deepcopy(mean)
        self._each: Final = _unreduced(mean)

    def forward(self, output: Tensor, target: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return the values (m, ...), with their weights (m, ...) if these may differ from 1."""
        values: Tensor = self._each(output, target)
        if self.mean.reduction == "batchmean":
            return values.flatten(1).sum(1) if values.ndim > 1 else values
        if not isinstance(self.mean, _WEIGHTED):
            return values
        if target.is_floating_point():  # probabilities: torch divides by the number of points
            return values
        counts = target != self.mean.ignore_index
        if self.mean.weight is None:
            return values, counts.to(values.dtype)
        return values, self.mean.weight[target * counts] * counts


def _unreduced(loss: nn.Module) -> nn.Module:
    twin = copy.deepcopy(loss)
    setattr(twin, "reduction", "none")  # noqa: B010 (unknown to type checkers)
    return twin


def loss_in(loss: Loss, dtype: torch.dtype) -> Loss:
    """Return a loss whose own tensors, such as class weights, have the dtype of the computation."""
    if isinstance(loss, nn.Module):
        return cast("Loss", copy.deepcopy(loss).to(device="cpu", dtype=dtype))
    return loss


class PointLosses(NamedTuple):
    """Losses of m data points: ``values`` (m,), and their ``weights`` (m,) in the mean.

    ``of_targets`` are the weights of the single targets, (m, ...). ``weights`` and ``of_targets``
    are None if all weights are 1.
    """

    values: Tensor
    weights: Tensor | None = None
    of_targets: Tensor | None = None

    @property
    def sums(self) -> tuple[float, float]:
        """The sums of values and weights, in double precision."""
        weight = len(self.values) if self.weights is None else float(self.weights.sum())
        return float(self.values.double().sum()), weight

    def weight(self, coefficients: FloatArray, total: float) -> float:
        """Return the sum of the weights times ``coefficients`` (m,), whose own sum is ``total``.

        If all weights are 1, it is exactly ``total``.
        """
        if self.weights is None:
            return total
        return float((coefficients * self.weights.numpy()).sum())


def point_losses(loss: Loss, output: Any, target: Any, *, count: int) -> PointLosses:
    """Return the losses of ``count`` points, averaged over any further axes."""
    returned = loss(output, target)
    if not isinstance(returned, tuple):
        return PointLosses(values=_of_points(returned, count=count))
    if len(returned) != 2 or not all(isinstance(each, Tensor) for each in returned):
        rule = "must return values, or a pair of tensors (values, weights)"
        raise ParameterError("loss", rule, [type(each).__name__ for each in returned])
    values, weights = returned
    if weights.shape != values.shape:
        rule = "must return weights of the shape of its values"
        raise ParameterError("loss", rule, (tuple(values.shape), tuple(weights.shape)))
    if weights.requires_grad:
        rule = "must return weights that depend on no trainable parameter"
        raise ParameterError("loss", rule, "weights that require grad", "call weights.detach()")
    return PointLosses(
        values=_of_points(values, count=count),
        weights=_of_points(weights.double(), count=count),
        of_targets=weights,
    )


def require_mean(loss: Loss, losses: PointLosses, output: Any, target: Any) -> None:
    """Refuse a `PointLoss` if, for this output and target, its values do not lead to its mean.

    A subclass of a torch loss may divide by a number that ``reduction="none"`` does not show.
    """
    if not isinstance(loss, PointLoss):
        return
    due, (total, weight) = float(loss.mean(output, target)), losses.sums
    got = total / weight if weight else math.nan
    if not np.isclose(got, due, rtol=1e-4, equal_nan=True):
        kind = type(loss.mean).__name__
        rule = f"must have the mean of the values that reduction='none' returns, which is {got:.6g}"
        remedy = "return (values, weights), whose mean is sum(values) / sum(weights)"
        raise ParameterError("loss", rule, f"{due:.6g} from {kind}", remedy)


def _of_points(returned: object, *, count: int) -> Tensor:
    """Return means (count,) over all axes but the first."""
    if not isinstance(returned, Tensor):
        rule = "must return a tensor with one value for each point"
        raise ParameterError("loss", rule, type(returned).__name__, _REMEDY)
    if returned.ndim == 0 or returned.shape[0] != count:
        rule = f"must yield one value for each of {count} points"
        raise ParameterError("loss", rule, tuple(returned.shape), _REMEDY)
    return returned if returned.ndim == 1 else returned.flatten(1).mean(1)
