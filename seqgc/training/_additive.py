"""Whether an optimizer may take a step part by part.

An update is a part of a batch's gradient. Where each is applied as it comes, n of them are to make
the one step that their sum would make, to first order. That is so for plain gradient descent. With
momentum, weight decay or a second moment it is not: what these do once a step would be done n
times. No list of optimizers knows one's own, so each is tried, on a few numbers of the parameters'
forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import nn

from seqgc.errors import ParameterError, refusing
from seqgc.training.model import Model, OptimizerFactory, ParameterVector

__all__ = ["require_additive"]

_SLACK: Final = 1e-6  # relative to what a step moves; rounding is far below, weight decay far above


def require_additive(models: Sequence[Model], *, remedy: str) -> None:
    """Refuse a model that cannot take a step part by part, with `ParameterError` and a remedy.

    Examples
    --------
    >>> import functools
    >>> from seqgc.training import registered_model
    >>> adam = functools.partial(torch.optim.Adam, lr=0.1)
    >>> require_additive([registered_model("net", module="mlp", optimizer=adam)], remedy="take SGD")
    ...
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `optimizer` must make of parts, ... got 'Adam' (take SGD)
    """
    for model in models:
        if model.gradient_clip_val is not None:
            rule = "must be left out where each part of a gradient is applied as it comes"
            raise ParameterError("gradient_clip_val", rule, model.gradient_clip_val, remedy)
        with refusing("optimizer", "must take a step ({})", repr(model.optimizer)):
            name, at_once = _moved(model, [3.0])
            _, in_parts = _moved(model, [1.0, 2.0])
        largest = max(float(each.abs().max()) for each in at_once)
        for one, other in zip(at_once, in_parts, strict=True):
            if not torch.allclose(one, other, rtol=0, atol=_SLACK * largest + 1e-14):
                rule = "must make of parts, one by one, the step of their sum, as plain SGD does"
                raise ParameterError("optimizer", rule, name, remedy)


def _moved(model: Model, gradients: Sequence[float]) -> tuple[str, list[torch.Tensor]]:
    """Return the optimizer's name, and how far these gradients move parameters of a model's forms.

    Each is a step; of every parameter there are a few numbers, all alike, as gradients' are.
    """
    forms = {tuple(min(2, d) for d in p.shape) for p in ParameterVector(model.module).tensors}
    parameters = [nn.Parameter(torch.ones(form, dtype=torch.float64)) for form in sorted(forms)]
    make: OptimizerFactory = model.optimizer
    optimizer = make(parameters)
    for gradient in gradients:
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, gradient)
        optimizer.step()
    return type(optimizer).__name__, [p.detach() - 1.0 for p in parameters]
