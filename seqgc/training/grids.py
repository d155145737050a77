"""Grids of models: the product of what varies, over one way to make a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from seqgc._grid import grid_points
from seqgc.errors import ParameterError
from seqgc.training.factories import loading_once
from seqgc.training.model import Model

__all__ = ["grid"]


def grid(make: Callable[..., Model], axes: Mapping[str, Sequence[object] | int]) -> list[Model]:
    """Return the models of a grid: ``make`` called with each combination of the ``axes``' values.

    An axis is a parameter of ``make`` and the list of values that it takes; ``seed`` may be their
    number instead: ``4`` is ``[0, 1, 2, 3]``. The last axis varies fastest. A model is named by
    what ``make`` calls it and its values: ``net-lr_0.01-seed_2``.

    The data of `registered_model` are loaded once. Load those of your own before, not in ``make``.

    Raises
    ------
    ParameterError
        If an axis is no parameter of ``make``, or has no values; or there are more than 1000
        models.

    Examples
    --------
    >>> import functools, torch
    >>> from seqgc.training import grid, registered_model
    >>> def net(lr, seed):
    ...     sgd = functools.partial(torch.optim.SGD, lr=lr)
    ...     return registered_model("net", module="mlp", optimizer=sgd, seed=seed)
    >>> [model.name for model in grid(net, {"lr": [0.01, 0.03], "seed": 2})]
    ['net-lr_0.01-seed_0', 'net-lr_0.01-seed_1', 'net-lr_0.03-seed_0', 'net-lr_0.03-seed_1']
    """
    if not callable(make):
        raise ParameterError("make", "must be a function that makes a model", make)
    taken = inspect.signature(make).parameters.values()
    any_name = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken)
    known = None if any_name else [each.name for each in taken]
    models = []
    with loading_once():
        for name, point in grid_points(axes, known=known).items():
            model = make(**point)
            if not isinstance(model, Model):
                raise ParameterError("make", "must return a Model", model)
            models.append(replace(model, name=f"{model.name}-{name}"))
    return models
