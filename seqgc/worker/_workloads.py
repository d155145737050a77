"""The ways from a name to the code that computes gradients.

A payload names code in two ways: by a name in the image's `Registry`, or by the path of a function
(``package.module:function``) in a module that the image lists.

On a user's own machine such a path may lead into any module. In a payload that a function on Lambda
receives, it is a stranger's word. So there it leads only into modules that the image lists
(``SEQGC_FACTORIES``), and only to what these modules define themselves, not to what they import.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.util import find_spec
from types import MappingProxyType
from typing import Final, Protocol, TypeAlias

import numpy as np

from seqgc._fault import fault_of
from seqgc.errors import (
    ParameterError,
    SkewError,
    WorkerError,
    did_you_mean,
    one_line,
    refusing,
)
from seqgc.ports import Flaw, FlawedResult, FloatArray, Task, WeightedPoints, WeightRef
from seqgc.wire import Json

OwnFunction: TypeAlias = Callable[..., object]

_NONE: Final[Mapping[str, object]] = MappingProxyType({})
_DEPLOY: Final = "seqgc deploy --include PATH --factories {}"


class Compute(Protocol):
    """A function that computes one mini-task: the concatenated gradients of its parts.

    Each part contributes ``sum_p coefficients[p] * grad loss(points[p])``, of shape (size,), where
    size is its model's number of parameters. The result is float32 or float64. If some models fail
    and others do not, the function raises a `seqgc.ports.FlawedResult` with the good parts.
    """

    def __call__(self, parts: tuple[WeightedPoints, ...], /) -> FloatArray: ...


# Called once in each worker. Pickle must accept it: it is a module-level function, a
# functools.partial of one, or a dataclass instance with __call__.
ComputeFactory: TypeAlias = Callable[[], Compute]
FetchWeights: TypeAlias = Callable[[WeightRef], FloatArray]
WorkloadFactory: TypeAlias = Callable[[Mapping[str, Json], FetchWeights], Compute]


def run_task(
    task: Task, compute: Compute, *, cancelled: Callable[[], bool] = lambda: False
) -> tuple[dict[int, FloatArray], dict[str, Flaw]] | None:
    """Return the task's results by slot and their flaws by model, or None if it was cancelled.

    ``cancelled`` is called before each mini-task, so a mini-task that has begun is finished. Raise
    `WorkerError` if ``compute`` does not return a vector of floats.
    """
    results: dict[int, FloatArray] = {}
    flaws: dict[str, Flaw] = {}
    for item in task.items:
        if cancelled():
            return None
        try:
            result = np.asarray(compute(item.parts))
        except FlawedResult as flawed:
            result = flawed.result
            flaws |= flawed.flaws
        if result.ndim != 1 or result.dtype not in ("f4", "f8"):
            rule = "`compute` must return a vector of float32 or float64"
            fault = f"{rule}; got {result.dtype} of shape {result.shape} for slot {item.slot}"
            raise WorkerError(fault, round=task.round, worker=task.worker)
        results[item.slot] = result
    return results, flaws


def failure_of(error: BaseException) -> tuple[str, bool]:
    """Return the line about an error that the master gets, and True if the error is final.

    It is final if the worker has other code, data or versions than the master: another attempt or
    another worker would not help.
    """
    final = isinstance(error, SkewError)
    return one_line(error) if final else fault_of(error), final


class Registry:
    """The workload factories of an image, by name.

    If a name is missing, the image's ``modules`` are imported one after the other until one of them
    registers it. Paths in a payload may lead only into ``listed`` modules.

    Examples
    --------
    >>> registry = Registry()
    >>> @registry.register("zeros")
    ... def zeros(settings, fetch_weights):
    ...     return lambda parts: np.zeros(settings["size"])
    >>> import numpy as np
    >>> registry.find("zeros")({"size": 2}, None)(())
    array([0., 0.])
    >>> registry.find("zeroes")
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `workload` must be registered in this image, as are zeros; got \
'zeroes' (did you mean 'zeros'?)
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        self._factories: Final[dict[str, WorkloadFactory]] = {}
        self._modules = list(modules)
        self.listed: Final[list[str]] = []

    def register(self, name: str) -> Callable[[WorkloadFactory], WorkloadFactory]:
        """Return a decorator that registers a factory, and refuses a second one of that name.

        A module that registers factories may be imported again.
        """

        def register_factory(factory: WorkloadFactory) -> WorkloadFactory:
            holder = _origin(self._factories.setdefault(name, factory))
            if holder != _origin(factory):
                raise ParameterError("name", f"must be new; {holder} is registered under it", name)
            return factory

        return register_factory

    def add_modules(self, modules: Sequence[str]) -> None:
        """Add modules to import, after the present ones, if a name is missing."""
        self._modules.extend(module for module in modules if module not in self._modules)

    def list_modules(self, modules: Sequence[str]) -> None:
        """Import these modules now, and let payloads name their functions (`own_function`)."""
        for module in modules:
            _import(module)
        self.listed.extend(module for module in modules if module not in self.listed)

    def find(self, name: str) -> WorkloadFactory:
        """Return the factory of a name.

        Raise `ParameterError` if no module registers it, or a module cannot be imported.
        """
        while name not in self._factories and self._modules:
            _import(self._modules[0])
            del self._modules[0]
        if name not in self._factories:
            names = sorted(self._factories)
            rule = f"must be registered in this image, as are {', '.join(names) or 'none'}"
            remedy = "list the module that registers it in the image's SEQGC_FACTORIES"
            raise ParameterError("workload", rule, name, did_you_mean(name, names) or remedy)
        return self._factories[name]


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        rule = f"must be a module that the image can import ({error})"
        raise ParameterError("SEQGC_FACTORIES", rule, module) from error


