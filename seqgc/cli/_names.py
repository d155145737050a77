"""What a configuration names, looked up before PyTorch is imported.

A typing error is to be refused at once, and PyTorch takes seconds and a quarter of a gigabyte. So
the names that seqgc itself has stand here, and a function of the user's own is found before
anything else is imported. What modules have registered (`seqgc.training.factories`) nobody knows
before: then the names are checked once more, when they are used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Final, TypeAlias

from seqgc.cli.config import ModelConfig, RunConfig
from seqgc.errors import ParameterError, did_you_mean, refusing, require_name
from seqgc.worker import require_registered

__all__ = [
    "DATA",
    "FUNCTIONS",
    "MODULES",
    "NOT_TAKEN",
    "OPTIMIZERS",
    "SCHEDULERS",
    "OwnFunction",
    "called",
    "own_functions",
    "require_known",
]

OwnFunction: TypeAlias = Callable[..., object]

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
"""Backends whose workers are sent no code."""


def own_functions(config: RunConfig) -> dict[str, OwnFunction]:
    """Return the user's own functions that models name, by those names; import their modules.

    Raises
    ------
    ParameterError
        If a name is neither a function nor known to seqgc. Nothing that workers need is imported
        for functions on Lambda, which are sent no code.
    """
    found: dict[str, OwnFunction] = {}
    for model in config.models:
        require_name("name", model.name, most=100)
        for argument, name, known in _of_the_master(model):
            if ":" not in name:
                require_known(argument, name.lower(), known)
            elif name not in found:
                found[name] = _own_function(name, argument=argument)
        _check_options(model)
        for argument, name, known in (
            ("module", model.module, MODULES),
            ("data", model.data, DATA),
        ):
            if config.backend in FUNCTIONS:
                if not _may_be_registered():
                    require_registered(known, name, argument=argument)
            elif ":" not in name and not _may_be_registered():
                require_known(argument, name, known)
            elif ":" in name and name not in found:
                found[name] = _own_function(name, argument=argument)
    return found


def _of_the_master(model: ModelConfig) -> Iterator[tuple[str, str, Collection[str]]]:
    """Yield what no worker needs, so that it may be one's own whoever computes."""
    yield "optimizer", model.optimizer, OPTIMIZERS
    if model.scheduler is not None:
        yield "scheduler", model.scheduler, SCHEDULERS


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


def require_known(argument: str, name: str, known: Collection[str]) -> None:
    """Refuse a name that is not among the known ones."""
    if name not in known:
        rule = f"must be one of {', '.join(known)}, or your own package.module:function"
        raise ParameterError(argument, rule, name, did_you_mean(name, known))


def called(function: OwnFunction, name: str, *, argument: str) -> object:
    """Return what the user's own function returns, or raise `ParameterError`."""
    with refusing(argument, "must not raise {}", name):
        return function()


def _may_be_registered() -> bool:
    """Whether there may be names besides seqgc's: those that plug-ins or the image register."""
    return "seqgc.training.factories" in sys.modules or bool(os.environ.get("SEQGC_FACTORIES"))


def _own_function(path: str, *, argument: str) -> OwnFunction:
    """Return the user's own ``package.module:function``, or raise `ParameterError`."""
    module, _, name = path.partition(":")
    with refusing(argument, "must be an importable package.module:function ({})", path):
        if not all(part.isidentifier() for part in module.split(".")):
            raise ValueError("that is no name of a module")
        if find_spec(module.partition(".")[0]) is None:
            raise ModuleNotFoundError(f"No module named {module!r}")
        function = getattr(import_module(module), name)
    if not callable(function):
        raise ParameterError(argument, "must name a function", path)
    return function  # type: ignore[no-any-return]
