"""What a configuration names, looked up before PyTorch is imported.

A typing error is to be refused at once, and PyTorch takes seconds and a quarter of a gigabyte. So
the names that seqgc itself has stand here, and a function of the user's own is found before
anything else is imported. What modules have registered (`seqgc.models.factories`) nobody knows
before: then the names are checked once more, when they are used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from seqgc.cli.config import ModelConfig, RunConfig
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
"""Classes of torch.optim; LBFGS is known so that its refusal can say why."""

SCHEDULERS: Final[Mapping[str, str]] = {
    name.lower(): name
    for name in (
        "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR",
        "ExponentialLR", "LinearLR", "MultiStepLR", "OneCycleLR", "PolynomialLR",
        "ReduceLROnPlateau", "StepLR",
    )
}  # fmt: skip
"""Classes of torch.optim.lr_scheduler whose arguments a file can give."""

NOT_TAKEN: Final[Mapping[str, frozenset[str]]] = {
    "momentum": frozenset(OPTIMIZERS) - {"rmsprop", "sgd"},
    "weight_decay": frozenset({"lbfgs", "rprop"}),
}
"""Options of a model, and the optimizers whose classes have no such parameter."""

FUNCTIONS: Final = ("lambda", "lambda-local")
"""Backends whose workers are functions: these are sent names, and no code."""


def check_names(config: RunConfig) -> None:
    """Refuse what models name and nobody knows; import the modules of the user's own functions."""
    for name in config.callbacks:
        own_function(name, argument="callbacks")
    for model in config.models:
        require_name("name", model.name, most=100)
        try:
            _check_model(model)
        except ParameterError as error:
            said = getattr(model, error.argument, None)
            if all(getattr(other, error.argument, None) == said for other in config.models):
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
    """Return True if a network or data may be known by this name once PyTorch is imported."""
    return _may_be_registered() or (argument == "data" and find_data(name) is not None)


def _of_the_master(model: ModelConfig) -> Iterator[tuple[str, str, Collection[str]]]:
    """Yield what no worker needs."""
    yield "optimizer", model.optimizer, OPTIMIZERS
    if model.scheduler is not None:
        yield "scheduler", model.scheduler, SCHEDULERS
    if model.validation is not None:
        for name in model.validation.metrics.values():
            yield "metrics", name, ()
        if model.validation.data is not None:
            yield "validation.data", model.validation.data, ()


def _check_options(model: ModelConfig) -> None:
    """Refuse options of an optimizer, or a scheduler, that it has not, or that are there twice."""
    name = model.optimizer.lower()
    for option, others in NOT_TAKEN.items():
        if (value := getattr(model, option)) is not None and name in others:
            takers = [each for each in OPTIMIZERS if each not in others]
            rule = f"must be left out with optimizer {name}"
            raise ParameterError(option, rule, value, f"those that have one: {', '.join(takers)}")
    for option in ("lr", *NOT_TAKEN):
        if option in model.optimizer_args:
            rule = f"must leave {option} out, which the model has beside them"
            raise ParameterError("optimizer_args", rule, model.optimizer_args[option])
    if model.scheduler is None and model.scheduler_args:
        rule = "must be left out where there is no scheduler"
        raise ParameterError("scheduler_args", rule, model.scheduler_args)


def require_unregistered(name: str) -> None:
    """Refuse a name for data of one's own under which models would always find others."""
    taken: Collection[str] = DATA
    if "seqgc.models.factories" in sys.modules:
        from seqgc.models.factories import data_names

        taken = data_names()
    if name in taken:
        rule = "must be new: models would find the registered data of that name instead"
        raise ParameterError("name", rule, name)


def _may_be_registered() -> bool:
    """Whether there may be names besides seqgc's: those that plug-ins or the image register."""
    return "seqgc.models.factories" in sys.modules or bool(os.environ.get("SEQGC_FACTORIES"))
