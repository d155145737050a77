"""The workload ``models``: PyTorch objectives, rebuilt from names wherever the function runs.

A payload names models and data; it never brings their code. A network, data or a loss of your own
are functions of a module of yours, named by their paths, ``mine.nets:resnet18``::

    def resnet18(): ...       # -> torch.nn.Module; drawn by the model's seed, also given as `seed`

    def cifar100(): ...       # -> (training data, test data), the same on every call

    def focal(output, target): ...  # -> a value for each point; or a class that makes such a loss

They may have arguments, which a model gives them by name: ``module_args``, ``data_args`` and
``loss_args``. On this machine functions of any module may be named, in a function on Lambda only
those of the modules that its image lists (``SEQGC_FACTORIES``; `seqgc deploy --include …
--factories mine.nets`). Or a module registers networks and data under plain names, which are known
wherever the module is imported: `register_module`, `register_data`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Final, TypeAlias, TypeVar, cast

import torch
from torch import nn

from seqgc._grid import MOST_MODELS, grid_points
from seqgc.errors import ParameterError, refusing, require_int
from seqgc.models.compute import TorchCompute
from seqgc.models.losses import Loss, make_loss, name_of
from seqgc.models.model import (
    Clipping,
    Model,
    Objective,
    OptimizerFactory,
    Recipe,
    SchedulerFactory,
    with_shared_modules,
)
from seqgc.models.points import PointDataset
from seqgc.models.precision import Autocast, Precision, torch_dtype
from seqgc.models.problems import MODULES, digits
from seqgc.models.provenance import in_script, made_of, require_masters
from seqgc.models.stored_points import digests, find_points, require_digests, stored_points
from seqgc.models.validation import Validation
from seqgc.stores import StoredData
from seqgc.wire import Json, WorkloadRef
from seqgc.worker import (
    FACTORIES,
    FetchWeights,
    OwnFunction,
    call_own,
    own_function,
    own_module,
    register,
    require_known,
)

__all__ = [
    "check_recipe",
    "data_names",
    "factories_of",
    "grid",
    "import_registered",
    "loading_once",
    "make_models_compute",
    "make_module",
    "module_names",
    "named_data",
    "register_data",
    "register_module",
    "registered_model",
    "workload_of",
]

ModuleFactory: TypeAlias = Callable[..., nn.Module]  # (seed, **module_args)
DataFactory: TypeAlias = Callable[..., tuple[PointDataset, PointDataset]]  # (**data_args)
_Factory = TypeVar("_Factory", ModuleFactory, DataFactory)
_Drawer: TypeAlias = Callable[[int, Mapping[str, Json]], nn.Module]  # (seed, module_args)


def _seedless(name: str, make: OwnFunction) -> ModuleFactory:
    def made(_seed: int, **args: Json) -> nn.Module:  # drawn from torch's global state
        return cast("nn.Module", call_own(make, name, argument="module", args=args))

    return made


_MODULES: Final = {name: _seedless(name, make) for name, make in MODULES.items()}
_DATA: Final[dict[str, DataFactory]] = {"digits": digits}
_loaded = ContextVar[dict[str, tuple[PointDataset, PointDataset]] | None]("loaded", default=None)
_NONE: Final[Mapping[str, Json]] = MappingProxyType({})
_FIELDS: Final = ("name", "module", "data", "loss", "autocast", "seed")
_ARGS: Final = ("module_args", "data_args", "loss_args")
_TO_A_MODULE: Final = (
    "move the script's or notebook's own into a module, nets.py say, under @register_module and "
    "@register_data; list it here, SEQGC_FACTORIES=nets, and in the functions: "
    "seqgc deploy --include nets.py --factories nets"
)


def register_module(name: str) -> Callable[[ModuleFactory], ModuleFactory]:
    """Return a decorator that registers a network: ``(seed, **module_args) -> torch.nn.Module``.

    Raises
    ------
    ParameterError
        If the name is taken by another, or could be one of a Python object.

    Examples
    --------
    >>> @register_module("line-example")
    ... def line(seed):
    ...     return nn.Linear(1, 1)
    >>> make_module("line-example", seed=0)
    Linear(in_features=1, out_features=1, bias=True)
    """
    return _registering(_MODULES, name)


def register_data(name: str) -> Callable[[DataFactory], DataFactory]:
    """Return a decorator that registers data: ``(**data_args) -> (train, test)``.

    The decorated function must return the same on every call. Names are refused as by
    `register_module`.
    """
    return _registering(_DATA, name)


def module_names() -> tuple[str, ...]:
    """Return the names of all networks that are known here."""
    return tuple(_MODULES)


def data_names() -> tuple[str, ...]:
    """Return the names of all data that are known here."""
    return tuple(_DATA)


def make_module(name: str, *, seed: int, args: Mapping[str, Json] = _NONE) -> nn.Module:
    """Return a new network, its weights drawn by ``seed`` alone.

    ``name`` is one of `MODULES`, a registered name, or the path ``package.module:function`` of a
    function. ``args`` are the arguments of the network's function, by name.

    Raises
    ------
    ParameterError
        If there is no network of that name, or its function has no such arguments, or raises.

    Examples
    --------
    >>> from seqgc.training import make_module
    >>> sum(p.numel() for p in make_module("paper-cnn", seed=0).parameters())
    269998
    """
    return _drawer(name)(seed, args)


def named_data(name: str, args: Mapping[str, Json] = _NONE) -> tuple[PointDataset, PointDataset]:
    """Return the data to train on and to test on.

    ``name`` is ``digits``, a registered name, the path ``package.module:function`` of a function,
    or the name of a data set of `seqgc data put`, whose points are read when they are needed.
    ``args`` are the arguments of the function that returns the data, by name.

    Raises
    ------
    ParameterError
        If there are no data of that name, or their function has no such arguments, raises, or does
        not return a pair.
    """
    make, loaded = _data_factory(name), _loaded.get()
    if loaded is None:
        return _made_data(make, name, args)
    if (key := _key(name, args)) not in loaded:
        loaded[key] = _made_data(make, name, args)
    return loaded[key]


@contextmanager
def loading_once() -> Iterator[None]:
    """Load data of one name once, for all models that are made in the block."""
    before = _loaded.set({})
    try:
        yield
    finally:
        _loaded.reset(before)


def registered_model(
    name: str,
    *,
    module: str = "digits-cnn",
    data: str = "digits",
    loss: str | Loss = "cross-entropy",
    module_args: Mapping[str, object] = _NONE,
    data_args: Mapping[str, object] = _NONE,
    loss_args: Mapping[str, object] = _NONE,
    optimizer: OptimizerFactory,
    batch_size: int = 256,
    seed: int = 0,
    scheduler: SchedulerFactory | None = None,
    gradient_clip_val: float | None = None,
    gradient_clip_algorithm: Clipping = "norm",
    validation: Validation | None = None,
    save_every_n_steps: int | None = None,
    autocast: Autocast = "off",
) -> Model:
    """Return a model of named parts, which all workers can train, functions too.

    ``module``, ``data`` and ``loss`` are names, or paths ``package.module:function``. Their
    arguments are ``module_args``, ``data_args`` and ``loss_args``.

    ``loss`` is ``"cross-entropy"`` or ``"mse"``, with the arguments of torch's class, in which a
    list becomes a tensor; or the path of a class that is called with the arguments and makes the
    loss; or the path of a function that is the loss, and is given the arguments with every batch.
    It may also be the object that has such a name or path. With any other loss the model cannot be
    trained by functions, only by other workers.

    ``seed`` draws the model's weights and the order of its data points. The model is evaluated on
    the test data. All other arguments are those of `Model`.

    Raises
    ------
    ParameterError
        If a name is unknown, or does not take the arguments that are given for it.

    Examples
    --------
    >>> import functools
    >>> sgd = functools.partial(torch.optim.SGD, lr=0.1)
    >>> registered_model("net", module="mlp", optimizer=sgd).recipe
    Recipe(module='mlp', data='digits', loss='cross-entropy')
    """
    called = name_of(loss)
    if called is None and loss_args:
        rule = "must be left out with a loss that has no name of its own"
        remedy = "give it the arguments with functools.partial"
        raise ParameterError("loss_args", rule, dict(loss_args), remedy)
    loss_name, given = called or ("", {})
    recipe = Recipe(
        module=module,
        data=data,
        loss=loss_name,
        module_args=cast("Mapping[str, Json]", module_args),
        data_args=cast("Mapping[str, Json]", data_args),
        loss_args=cast("Mapping[str, Json]", {**given, **loss_args}),
    )
    train, test = named_data(data, recipe.data_args)
    return Model(
        name=name,
        module=make_module(module, seed=seed, args=recipe.module_args),
        loss=make_loss(loss_name, recipe.loss_args) if called else loss,
        dataset=train,
        optimizer=optimizer,
        batch_size=batch_size,
        seed=seed,
        test_dataset=test,
        recipe=recipe if called else None,
        scheduler=scheduler,
        gradient_clip_val=gradient_clip_val,
        gradient_clip_algorithm=gradient_clip_algorithm,
        validation=validation,
        save_every_n_steps=save_every_n_steps,
        autocast=autocast,
    )


def import_registered(environment: Mapping[str, str] = os.environ) -> None:
    """Import the modules of ``SEQGC_FACTORIES``, so that the master knows the image's names."""
    for module in environment.get("SEQGC_FACTORIES", "").split(","):
        if module.strip():
            rule = "must list modules that can be imported ({})"
            with refusing("SEQGC_FACTORIES", rule, module.strip()):
                importlib.import_module(module.strip())


