"""Losses by name, and functions and classes of the user's modules by path.

If the path leads to a class, the class is called with the ``loss_args`` and makes the loss. If it
leads to a function, the function is the loss, and is given the ``loss_args`` as keywords with every
batch.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Mapping
from functools import partial
from typing import Final, cast

import torch
from torch import Tensor, nn

from seqgc.errors import ParameterError, refusing
from seqgc.training._points import LOSSES, Loss, per_point_loss
from seqgc.wire import Json
from seqgc.worker import (
    OwnFunction,
    call_own,
    own_function,
    own_module,
    require_arguments,
    require_known,
)

__all__ = ["make_loss", "name_of"]

_DEPRECATED: Final = {"size_average", "reduce"}


def make_loss(
    name: str, args: Mapping[str, Json] | None = None, *, listed: Collection[str] | None = None
) -> Loss:
    """Return the loss of a name, which has one value for each point.

    ``name`` is one of `LOSSES`, or the path of a function or a class. ``args`` are its arguments;
    those of a torch class may have lists in place of tensors. ``listed`` are the only modules that
    a path may lead into, as in `own_function`.

    Raises
    ------
    ParameterError
        If there is no loss of that name, or it does not take the arguments.

    Examples
    --------
    >>> make_loss("cross-entropy", {"label_smoothing": 0.1}).reduction
    'none'
    """
    args = args or {}
    if own_module(name) is None:
        require_known("loss", name, LOSSES)
        require_arguments("loss_args", args, of=LOSSES[name], name=name)
        with refusing("loss_args", f"must make a loss {name} ({{}})", str(dict(args))):
            tensors = {key: _tensor(value) for key, value in args.items()}
            made = partial(LOSSES[name], **tensors)()
        return per_point_loss(made)
    loss = own_function(name, argument="loss", listed=listed)
    require_arguments("loss_args", args, of=loss, name=name)
    if inspect.isclass(loss):
        return per_point_loss(cast("Loss", call_own(loss, name, argument="loss", args=args)))
    _require_loss(loss, name, args)
    return per_point_loss(cast("Loss", partial(loss, **args) if args else loss))


def _require_loss(function: OwnFunction, name: str, args: Mapping[str, Json]) -> None:
    """Refuse a function that cannot be called with outputs and targets."""
    try:
        inspect.signature(function).bind(None, None, **args)
    except TypeError as error:
        rule = (
            "must be a function (output, target) -> losses, or a class that makes such a function"
        )
        rule += f" ({error})"
        raise ParameterError("loss", rule, name) from None
    except ValueError:  # a callable of C has no signature
        pass


def name_of(loss: object) -> tuple[str, dict[str, Json]] | None:
    """Return the name or path by which `make_loss` makes ``loss``, and the arguments.

    A lambda, a `functools.partial` or an object of the user's class has no name: None is returned.

    Examples
    --------
    >>> name_of(nn.CrossEntropyLoss(label_smoothing=0.1))
    ('cross-entropy', {'label_smoothing': 0.1})
    >>> name_of(lambda output, target: output)
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
    """Return the arguments with which one of torch's losses was made, without its defaults."""
    found: dict[str, Json] = {}
    for name, parameter in inspect.signature(type(loss)).parameters.items():
        if name not in _DEPRECATED:
            value = getattr(loss, name)
            if isinstance(value, Tensor):
                found[name] = value.tolist()
            elif value != parameter.default:
                found[name] = value
    return found


def _tensor(value: Json) -> object:
    """Return a list of numbers as a tensor, and anything else as it is."""
    return torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value
