"""Models that are made from names, on the master and in cloud functions.

A payload contains the names of models and data, but never their code. A network, a dataset or a
loss of the user is a function in the user's module. Its name is its path, such as
``mine.nets:resnet18``::

    def resnet18(): ...       # -> torch.nn.Module; drawn with the model's seed, argument `seed`

    def cifar100(): ...       # -> (training data, test data), the same on every call

    def focal(output, target): ...  # -> a value for each point; or a class that makes such a loss

The further arguments of these functions are the ``module_args``, ``data_args`` and ``loss_args`` of
a model. On the master a path may refer to any module. In a function on Lambda it must refer to a
module that the image lists (``SEQGC_FACTORIES``; `seqgc deploy --include … --factories mine.nets`).
A module can also register networks and data under plain names, which can be used in every process
that imports the module: `register_module`, `register_data`.

The first part of this file makes models from names (`registered_model`, `grid`). The second part,
the workload ``models``, describes models to cloud functions and rebuilds them there.
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
from dataclasses import fields, replace
from functools import cache, partial
from types import MappingProxyType, SimpleNamespace
from typing import Annotated, Any, Final, TypeAlias, TypeVar, cast

import msgspec
import torch
from torch import nn

from seqgc._grid import MOST_MODELS, grid_points
from seqgc.errors import ParameterError, refusing
from seqgc.models.compute import ALONE, GroupSizes, TorchCompute
from seqgc.models.datasets import PointDataset, StoredPoints, stored_points
from seqgc.models.evaluation import Validation
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
from seqgc.models.precision import Autocast, Precision, torch_dtype
from seqgc.models.problems import MODULES, digits
from seqgc.models.provenance import in_script, objectives_fingerprint, require_masters
from seqgc.stores import find_data
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
    "named_data",
    "register_data",
    "register_module",
    "registered_model",
    "workload_of",
]

ModuleFactory: TypeAlias = Callable[..., nn.Module]  # (seed, **module_args)
DataFactory: TypeAlias = Callable[..., tuple[PointDataset, PointDataset]]  # (**data_args)
_Factory = TypeVar("_Factory", ModuleFactory, DataFactory)
_SeededFactory: TypeAlias = Callable[[int, Mapping[str, Json]], nn.Module]  # (seed, module_args)


def _ignore_seed(name: str, make: OwnFunction) -> ModuleFactory:
    def factory(_seed: int, **args: Json) -> nn.Module:  # drawn from torch's global state
        return cast("nn.Module", call_own(make, name, argument="module", args=args))

    return factory


_MODULES: Final = {name: _ignore_seed(name, make) for name, make in MODULES.items()}
_DATA: Final[dict[str, DataFactory]] = {"digits": digits}
_loaded = ContextVar[dict[tuple[str, str], tuple[PointDataset, PointDataset]] | None](
    "loaded", default=None
)
_NONE: Final[Mapping[str, Json]] = MappingProxyType({})
_TO_A_MODULE: Final = (
    "move the code of the script or notebook into a module, e.g. nets.py, under @register_module "
    "and @register_data; list the module here, SEQGC_FACTORIES=nets, and in the functions: "
    "seqgc deploy --include nets.py --factories nets"
)


def register_module(name: str) -> Callable[[ModuleFactory], ModuleFactory]:
    """Return a decorator that registers a function ``(seed, **module_args) -> torch.nn.Module``.

    Raises
    ------
    ParameterError
        If another function has the name, or the name is empty or has a ``.`` or ``:``.

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
    """Return a decorator that registers a function ``(**data_args) -> (train, test)``.

    The function must return the same data on every call. Names follow the rules of
    `register_module`.
    """
    return _registering(_DATA, name)


def _registering(factories: dict[str, _Factory], name: str) -> Callable[[_Factory], _Factory]:
    if ":" in name or "." in name or not name:
        raise ParameterError("name", "must be a plain name, without '.' or ':'", name)

    def register_factory(factory: _Factory) -> _Factory:
        other = factories.setdefault(name, factory)
        if (other.__module__, other.__qualname__) != (factory.__module__, factory.__qualname__):
            raise ParameterError("name", "must not be registered for another function", name)
        return factory

    return register_factory


def data_names() -> tuple[str, ...]:
    """Return the names of all data that are registered in this process."""
    return tuple(_DATA)