def check_recipe(recipe: Recipe) -> None:
    """Refuse what no function could rebuild, whatever its image lists."""
    listed = [own_module(path) or "" for path in (recipe.module, recipe.data, recipe.loss)]
    _drawer(recipe.module, listed)
    _data_factory(recipe.data, listed)
    make_loss(recipe.loss, recipe.loss_args, listed=listed)


def factories_of(recipe: Recipe) -> tuple[OwnFunction, ...]:
    """Return the registered or imported functions and classes that a recipe names."""
    found = (_MODULES.get(recipe.module), _DATA.get(recipe.data))
    paths = (path.partition(":") for path in (recipe.module, recipe.data, recipe.loss))
    own = (getattr(sys.modules.get(module), name, None) for module, _, name in paths if name)
    return tuple(factory for factory in (*found, *own) if factory is not None)


def workload_of(models: Sequence[Model], *, precision: Precision) -> WorkloadRef:
    """Return the reference from which functions, which are sent no code, rebuild the objectives.

    Raises
    ------
    ParameterError
        If a model has no recipe, one that no function could follow, or one that leads to what is of
        a script or a notebook, which functions do not have.

    Examples
    --------
    >>> import functools
    >>> sgd = functools.partial(torch.optim.SGD, lr=0.1)
    >>> model = registered_model("net", module="mlp", optimizer=sgd)
    >>> workload_of([model], precision="float64").settings["models"][0]["module"]
    'mlp'
    """
    torch_dtype(precision)
    settings, recipes = list[Mapping[str, Json]](), list[Recipe]()
    for model in models:
        if model.recipe is None:
            rule = "must each have a recipe where workers are functions, which are sent no code"
            maker = "seqgc.training.registered_model"
            remedy = f"make it with {maker}, and give it its loss as a name or a function"
            if any(in_script(each) for each in (model.module, model.loss, model.dataset)):
                remedy = f"{_TO_A_MODULE}, and make it with {maker}"
            raise ParameterError("models", rule, model.name, remedy)
        check_recipe(model.recipe)
        if any(in_script(factory) for factory in factories_of(model.recipe)):
            rule = "must be made in a module where workers are functions, which are sent no code"
            raise ParameterError("models", rule, model.name, _TO_A_MODULE)
        own: dict[str, Json] = {"name": model.name, "autocast": model.autocast, "seed": model.seed}
        settings.append({**model.recipe.settings, **own})
        recipes.append(model.recipe)
    fingerprint = _made_of(with_shared_modules(model.objective for model in models), recipes)
    told = {"models": settings, "precision": precision, "fingerprint": fingerprint}
    return WorkloadRef(name="models", settings={**told, "data": digests(m.dataset for m in models)})


