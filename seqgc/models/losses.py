"""Losses: their names, the user's own functions, and their values at each point of a batch."""

from __future__ import annotations

import copy
import inspect
import math
import sys
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn

from seqgc.errors import ParameterError, refusing
from seqgc.ports import FloatArray
from seqgc.wire import Json
from seqgc.worker import (
    OwnFunction,
    call_own,
    own_function,
    own_module,
    require_arguments,
    require_known,
)

__all__ = [
    "LOSSES",
    "Loss",
    "PointLoss",
    "PointLosses",
    "loss_in",
    "make_loss",
    "name_of",
    "per_point_loss",
    "point_losses",
    "require_mean",
]

Loss: TypeAlias = Callable[[Any, Any], Tensor | tuple[Tensor, Tensor]]
"""``(output, target) -> values``, or ``(values, weights)`` for the mean ``sum v / sum w``."""

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
"""The losses of torch whose mean is the mean of the values that ``reduction='none'`` returns."""
_DEPRECATED: Final = {"size_average", "reduce"}


def per_point_loss(loss: Loss) -> Loss:
    """Return the loss as a function that returns one value for each point.

    A torch loss that computes a mean is converted. Any other callable is returned unchanged.

    Raises
    ------
    ParameterError
        If a torch loss computes a sum, or a mean that may not be over the points, or if the loss
        has trainable parameters.
    """
    if not callable(loss):
        raise ParameterError("loss", "must be a function (output, target) -> values", loss)
    if not isinstance(loss, nn.Module):
        return loss
    if trained := [name for name, each in loss.named_parameters() if each.requires_grad]:
        rule = "must have no trainable parameters: only those of the module are trained"
        remedy = "move them into the module, or set requires_grad=False"
        raise ParameterError("loss", rule, f"{type(loss).__name__} with {trained[0]}", remedy)
    if not isinstance(loss, nn.modules.loss._Loss) or loss.reduction == "none":
        return loss
    is_subclass = type(loss).__module__ != nn.modules.loss.__name__  # and may have another mean
    if loss.reduction == "mean" and (type(loss) in _MEANS or is_subclass):
        return PointLoss(loss) if is_subclass or type(loss) in _WEIGHTED else _unreduced(loss)
    if loss.reduction == "batchmean" and isinstance(loss, nn.KLDivLoss):
        return PointLoss(loss)
    rule = "must be a mean over the data points"
    got = f"{type(loss).__name__} with reduction={loss.reduction!r}"
    raise ParameterError("loss", rule, got, _REMEDY)


