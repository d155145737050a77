"""Checks of the names in a configuration, before PyTorch is imported.

Importing PyTorch takes seconds and a quarter of a gigabyte, and a misspelt name should cause an
error at once. Therefore this module lists the names of seqgc's networks, losses and optimizers, and
looks up the user's functions. Modules may register more names (`seqgc.models.factories`). Such a
name does not exist before the import, so it is checked when it is used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from seqgc.config._tables import ModelConfig, RunConfig
from seqgc.errors import ParameterError, one_line, require_name
from seqgc.stores import find_data
from seqgc.worker import own_function, own_module, require_arguments, require_known

__all__ = [
    "DATA",
    "FUNCTIONS",
    "LOSSES",
    "MODULES",
    "NOT_TAKEN",
    "OPTIMIZERS",
    "SCHEDULERS",
    "check_names",
    "require_unregistered",
]

LOSSES: Final = ("cross-entropy", "mse")
MODULES: Final = ("digits-cnn", "mlp", "paper-cnn")
DATA: Final = ("digits",)
OPTIMIZERS: Final[Mapping[str, str]] = {
    name.lower(): name
    for name in (
        "Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax", "AdamW", "ASGD", "LBFGS", "NAdam",
        "RAdam", "RMSprop", "Rprop", "SGD",
    )
}  # fmt: skip
"""Classes of torch.optim. A later check rejects LBFGS, and its message says why."""

SCHEDULERS: Final[Mapping[str, str]] = {
    name.lower(): name
    for name in (
        "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR",
        "ExponentialLR", "LinearLR", "MultiStepLR", "OneCycleLR", "PolynomialLR",
        "ReduceLROnPlateau", "StepLR",
    )
}  # fmt: skip
"""Classes of torch.optim.lr_scheduler whose arguments can be written in a TOML file."""

NOT_TAKEN: Final[Mapping[str, frozenset[str]]] = {
    "momentum": frozenset(OPTIMIZERS) - {"rmsprop", "sgd"},
    "weight_decay": frozenset({"lbfgs", "rprop"}),
}
"""Options of a model, each with the optimizers that do not accept it."""

FUNCTIONS: Final = ("lambda", "lambda-local")
"""Backends whose workers are cloud functions. A function receives names, never code."""


def check_names(config: RunConfig) -> None:
    """Raise `ParameterError` if the configuration has an unknown name.

    This imports the modules of the user's functions.
    """
    for name in config.callbacks:
        own_function(name, argument="callbacks")
    for model in config.models:
        require_name("name", model.name, most=100)
        try:
            _check_model(model)
        except ParameterError as error:
            value = getattr(model, error.argument, None)
            if all(getattr(other, error.argument, None) == value for other in config.models):
                raise
            rule = f"of model {one_line(model.name)} {error.rule}"
            raise ParameterError(error.argument, rule, error.value, error.remedy) from None


def _check_model(model: ModelConfig) -> None:
    for argument, name, known in _of_the_master(model):
        if own_module(name) is not None or not known:
            own_function(name, argument=argument)
        else:
            require_known(argument, name.lower(), known)
    _check_options(model)
    for argument, name, known in (
        ("module", model.module, MODULES),
        ("data", model.data, DATA),
        ("loss", model.loss, LOSSES),
    ):
        if own_module(name) is not None:
            function = own_function(name, argument=argument)
            args = getattr(model, f"{argument}_args")
            require_arguments(f"{argument}_args", args, of=function, name=name)
        elif argument == "loss" or not _is_known_later(argument, name):
            require_known(argument, name, known)


def _is_known_later(argument: str, name: str) -> bool:
    """Return True if a network or data set of this name may be registered later, or is stored."""
    return _may_be_registered() or (argument == "data" and find_data(name) is not None)


def _of_the_master(model: ModelConfig) -> Iterator[tuple[str, str, Collection[str]]]:
    """Yield the argument, the name and the built-in names of each part that only the master uses.

    If there are no built-in names, the name must be the path of a user's function.
    """
    yield "optimizer", model.optimizer, OPTIMIZERS
    if model.scheduler is not None:
        yield "scheduler", model.scheduler, SCHEDULERS
    if model.validation is not None:
        for name in model.validation.metrics.values():
            yield "metrics", name, ()
        if model.validation.data is not None:
            yield "validation.data", model.validation.data, ()


def _check_options(model: ModelConfig) -> None:
    """Raise `ParameterError` if the optimizer lacks an option, or an option appears twice."""
    name = model.optimizer.lower()
    for option, others in NOT_TAKEN.items():
        if (value := getattr(model, option)) is not None and name in others:
            takers = [each for each in OPTIMIZERS if each not in others]
            rule = f"must be left out with optimizer {name}"
            raise ParameterError(
                option, rule, value, f"optimizers that have {option}: {', '.join(takers)}"
            )
    for option in ("lr", *NOT_TAKEN):
        if option in model.optimizer_args:
            rule = f"must not have {option}, which is a field of the model"
            raise ParameterError("optimizer_args", rule, model.optimizer_args[option])
    if model.scheduler is None and model.scheduler_args:
        rule = "must be left out if there is no scheduler"
        raise ParameterError("scheduler_args", rule, model.scheduler_args)


def require_unregistered(name: str) -> None:
    """Raise `ParameterError` if this name of a new data set is already the name of registered data.

    Models would use the registered data, and never the new data set.
    """
    taken: Collection[str] = DATA
    if "seqgc.models.factories" in sys.modules:
        from seqgc.models.factories import data_names

        taken = data_names()
    if name in taken:
        rule = "must be a new name: models would use the registered data of this name instead"
        raise ParameterError("name", rule, name)


def _may_be_registered() -> bool:
    """Return True if there may be more names than this module lists."""
    return "seqgc.models.factories" in sys.modules or bool(os.environ.get("SEQGC_FACTORIES"))