def _origin(factory: WorkloadFactory) -> str:
    kind = type(factory)
    return f"{factory.__module__}.{getattr(factory, '__qualname__', kind.__qualname__)}"


FACTORIES: Final = Registry()  # of this process
register = FACTORIES.register


# ---- functions named by their path --------------------------------------------------------------


def own_module(path: str) -> str | None:
    """Return the module of a path, or None for a plain name.

    Examples
    --------
    >>> own_module("mine.nets:net"), own_module("digits")
    ('mine.nets', None)
    """
    module, colon, _ = path.partition(":")
    return module if colon else None


def require_known(argument: str, name: str, known: Collection[str]) -> None:
    """Raise `ParameterError` if a plain name is not ``known``."""
    if name not in known:
        rule = f"must be one of {', '.join(known)}, or your own package.module:function"
        raise ParameterError(argument, rule, name, did_you_mean(name, known))


def own_function(path: str, *, argument: str, listed: Collection[str] | None = None) -> OwnFunction:
    """Import ``package.module:function``; if ``listed`` is given, only from these modules.

    Raises
    ------
    ParameterError
        If the function does not exist or must not be named.

    Examples
    --------
    >>> own_function("json:dumps", argument="data")([1])
    '[1]'
    >>> own_function("json:dumps", argument="data", listed=["mine.nets"])
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `data` must be of a module that the image lists (SEQGC_FACTORIES: \
mine.nets); got 'json:dumps' (seqgc deploy --include PATH --factories json)
    """
    module, _, name = path.partition(":")
    if listed is not None and module not in listed:
        known = ", ".join(sorted(listed)) or "none"
        rule = f"must be of a module that the image lists (SEQGC_FACTORIES: {known})"
        raise ParameterError(argument, rule, path, _DEPLOY.format(module))
    with refusing(argument, "must be an importable package.module:function ({})", path):
        if not all(part.isidentifier() for part in module.split(".")):
            raise ValueError("this is not a module name")
        if find_spec(module.partition(".")[0]) is None:
            raise ModuleNotFoundError(f"No module named {module!r}")
        function = getattr(importlib.import_module(module), name)
    if not callable(function):
        raise ParameterError(argument, "must name a function", path)
    if listed is not None:
        _require_own(function, name, path, argument=argument, listed=listed)
    return function  # type: ignore[no-any-return]


def _require_own(
    function: OwnFunction, name: str, path: str, *, argument: str, listed: Collection[str]
) -> None:
    """Refuse a function that is private, or defined in a module that is not listed."""
    if name.startswith("_"):
        rule = "must be public if workers are functions; its name begins with '_'"
        raise ParameterError(argument, rule, path)
    named = function if inspect.isroutine(function) or inspect.isclass(function) else type(function)
    if function is not named:  # a functools.partial, or an object that can be called
        named = getattr(function, "func", named)
    if (home := getattr(named, "__module__", None)) not in listed:
        rule = f"must be defined in its module if workers are functions; {home} defines it"
        raise ParameterError(argument, rule, path, "define a function in the module that calls it")


def call_own(
    function: OwnFunction,
    path: str,
    *,
    argument: str,
    seed: int | None = None,
    args: Mapping[str, object] = _NONE,
) -> object:
    """Call a user's function and return its result.

    The function gets ``seed`` if it has a parameter of this name. ``args`` are further arguments by
    name; error messages call them ``{argument}_args``.

    Raises
    ------
    ParameterError
        If the function has no such arguments, or raises an error.
    """
    require_arguments(f"{argument}_args", args, of=function, name=path)
    if seed is not None and "seed" in (_parameters(function) or {}):
        args = {"seed": seed, **args}
    try:
        return function(**args)
    except ParameterError:  # names the argument already
        raise
    except BaseException:
        with refusing(argument, "must not raise {}", path):
            raise


def require_arguments(argument: str, given: Collection[str], *, of: OwnFunction, name: str) -> None:
    """Raise `ParameterError` if a ``given`` argument is not a parameter of ``of``.

    ``name`` is the name of the function or class ``of`` in the message.

    Examples
    --------
    >>> require_arguments("module_args", {"widht": 3}, of=lambda width: None, name="mine:net")
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `module_args` must be arguments of mine:net, which are width; got \
'widht' (did you mean 'width'?)
    """
    parameters = _parameters(of)
    if parameters is None or any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    for each in given:
        if each not in parameters:
            rule = f"must be arguments of {name}, which are {', '.join(parameters) or 'none'}"
            raise ParameterError(argument, rule, each, did_you_mean(each, parameters))


def _parameters(function: OwnFunction) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters of a function, or None if it has no signature (some C functions)."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
