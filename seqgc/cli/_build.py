"""From configuration to objects."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import numpy as np

from seqgc.cli._config import DelaysConfig, ModelConfig, RunConfig
from seqgc.errors import ParameterError, did_you_mean
from seqgc.profiles import LAMBDA_CNN, DelayProfile, read_profile

if TYPE_CHECKING:
    from torch import nn

    from seqgc.training import Model
    from seqgc.training._data import PointDataset
    from seqgc.training.model import OptimizerFactory

    Data = tuple[PointDataset, PointDataset]  # to train on, to test on

_GENERATED = "lambda-cnn"
_MOST_GENERATED = 1000  # rounds; then they repeat

__all__ = ["InjectedDelays", "make_delays", "make_models", "search_here"]


def make_models(config: RunConfig) -> tuple[list[Model], dict[str, PointDataset]]:
    """Return the models of a configuration, and by model what to test it on."""
    from seqgc.training import Model
    from seqgc.training.factories import LOSSES, import_registered

    search_here()
    import_registered()
    data = {name: _data(name) for name in dict.fromkeys(m.data for m in config.models)}
    models = [
        Model(
            name=model.name,
            module=_module(model),
            loss=LOSSES[model.loss](),
            dataset=data[model.data][0],
            optimizer=_optimizer(model),
            batch_size=model.batch_size,
            seed=model.seed,
        )
        for model in config.models
    ]
    return models, {model.name: data[model.data][1] for model in config.models}


class InjectedDelays:
    """Injected seconds by (round, worker), at the load that workers have now; rounds repeat.

    ``alpha`` is in (injected) seconds per unit of normalized load.

    Raises
    ------
    ParameterError
        If the profile does not know its alpha.
    """

    def __init__(self, profile: DelayProfile, *, load: float) -> None:
        if profile.meta.alpha is None:
            rule = "must be given: the profile does not know what load costs"
            remedy = "0 injects its seconds at every load; `seqgc profile fit` fits it"
            raise ParameterError("delays.alpha", rule, None, remedy)
        self._profile = profile
        self.alpha: Final = profile.meta.alpha
        self.set_load(load)

    def set_load(self, load: float) -> None:
        """Let workers have another normalized load from now on."""
        self._seconds = self._profile.at_load(load).times

    def __call__(self, round: int, worker: int) -> float:
        return float(self._seconds[round % len(self._seconds), worker])


def make_delays(
    config: DelaysConfig, *, workers: int, load: float, num_rounds: int
) -> InjectedDelays:
    """Return the seconds to inject, at first at the given normalized load.

    Raises
    ------
    ParameterError
        If the source is neither a generator nor a file, the profile has fewer than so many workers,
        or what load costs is not known.
    """
    profile = _delay_source(config, workers=workers, num_rounds=num_rounds)
    if profile.num_workers < workers:
        rule = f"must have a column for each of the {workers} workers"
        raise ParameterError("delays.source", rule, f"{config.source}: {profile.num_workers}")
    meta = profile.meta
    if config.alpha is not None:
        meta = replace(meta, alpha=config.alpha)
    if config.base_load is not None:
        meta = replace(meta, base_load=config.base_load)
    profile = replace(profile, meta=meta)
    return InjectedDelays(profile.scaled(config.scale), load=load)


def _delay_source(config: DelaysConfig, *, workers: int, num_rounds: int) -> DelayProfile:
    if config.source == _GENERATED:
        rng = np.random.default_rng(config.seed)
        return LAMBDA_CNN.profile(min(num_rounds, _MOST_GENERATED), workers=workers, rng=rng)
    if not Path(config.source).suffix:
        rule = f"must be {_GENERATED!r} or a profile's .npz or .csv file"
        remedy = did_you_mean(config.source, [_GENERATED])
        raise ParameterError("delays.source", rule, config.source, remedy)
    return read_profile(config.source)


def _module(config: ModelConfig) -> nn.Module:
    from seqgc.training.factories import module_names, named_module

    if ":" in config.module:
        return cast("nn.Module", _named(config.module, argument="module")())
    _check_named(config.module, module_names(), argument="module")
    return named_module(config.module, seed=config.seed)


def _data(name: str) -> Data:
    from seqgc.training.factories import data_names, named_data

    if ":" not in name:
        _check_named(name, data_names(), argument="data")
        return named_data(name)
    pair = _named(name, argument="data")()
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise ParameterError("data", "must return a pair (train, test) of datasets", name)
    return cast("Data", pair)


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
    given = {"lr": config.lr, "momentum": config.momentum, "weight_decay": config.weight_decay}
    options = {name: value for name, value in given.items() if value is not None}
    return partial(kinds[config.optimizer.lower()], **options)


def search_here() -> None:
    """Let modules of the working directory be found."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)


def _named(path: str, *, argument: str) -> Callable[[], object]:
    """Return the user's own ``package.module:function``; the working directory is searched too."""
    module, _, name = path.partition(":")
    search_here()
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        rule = f"must be an importable package.module:function ({error})"
        raise ParameterError(argument, rule, path) from None
    if not callable(function):
        raise ParameterError(argument, "must name a function", path)
    return cast("Callable[[], object]", function)