class PointLoss(nn.Module):
    """A loss that returns a value for each data point, and weights if they may differ from 1.

    It is made from the torch loss ``mean``, which equals ``sum(values) / sum(weights)``. If all
    weights are 1, ``forward`` returns only the values. For `torch.nn.CrossEntropyLoss` and
    `torch.nn.NLLLoss`, the weight of a target is the weight of its class (``weight``), or 0 if the
    target is ``ignore_index``. Label smoothing does not change the weights. Targets that are
    probabilities have the weight 1.

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
        """Return the values (m, ...), and the weights (m, ...) if they may differ from 1."""
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
    """Return a loss whose tensors, such as class weights, have the dtype of the computation."""
    if isinstance(loss, nn.Module):
        return cast("Loss", copy.deepcopy(loss).to(device="cpu", dtype=dtype))
    return loss


class PointLosses(NamedTuple):
    """The losses of m data points: ``values`` (m,), and their ``weights`` (m,) in the mean.

    ``of_targets`` (m, ...) are the weights of the single targets. If all weights are 1,
    ``weights`` and ``of_targets`` are None.
    """

    values: Tensor
    weights: Tensor | None = None
    of_targets: Tensor | None = None

    @property
    def sums(self) -> tuple[float, float]:
        """The sums of values and weights, in double precision."""
        weight = len(self.values) if self.weights is None else float(self.weights.sum())
        return float(self.values.double().sum()), weight

    def weight(self, coefficients: FloatArray, total: float | FloatArray) -> float | FloatArray:
        """Return the sum of the weights times ``coefficients`` (..., m) along the last axis.

        ``total`` is the sum of the coefficients, which is the result if all weights are 1.
        """
        if self.weights is None:
            return total
        weight: float | FloatArray = np.add.reduce(coefficients * self.weights.numpy(), axis=-1)
        return weight


def point_losses(loss: Loss, output: Any, target: Any, *, count: int) -> PointLosses:
    """Return the losses of ``count`` points, averaged over all axes except the first."""
    returned = loss(output, target)
    if not isinstance(returned, tuple):
        return PointLosses(values=_point_means(returned, count=count))
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
        values=_point_means(values, count=count),
        weights=_point_means(weights.double(), count=count),
        of_targets=weights,
    )


def require_mean(loss: Loss, losses: PointLosses, output: Any, target: Any) -> None:
    """Raise `ParameterError` if the values of a `PointLoss` do not add up to its torch mean.

    A subclass of a torch loss may divide by a number that ``reduction="none"`` does not show.
    """
    if not isinstance(loss, PointLoss):
        return
    torch_mean, (total, weight) = float(loss.mean(output, target)), losses.sums
    mean = total / weight if weight else math.nan
    if not np.isclose(mean, torch_mean, rtol=1e-4, equal_nan=True):
        kind = type(loss.mean).__name__
        rule = f"must be the mean of the values that reduction='none' returns, which is {mean:.6g}"
        remedy = "return (values, weights), whose mean is sum(values) / sum(weights)"
        raise ParameterError("loss", rule, f"{torch_mean:.6g} from {kind}", remedy)


def _point_means(returned: object, *, count: int) -> Tensor:
    if not isinstance(returned, Tensor):
        rule = "must return a tensor with one value for each point"
        raise ParameterError("loss", rule, type(returned).__name__, _REMEDY)
    if returned.ndim == 0 or returned.shape[0] != count:
        rule = f"must return one value for each of {count} points"
        raise ParameterError("loss", rule, tuple(returned.shape), _REMEDY)
    return returned if returned.ndim == 1 else returned.flatten(1).mean(1)


def make_loss(
    name: str, args: Mapping[str, Json] | None = None, *, listed: Collection[str] | None = None
) -> Loss:
    """Return the loss of this name, as a function that returns one value for each point.

    ``name`` is one of `LOSSES`, or the path of a function or a class. ``args`` are its arguments;
    a torch class also takes lists in place of tensors. If ``listed`` is given, a path must lead
    into one of these modules, as in `own_function`.
    """
    args = args or {}
    if own_module(name) is None:
        require_known("loss", name, LOSSES)
        require_arguments("loss_args", args, of=LOSSES[name], name=name)
        with refusing("loss_args", f"must make a loss {name} ({{}})", str(dict(args))):
            tensors = {key: _tensor(value) for key, value in args.items()}
            named = partial(LOSSES[name], **tensors)()
        return per_point_loss(named)
    loss = own_function(name, argument="loss", listed=listed)
    require_arguments("loss_args", args, of=loss, name=name)
    if inspect.isclass(loss):
        return per_point_loss(cast("Loss", call_own(loss, name, argument="loss", args=args)))
    _require_loss(loss, name, args)
    return per_point_loss(cast("Loss", partial(loss, **args) if args else loss))


def _require_loss(function: OwnFunction, name: str, args: Mapping[str, Json]) -> None:
    try:
        inspect.signature(function).bind(None, None, **args)
    except TypeError as error:
        rule = "must be a function (output, target) -> losses, or a class that makes such a"
        raise ParameterError("loss", f"{rule} function ({error})", name) from None
    except ValueError:  # a callable of C has no signature
        pass


def name_of(loss: object) -> tuple[str, dict[str, Json]] | None:
    """Return the name or path from which `make_loss` makes this loss, and the arguments.

    Return None for a loss without a name: a lambda, a `functools.partial`, or an object of the
    user's class.
    """
    if isinstance(loss, str):
        return loss, {}
    for name, kind in LOSSES.items():
        if loss is kind:
            return name, {}
        if type(loss) is kind:
            return name, _arguments_of(cast("nn.Module", loss))
    module, name = getattr(loss, "__module__", ""), getattr(loss, "__qualname__", "")
    is_there = name and getattr(sys.modules.get(module), name, None) is loss
    return (f"{module}:{name}", {}) if is_there else None


def _arguments_of(loss: nn.Module) -> dict[str, Json]:
    args: dict[str, Json] = {}
    for name, parameter in inspect.signature(type(loss)).parameters.items():
        if name not in _DEPRECATED:
            value = getattr(loss, name)
            if isinstance(value, Tensor):
                args[name] = value.tolist()
            elif value != parameter.default:
                args[name] = value
    return args


def _tensor(value: Json) -> object:
    return torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value