def import_registered(environment: Mapping[str, str] = os.environ) -> None:
    """Import the modules that ``SEQGC_FACTORIES`` lists, so that their names are registered."""
    for module in environment.get("SEQGC_FACTORIES", "").split(","):
        if module.strip():
            rule = "must list modules that can be imported ({})"
            with refusing("SEQGC_FACTORIES", rule, module.strip()):
                importlib.import_module(module.strip())


def make_module(name: str, *, seed: int, args: Mapping[str, Json] = _NONE) -> nn.Module:
    """Return a new network, whose weights depend only on ``seed``.

    ``name`` is one of `MODULES`, a registered name, or the path ``package.module:function`` of a
    function. ``args`` are the arguments of the network's function, by name.

    Raises
    ------
    ParameterError
        If there is no network of this name, or its function does not take the arguments or raises.

    Examples
    --------
    >>> from seqgc.training import make_module
    >>> sum(p.numel() for p in make_module("paper-cnn", seed=0).parameters())
    269998
    """
    return _seeded_factory(name)(seed, args)


def named_data(name: str, args: Mapping[str, Json] = _NONE) -> tuple[PointDataset, PointDataset]:
    """Return the data for training and the data for testing.

    ``name`` is ``digits``, a registered name, the path ``package.module:function`` of a function,
    or the name of a dataset stored by `seqgc data put`, whose points are read when needed.
    ``args`` are the arguments of the function that returns the data, by name.

    Raises
    ------
    ParameterError
        If there are no data of this name, or their function does not take the arguments, raises, or
        does not return a pair.
    """
    make, loaded = _data_factory(name), _loaded.get()
    if loaded is None:
        return _make_data(make, name, args)
    if (key := (name, _as_text(args))) not in loaded:
        loaded[key] = _make_data(make, name, args)
    return loaded[key]


def _seeded_factory(name: str, listed: Collection[str] | None = None) -> _SeededFactory:
    """Return a function that makes a network from a seed; ``listed`` is as in `own_function`."""
    function: OwnFunction | None = None
    if own_module(name) is not None:
        function = own_function(name, argument="module", listed=listed)
    else:
        require_known("module", name, _MODULES)

    def draw(seed: int, args: Mapping[str, Json]) -> nn.Module:
        make = partial(_MODULES[name], seed) if function is None else function
        with torch.random.fork_rng(devices=[]):  # torch initialises from its global state only
            # Not `torch.manual_seed`, which records a stack trace for every kind of device.
            torch.default_generator.manual_seed(seed)
            module = call_own(make, name, argument="module", seed=seed, args=args)
        return cast("nn.Module", module)

    return draw


def _data_factory(
    name: str, listed: Collection[str] | None = None, versions: Mapping[str, str] | None = None
) -> DataFactory:
    """Return a function that makes the data; ``versions`` are the digests of stored datasets."""
    if own_module(name) is not None:
        return cast("DataFactory", own_function(name, argument="data", listed=listed))
    if name not in _DATA:
        digest = (versions or {}).get(name)
        # If the version with this digest does not exist, the fingerprint shows the difference.
        stored = (find_data(name, digest=digest) if digest else None) or find_data(name)
        if stored is not None:
            return partial(stored_points, stored)
    require_known("data", name, _DATA)
    return _DATA[name]


def _make_data(
    make: DataFactory, name: str, args: Mapping[str, Json]
) -> tuple[PointDataset, PointDataset]:
    pair: object = call_own(make, name, argument="data", args=args)
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise ParameterError("data", "must return a pair (train, test) of datasets", name)
    return pair


def _as_text(args: Mapping[str, Json]) -> str:
    return json.dumps(dict(args))