@register("models")
def make_models_compute(settings: Mapping[str, Json], fetch_weights: FetchWeights) -> TorchCompute:
    """Make the compute of the models that `workload_of` described; one torch thread from now on.

    It is the one that local workers have: same modules, same data, same arithmetic.

    Raises
    ------
    ParameterError
        If a setting breaks its rule, or this image does not know a name.
    SkewError
        If they are made of something else here than where the master is, by its ``fingerprint``.
    """
    if set(settings) != {"models", "precision", "fingerprint", "data"}:
        rule = "must be `models`, `precision`, `fingerprint` and `data`"
        raise ParameterError("settings", rule, sorted(settings))
    models, precision = settings["models"], str(settings["precision"])
    torch_dtype(cast("Precision", precision))
    if not isinstance(models, list) or not 0 < len(models) <= MOST_MODELS:
        raise ParameterError("models", f"must be a list of 1 to {MOST_MODELS}", type(models))
    torch.set_num_threads(1)
    parts = _Parts(tuple(FACTORIES.listed), require_digests(settings["data"]))
    recipes = [_recipe(model) for model in models]
    objectives = with_shared_modules(_objective(model, parts) for model in models)
    require_masters(settings["fingerprint"], _made_of(objectives, recipes))
    return TorchCompute(
        objectives,
        store=SimpleNamespace(fetch=fetch_weights),
        precision=cast("Precision", precision),
        cached_weights=0,  # whoever fetches keeps them
    )


