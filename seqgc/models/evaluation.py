"""Evaluation of a model: its loss and accuracy on a dataset."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn

from seqgc.errors import ParameterError, refusing
from seqgc.models.losses import Loss, loss_in, per_point_loss, point_losses
from seqgc.models.points import PointDataset, collate, leaves_of, map_tensors
from seqgc.models.precision import Autocast, autocasting

__all__ = ["Evaluation", "Metric", "evaluate"]

_EVALUATION_BATCH = 1024

Metric: TypeAlias = Callable[[Any, Any], float]
"""``(output, target) -> float``, of all points of a data set at once."""

_NONE: Final[Mapping[str, Metric]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Mean loss over a dataset, and the fraction of targets classified right (None: no classes).

    Neither counts the targets that the loss ignores. The mean is weighted as the loss says.
    """

    loss: float
    accuracy: float | None
    metrics: dict[str, float] = field(default_factory=dict)  # of one's own


def evaluate(
    module: nn.Module,
    *,
    loss: Loss,
    dataset: PointDataset,
    metrics: Mapping[str, Metric] = _NONE,
    autocast: Autocast = "off",
) -> Evaluation:
    """Evaluate ``module`` in eval mode on every point of ``dataset``; its modes are put back.

    Points have classes if targets are integers and outputs have one more axis: then the class is
    the argmax over axis 1. Targets whose weight in the loss is 0 do not count. ``metrics``
    are given the outputs and targets of all points, each stacked along its first axis. ``autocast``
    is that of a `Model`; metrics are given outputs in the weights' dtype all the same. No graph is
    recorded, unless the module takes gradients in its own forward pass.

    Raises
    ------
    ParameterError
        If the dataset is empty, the loss cannot be taken point by point, or a metric raises or
        returns no number.

    Examples
    --------
    >>> import torch
    >>> from seqgc.training import evaluate
    >>> points = torch.utils.data.TensorDataset(
    ...     torch.tensor([[0.0, 9.0], [9.0, 0.0]]), torch.tensor([1, 1])
    ... )
    >>> evaluate(torch.nn.Identity(), loss=torch.nn.CrossEntropyLoss(), dataset=points).accuracy
    0.5
    """
    size = len(dataset)
    if size < 1:
        raise ParameterError("dataset", "must hold at least one data point", size)
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    loss = loss_in(per_point_loss(loss), dtype)
    total, weight, hits, counted = 0.0, 0.0, 0.0, 0.0
    outputs: list[object] = []
    targets: list[object] = []
    with ExitStack() as modes, torch.no_grad():
        for part in module.modules():  # a module in training may hold parts frozen in eval mode
            modes.callback(setattr, part, "training", part.training)
        module.eval()
        for start in range(0, size, _EVALUATION_BATCH):
            points = np.arange(start, min(start + _EVALUATION_BATCH, size))
            x, y = collate(dataset, points, dtype=dtype)
            with autocasting(autocast):
                output = _output(module, x)
                losses = point_losses(loss, output, y, count=len(points))
            of_batch = [*losses.sums, *_hits(output, y, losses.of_targets)]
            total, weight, hits, counted = np.add([total, weight, hits, counted], of_batch)
            if metrics:
                outputs.append(_in_dtype(output, dtype) if autocast != "off" else output)
                targets.append(y)
        own = {name: _measured(name, metrics[name], outputs, targets) for name in metrics}
    mean = float(total / weight) if weight else math.nan
    accuracy = float(hits / counted) if counted else math.nan
    return Evaluation(loss=mean, accuracy=None if math.isnan(hits) else accuracy, metrics=own)


def _output(module: nn.Module, x: object) -> Any:
    """Return the module's output, without a graph."""
    try:
        return module(x)
    except RuntimeError:
        # A module that takes gradients in its own forward pass cannot do so under no_grad.
        with torch.enable_grad():
            return map_tensors(module(x), Tensor.detach)


def _in_dtype(output: object, dtype: torch.dtype) -> object:
    return map_tensors(output, lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf)


def _joined(values: Sequence[object]) -> Any:
    """Return the values of several batches as those of one, each tensor along its first axis."""
    columns = iter([torch.cat(column) for column in zip(*map(leaves_of, values), strict=True)])
    return map_tensors(values[0], lambda _: next(columns))


def _measured(name: str, metric: Metric, outputs: list[object], targets: list[object]) -> float:
    """Return a metric of all points, a float."""
    with refusing("metrics", "must return a number of (output, target) ({})", name):
        value: object = metric(_joined(outputs), _joined(targets))
        if isinstance(value, str):  # which float would read
            raise TypeError("it returned text")
        return float(cast("float", value))


def _hits(output: object, target: object, weights: Tensor | None) -> tuple[float, float]:
    """Return how many targets are classified right, and how many count; NaN without classes.

    A target whose weight is 0 does not count, because the loss ignores it.
    """
    if not isinstance(output, Tensor) or not isinstance(target, Tensor):
        return math.nan, math.nan
    if output.ndim != target.ndim + 1:
        return math.nan, math.nan
    if target.is_floating_point():
        return math.nan, math.nan
    counts = torch.ones_like(target, dtype=torch.bool)
    if weights is not None and weights.ndim <= target.ndim:
        counts &= (weights != 0).reshape(*weights.shape, *[1] * (target.ndim - weights.ndim))
    right = (output.argmax(1) == target) & counts
    return float(right.sum()), float(counts.sum())