@contextmanager
def loading_once() -> Iterator[None]:
    """Load the data of each name only once for all models that are made in this block."""
    token = _loaded.set({})
    try:
        yield
    finally:
        _loaded.reset(token)


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
    """Return a model that is made from names, so that cloud functions can train it as well.

    ``module``, ``data`` and ``loss`` are names, or paths ``package.module:function``. Their
    arguments are ``module_args``, ``data_args`` and ``loss_args``.

    ``loss`` is one of:

    - ``"cross-entropy"`` or ``"mse"``, with the arguments of torch's class (lists become tensors);
    - the path of a class, which is called with the arguments and makes the loss;
    - the path of a function, which is the loss and gets the arguments with every batch;
    - an object that has such a name or path;
    - any other loss; cloud functions cannot train such a model.

    ``seed`` determines the model's weights and the order of its data points. The model is evaluated
    on the test data. All other arguments are as in `Model`.

    Raises
    ------
    ParameterError
        If a name is unknown, or its function does not take the arguments.

    Examples
    --------
    >>> import functools
    >>> sgd = functools.partial(torch.optim.SGD, lr=0.1)
    >>> registered_model("net", module="mlp", optimizer=sgd).recipe
    Recipe(module='mlp', data='digits', loss='cross-entropy')
    """
    named_loss = name_of(loss)
    if named_loss is None and loss_args:
        rule = "must be left out if the loss has no name"
        remedy = "give it the arguments with functools.partial"
        raise ParameterError("loss_args", rule, dict(loss_args), remedy)
    loss_name, own_args = named_loss or ("", {})
    recipe = Recipe(
        module=module,
        data=data,
        loss=loss_name,
        module_args=cast("Mapping[str, Json]", module_args),
        data_args=cast("Mapping[str, Json]", data_args),
        loss_args=cast("Mapping[str, Json]", {**own_args, **loss_args}),
    )
    train, test = named_data(data, recipe.data_args)
    return Model(
        name=name,
        module=make_module(module, seed=seed, args=recipe.module_args),
        loss=make_loss(loss_name, recipe.loss_args) if named_loss else loss,
        dataset=train,
        optimizer=optimizer,
        batch_size=batch_size,
        seed=seed,
        test_dataset=test,
        recipe=recipe if named_loss else None,
        scheduler=scheduler,
        gradient_clip_val=gradient_clip_val,
        gradient_clip_algorithm=gradient_clip_algorithm,
        validation=validation,
        save_every_n_steps=save_every_n_steps,
        autocast=autocast,
    )


def grid(make: Callable[..., Model], axes: Mapping[str, Sequence[object] | int]) -> list[Model]:
    """Return the models of a grid: call ``make`` with each combination of the values of ``axes``.

    An axis is the name of a parameter of ``make``, with the list of its values. For ``seed`` the
    number of values suffices: ``4`` means ``[0, 1, 2, 3]``. The last axis varies fastest. The name
    of a model consists of its name from ``make`` and its values: ``net-lr_0.01-seed_2``. The data
    of `registered_model` are loaded once. Load other data outside of ``make``, so that they are
    also loaded once.

    Raises
    ------
    ParameterError
        If an axis is not a parameter of ``make``, or has no values, or if there are more than 1000
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
    parameters = inspect.signature(make).parameters.values()
    any_name = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    names = None if any_name else [each.name for each in parameters]
    models = []
    with loading_once():
        for name, values in grid_points(axes, known=names).items():
            model = make(**values)
            if not isinstance(model, Model):
                raise ParameterError("make", "must return a Model", model)
            models.append(replace(model, name=f"{model.name}-{name}"))
    return models


# ---- the workload `models` -----------------------------------------------------------------------


def check_recipe(recipe: Recipe) -> None:
    """Raise `ParameterError` if no cloud function could rebuild the model."""
    listed = [own_module(path) or "" for path in (recipe.module, recipe.data, recipe.loss)]
    _seeded_factory(recipe.module, listed)
    _data_factory(recipe.data, listed)
    make_loss(recipe.loss, recipe.loss_args, listed=listed)


def factories_of(recipe: Recipe) -> tuple[OwnFunction, ...]:
    """Return the registered or imported functions and classes that a recipe names."""
    registered = (_MODULES.get(recipe.module), _DATA.get(recipe.data))
    paths = (path.partition(":") for path in (recipe.module, recipe.data, recipe.loss))
    imported = (getattr(sys.modules.get(module), name, None) for module, _, name in paths if name)
    return tuple(factory for factory in (*registered, *imported) if factory is not None)


def workload_of(
    models: Sequence[Model], *, precision: Precision, group_sizes: GroupSizes = ALONE
) -> WorkloadRef:
    """Return the reference from which cloud functions rebuild the models' objectives."""
    torch_dtype(precision)
    settings, recipes = list[Mapping[str, Json]](), list[Recipe]()
    for model in models:
        if model.recipe is None:
            rule = "must each have a recipe for functions, because no code is sent to them"
            maker = "seqgc.training.registered_model"
            remedy = f"make it with {maker}, and give the loss as a name or a function"
            if any(in_script(each) for each in (model.module, model.loss, model.dataset)):
                remedy = f"{_TO_A_MODULE}; then make the model with {maker}"
            raise ParameterError("models", rule, model.name, remedy)
        check_recipe(model.recipe)
        if any(in_script(factory) for factory in factories_of(model.recipe)):
            rule = "must be made in a module for functions, because no code is sent to them"
            raise ParameterError("models", rule, model.name, _TO_A_MODULE)
        rest: dict[str, Json] = {"name": model.name, "autocast": model.autocast, "seed": model.seed}
        if (together := group_sizes.get(model.name, 1)) > 1:
            rest["together"] = together
        settings.append({**model.recipe.settings, **rest})
        recipes.append(model.recipe)
    objectives = with_shared_modules(model.objective for model in models)
    stored = [m.dataset.stored for m in models if isinstance(m.dataset, StoredPoints)]
    return WorkloadRef(
        name="models",
        settings={
            "models": settings,
            "precision": precision,
            "fingerprint": _fingerprint(objectives, recipes),
            "data": {each.name: each.digest for each in stored},
        },
    )