class _Parts:
    """What the models of a run are made of, each made once, but for weights, which travel.

    A network of seqgc's own is one for all seeds, which draw nothing else, as users' own may.
    """

    def __init__(self, listed: Collection[str], begun: Mapping[str, str]) -> None:
        self._listed, self._begun = listed, begun
        self._modules: Final[dict[tuple[str, int], nn.Module]] = {}
        self._data: Final[dict[str, PointDataset]] = {}
        self._losses: Final[dict[str, Loss]] = {}

    def module(self, recipe: Recipe, seed: int) -> nn.Module:
        """Return a network, with whatever weights."""
        name, args = recipe.module, recipe.module_args
        key = _key(name, args), 0 if name in MODULES else seed
        if key not in self._modules:
            self._modules[key] = _drawer(name, self._listed)(key[1], args)
        return self._modules[key]

    def dataset(self, recipe: Recipe) -> PointDataset:
        name, args = recipe.data, recipe.data_args
        if (key := _key(name, args)) not in self._data:
            make = _data_factory(name, self._listed, self._begun)
            self._data[key] = _made_data(make, name, args)[0]
        return self._data[key]

    def loss(self, recipe: Recipe) -> Loss:
        name, args = recipe.loss, recipe.loss_args
        if (key := _key(name, args)) not in self._losses:
            self._losses[key] = make_loss(name, args, listed=self._listed)
        return self._losses[key]


def _key(name: str, args: Mapping[str, Json]) -> str:
    """Return a key of a name and its arguments."""
    return f"{name} {json.dumps(dict(args), sort_keys=True)}"


def _objective(model: Mapping[str, Json], parts: _Parts) -> Objective:
    """Rebuild the objective of a model's settings, which `_recipe` has checked."""
    recipe = _recipe(model)
    seed = require_int("seed", cast("int", model["seed"]), least=0)
    return Objective(
        name=str(model["name"]),
        dataset=parts.dataset(recipe),
        module=parts.module(recipe, seed),
        loss=parts.loss(recipe),
        autocast=cast("Autocast", model["autocast"]),
        seed=seed,
    )


def _recipe(model: Json) -> Recipe:
    """Return the recipe in a model's settings; refuse anything else."""
    if not isinstance(model, Mapping) or not set(_FIELDS) <= set(model) <= {*_FIELDS, *_ARGS}:
        rule = f"must each have {', '.join(_FIELDS)}, and may have {', '.join(_ARGS)}"
        raise ParameterError("models", rule, model)
    for field in _FIELDS[:-1]:
        if not isinstance(model[field], str):
            raise ParameterError(field, "must be a string", model[field])
    settings = {name: model[name] for name in ("module", "data", "loss", *_ARGS) if name in model}
    return cast("Callable[..., Recipe]", Recipe)(**settings)


def _drawer(name: str, listed: Collection[str] | None = None) -> _Drawer:
    """Return a function that draws the network of a name or path; see `own_function`."""
    function = None
    if own_module(name) is not None:
        function = own_function(name, argument="module", listed=listed)
    else:
        require_known("module", name, _MODULES)

    def draw(seed: int, args: Mapping[str, Json]) -> nn.Module:
        own = partial(_MODULES[name], seed) if function is None else function
        with torch.random.fork_rng(devices=[]):  # torch initialises from its global state only
            # Not `torch.manual_seed`, which notes a stack trace for every kind of device.
            torch.default_generator.manual_seed(seed)
            made = call_own(own, name, argument="module", seed=seed, args=args)
        return cast("nn.Module", made)

    return draw


def _data_factory(
    name: str, listed: Collection[str] | None = None, begun: Mapping[str, str] | None = None
) -> DataFactory:
    """Return what makes the data of a name or a path; stored ones as ``begun`` with."""
    if name in _DATA:
        return _DATA[name]
    if own_module(name) is None:
        if (stored := find_points(name, (begun or {}).get(name, ""))) is None:
            require_known("data", name, _DATA)
        return partial(stored_points, cast("StoredData", stored))
    return cast("DataFactory", own_function(name, argument="data", listed=listed))


def _made_data(
    make: DataFactory, name: str, args: Mapping[str, Json]
) -> tuple[PointDataset, PointDataset]:
    pair: object = call_own(make, name, argument="data", args=args)
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise ParameterError("data", "must return a pair (train, test) of datasets", name)
    return pair


def _made_of(objectives: Sequence[Objective], recipes: Sequence[Recipe]) -> dict[str, str]:
    """Return what must be alike at the master and at functions; seqgc's own part is among it."""
    makers = [factory for each in dict.fromkeys(recipes) for factory in factories_of(each)]
    return made_of(objectives, recipes, code_of=[*makers, TorchCompute, digits])


def _registering(factories: dict[str, _Factory], name: str) -> Callable[[_Factory], _Factory]:
    if ":" in name or "." in name or not name:
        raise ParameterError("name", "must be a plain name, without '.' or ':'", name)

    def keep(factory: _Factory) -> _Factory:
        there = factories.setdefault(name, factory)
        if (there.__module__, there.__qualname__) != (factory.__module__, factory.__qualname__):
            raise ParameterError("name", "must be new: another is registered under it", name)
        return factory

    return keep


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
