"""From a configuration's names to models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, cast

from seqgc.cli._config import ModelConfig, RunConfig
from seqgc.errors import ParameterError, did_you_mean

if TYPE_CHECKING:
    from torch import nn

    from seqgc.training import Model
    from seqgc.training.model import OptimizerFactory, PointDataset

__all__ = ["make_models"]


def make_models(config: RunConfig) -> list[Model]:
    """Return the models of a configuration; for functions, refuse what they do not have."""
    from seqgc.training import Model, Recipe
    from seqgc.training.factories import LOSSES, check_recipe, import_registered

    import_registered()
    recipes = [Recipe(module=m.module, data=m.data, loss=m.loss) for m in config.models]
    if config.backend in ("lambda", "lambda-local"):
        for recipe in recipes:
            check_recipe(recipe)
    data = {name: _data(name) for name in dict.fromkeys(m.data for m in config.models)}
    return [
        Model(
            name=model.name,
            module=_module(model),
            loss=LOSSES[model.loss](),
            dataset=data[model.data][0],
            optimizer=_optimizer(model),
            batch_size=model.batch_size,
            seed=model.seed,
            test_dataset=data[model.data][1],
            recipe=recipe,
        )
        for model, recipe in zip(config.models, recipes, strict=True)
    ]


def _module(config: ModelConfig) -> nn.Module:
    from seqgc.training.factories import module_names, named_module

    if ":" in config.module:
        return cast("nn.Module", _own_function(config.module, argument="module")())
    _check_named(config.module, module_names(), argument="module")
    return named_module(config.module, seed=config.seed)


def _data(name: str) -> tuple[PointDataset, PointDataset]:
    """Return what to train on, and what to test on."""
    from seqgc.training.factories import data_names, named_data

    if ":" not in name:
        _check_named(name, data_names(), argument="data")
        return named_data(name)
    pair = _own_function(name, argument="data")()
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise ParameterError("data", "must return a pair (train, test) of datasets", name)
    return cast("tuple[PointDataset, PointDataset]", pair)


def _own_function(path: str, *, argument: str) -> Callable[[], object]:
    """Return the user's own ``package.module:function``, or raise `ParameterError`."""
    module, _, name = path.partition(":")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        rule = f"must be an importable package.module:function ({error})"
        raise ParameterError(argument, rule, path) from None
    if not callable(function):
        raise ParameterError(argument, "must name a function", path)
    return cast("Callable[[], object]", function)


def _check_named(name: str, known: Sequence[str], *, argument: str) -> None:
    if name not in known:
        rule = f"must be one of {', '.join(known)}, or your own package.module:function"
        raise ParameterError(argument, rule, name, did_you_mean(name, known))


def _optimizer(config: ModelConfig) -> OptimizerFactory:
    import torch
    from torch.optim import Optimizer

    kinds: dict[str, Callable[..., Optimizer]] = {
        name.lower(): kind
        for name, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer
    }
    if config.optimizer.lower() not in kinds:
        near = did_you_mean(config.optimizer.lower(), kinds)
        rule = f"must be one of {', '.join(sorted(kinds))}"
        raise ParameterError("optimizer", rule, config.optimizer, near)
    settings = {"lr": config.lr, "momentum": config.momentum, "weight_decay": config.weight_decay}
    options = {name: value for name, value in settings.items() if value is not None}
    return partial(kinds[config.optimizer.lower()], **options)
