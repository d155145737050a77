"""Losses that yield one value per data point, which is what a gradient code can weigh."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor, nn

from seqgc.errors import ParameterError

__all__ = ["Loss", "per_point_loss", "point_losses"]

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]

_REMEDY = (
    "use reduction='none', e.g. functools.partial(torch.nn.functional.cross_entropy, "
    "reduction='none'); the division by the batch size is seqgc's"
)


def per_point_loss(loss: Loss) -> Loss:
    """Return ``loss``, or its twin that does not reduce, if ``loss`` is an nn loss with a mean.

    Raises
    ------
    ParameterError
        If the reduction is not a plain mean over the points: a sum, or a mean whose divisor (class
        weights, ignored targets) depends on which points share the batch.
    """
    if not callable(loss):
        raise ParameterError(
            "loss", "must be callable, (output, target) -> one value a point", loss
        )
    if not isinstance(loss, nn.modules.loss._Loss) or loss.reduction == "none":
        return loss
    if loss.reduction != "mean":
        raise ParameterError("loss", "must not add up its points", loss.reduction, _REMEDY)
    if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        _require_plain_mean(loss)
    unreduced = copy.deepcopy(loss)
    unreduced.reduction = "none"
    return unreduced


def _require_plain_mean(loss: nn.CrossEntropyLoss | nn.NLLLoss) -> None:
    """Refuse the two options with which torch divides by something else than the batch size."""
    # Both divide by the total class weight of the batch's targets, which no single chunk knows.
    if loss.weight is not None or loss.ignore_index >= 0:
        option = "weight" if loss.weight is not None else "ignore_index"
        raise ParameterError(
            "loss",
            "must divide by the batch size alone",
            f"{type(loss).__name__}({option}=..., reduction='mean')",
            "use reduction='none': each point keeps its weight, and the batch size divides",
        )


def point_losses(loss: Loss, output: Tensor, target: Tensor, *, count: int) -> Tensor:
    """Return the (count,) losses of ``count`` points, averaged over any further axes.

    Raises
    ------
    ParameterError
        If ``loss`` does not yield a first axis of length ``count``.
    """
    losses = loss(output, target)
    if losses.ndim == 0 or losses.shape[0] != count:
        shape = tuple(losses.shape)
        raise ParameterError(
            "loss", f"must yield one value for each of {count} points", shape, _REMEDY
        )
    return losses if losses.ndim == 1 else losses.flatten(1).mean(1)