def _fingerprint(objectives: Sequence[Objective], recipes: Sequence[Recipe]) -> dict[str, str]:
    makers = [factory for each in dict.fromkeys(recipes) for factory in factories_of(each)]
    return objectives_fingerprint(objectives, recipes, code_of=[*makers, TorchCompute, digits])


@register("models")
def make_models_compute(settings: Mapping[str, Json], fetch_weights: FetchWeights) -> TorchCompute:
    """Make the compute function of the models that `workload_of` described.

    It computes the same results as the compute function of local workers, with the same modules,
    data and arithmetic. From now on the process uses one torch thread.

    Raises
    ------
    ParameterError
        If the settings do not describe models.
    SkewError
        If the code or the data of this function differ from the master's.
    """
    with refusing("settings", "must describe models ({})", ", ".join(sorted(settings))):
        workload = msgspec.convert(settings, _WorkloadSettings)
    torch.set_num_threads(1)
    objectives = _objectives(workload)
    recipes = [model.recipe for model in workload.models]
    require_masters(workload.fingerprint, _fingerprint(objectives, recipes))
    return TorchCompute(
        objectives,
        store=SimpleNamespace(fetch=fetch_weights),
        precision=workload.precision,
        cached_weights=0,  # `fetch_weights` has a cache
        group_sizes={model.name: model.together for model in workload.models if model.together > 1},
    )


class _ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of one model in a payload."""

    name: str
    module: str
    data: str
    loss: str
    autocast: Autocast
    seed: Annotated[int, msgspec.Meta(ge=0)]
    together: Annotated[int, msgspec.Meta(ge=1)] = 1  # of `GroupSizes`
    module_args: dict[str, Any] = {}
    data_args: dict[str, Any] = {}
    loss_args: dict[str, Any] = {}

    @property
    def recipe(self) -> Recipe:
        return Recipe(**{each.name: getattr(self, each.name) for each in fields(Recipe)})


class _WorkloadSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of the workload ``models`` in a payload."""

    models: Annotated[list[_ModelSettings], msgspec.Meta(min_length=1, max_length=MOST_MODELS)]
    precision: Precision
    fingerprint: dict[str, str]
    data: dict[str, str]  # digests of stored datasets by name


def _objectives(workload: _WorkloadSettings) -> tuple[Objective, ...]:
    """Rebuild the objectives of a workload; equal networks, datasets and losses are made once.

    Because the master sends the weights, a network of seqgc is made once for all seeds. A network
    of the user is made for each seed, because the seed may determine more than the weights.
    """
    listed = tuple(FACTORIES.listed)

    @cache
    def network_of(name: str, args: str, seed: int) -> nn.Module:
        return _seeded_factory(name, listed)(seed, json.loads(args))

    @cache
    def dataset_of(name: str, args: str) -> PointDataset:
        return _make_data(_data_factory(name, listed, workload.data), name, json.loads(args))[0]

    @cache
    def loss_of(name: str, args: str) -> Loss:
        return make_loss(name, json.loads(args), listed=listed)

    objectives = []
    for model in workload.models:
        recipe, seed = model.recipe, 0 if model.module in MODULES else model.seed
        objectives.append(
            Objective(
                name=model.name,
                module=network_of(recipe.module, _as_text(recipe.module_args), seed),
                dataset=dataset_of(recipe.data, _as_text(recipe.data_args)),
                loss=loss_of(recipe.loss, _as_text(recipe.loss_args)),
                autocast=model.autocast,
                seed=model.seed,
            )
        )
    return with_shared_modules(objectives)
