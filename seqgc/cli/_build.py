"""From configuration to objects."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from seqgc.cli._config import DelaysConfig, ModelConfig, RunConfig
from seqgc.errors import ParameterError, did_you_mean
from seqgc.profiles import LAMBDA_CNN, read_profile
from seqgc.schemes import Scheme

if TYPE_CHECKING:
    from torch import nn

    from seqgc.train import Model
    from seqgc.train._data import PointDataset
    from seqgc.train.model import OptimizerFactory
    from seqgc.train.run import Delays

    Data = tuple[PointDataset, PointDataset]  # to train on, to test on

__all__ = ["make_delays", "make_models"]


def make_models(config: RunConfig) -> tuple[list[Model], dict[str, PointDataset]]:
    """Return the models of a configuration, and by model what to test it on."""
    from torch import nn

    from seqgc.train import Model

    losses = {"cross-entropy": nn.CrossEntropyLoss, "mse": nn.MSELoss}
    data = {name: _data(name) for name in dict.fromkeys(m.data for m in config.models)}
    models = [
        Model(
            name=model.name,
            module=_module(model),
            loss=losses[model.loss](),
            dataset=data[model.data][0],
            optimizer=_optimizer(model),
            batch_size=model.batch_size,
            seed=model.seed,
        )
        for model in config.models
    ]
    return models, {model.name: data[model.data][1] for model in config.models}


def make_delays(config: DelaysConfig, *, scheme: Scheme, num_rounds: int) -> Delays:
    """Return the injected seconds by (round, worker); a profile's rounds repeat.

    Raises
    ------
    ParameterError
        If the profile has fewer workers than the scheme.
    """
    if config.source == "lambda-cnn":
        rng = np.random.default_rng(config.seed)
        profile = LAMBDA_CNN.profile(num_rounds, workers=scheme.n, rng=rng)
    else:
        profile = read_profile(config.source)
    if profile.num_workers < scheme.n:
        rule = f"must have a column for each of the {scheme.n} workers"
        raise ParameterError("delays.source", rule, f"{config.source}: {profile.num_workers}")
    alpha = profile.meta.alpha if config.alpha is None else config.alpha
    loaded = profile.at_load(scheme.normalized_load, alpha=alpha or 0.0)
    seconds = loaded.scaled(config.scale).times
    return lambda round, worker: float(seconds[round % len(seconds), worker])


def _module(config: ModelConfig) -> nn.Module:
    from seqgc.train import make_module

    if ":" in config.module:
        return cast("nn.Module", _named(config.module, argument="module")())
    return make_module(config.module, seed=config.seed)


def _data(name: str) -> Data:
    from seqgc.train import digits

    if name == "digits":
        split = digits()
        return split.train, split.test
    if ":" not in name:
        rule = "must be 'digits' or your own package.module:function"
        raise ParameterError("data", rule, name)
    pair = _named(name, argument="data")()
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise ParameterError("data", "must return a pair (train, test) of datasets", name)
    return cast("Data", pair)


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
    given = {"lr": config.lr, "momentum": config.momentum, "weight_decay": config.weight_decay}
    options = {name: value for name, value in given.items() if value is not None}
    return partial(kinds[config.optimizer.lower()], **options)


def _named(path: str, *, argument: str) -> Callable[[], object]:
    """Return the user's own ``package.module:function``; the working directory is searched too."""
    module, _, name = path.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        rule = f"must be an importable package.module:function ({error})"
        raise ParameterError(argument, rule, path) from None
    if not callable(function):
        raise ParameterError(argument, "must name a function", path)
    return cast("Callable[[], object]", function)
