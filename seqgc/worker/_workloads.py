"""The code that computes gradients, which a message names in one of two ways.

A message gives a name in the `Registry` of the worker's image, or the path of a function
(``package.module:function``).

On a user's own machine, the path may lead to any module. A message to a function on Lambda may come
from a stranger. There a path may lead only to modules that the image lists (``SEQGC_FACTORIES``),
and only to functions that these modules define, not to functions that they import.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType, ModuleType
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
from seqgc.ports import (
    Flaw,
    FlawedResult,
    FloatArray,
    Task,
    WeightedPoints,
    WeightRef,
    WorkItem,
)
from seqgc.wire import Json, ResultMessage, TaskMessage
from seqgc.worker._timing import TIMER

OwnFunction: TypeAlias = Callable[..., object]

_NONE: Final[Mapping[str, object]] = MappingProxyType({})
_DEPLOY: Final = "seqgc deploy --include PATH --factories {}"


class Compute(Protocol):
    """A function that computes one mini-task and returns the concatenated gradients of its parts.

    The gradient of a part is ``sum_p coefficients[p] * grad loss(points[p])``, of shape (size,),
    where size is the number of parameters of the part's model. The result is float32 or float64. If
    only some models fail, the function raises a `seqgc.ports.FlawedResult` with the parts of the
    other models.
    """

    def __call__(self, parts: tuple[WeightedPoints, ...], /) -> FloatArray: ...


# A compute factory is called once in each worker. Pickle must accept the factory, so it is a
# module-level function, a functools.partial of one, or a dataclass instance with __call__.
ComputeFactory: TypeAlias = Callable[[], Compute]
FetchWeights: TypeAlias = Callable[[WeightRef], FloatArray]
WorkloadFactory: TypeAlias = Callable[[Mapping[str, Json], FetchWeights], Compute]


def run_task(
    task: Task, compute: Compute, *, cancelled: Callable[[], bool] = lambda: False
) -> tuple[dict[int, FloatArray], dict[str, Flaw]] | None:
    """Compute a task; return its results by slot and flaws by model, or None if it was cancelled.

    ``cancelled`` is called before each mini-task; a mini-task that has begun is always finished.
    Raise `WorkerError` if ``compute`` does not return a vector of floats.
    """
    results: dict[int, FloatArray] = {}
    flaws: dict[str, Flaw] = {}
    for item in task.items:
        if cancelled():
            return None
        results[item.slot] = _computed(task, item, compute, flaws)
    return results, flaws


def answers(
    message: TaskMessage, compute: Compute, *, cancelled: Callable[[], bool] = lambda: False
) -> Iterator[ResultMessage]:
    """Compute a task, and yield its answers.

    There is one answer, or one for each mini-task if the message asks for this. The result of a
    mini-task that has flaws waits for the last answer. If the task is cancelled, there is no last
    answer. Otherwise like `run_task`.

    Examples
    --------
    >>> from seqgc.testing.scripted import gradient, task
    >>> message = TaskMessage(task=task(0, 0, "a", "b"), part_delays_s=(0.0, 0.0))
    >>> each = answers(message, lambda parts: gradient(parts[0]))
    >>> [(list(answer.results), answer.is_last) for answer in each]
    [([0], False), ([10], True)]
    """
    if not message.part_delays_s:
        if (computed := run_task(message.task, compute, cancelled=cancelled)) is not None:
            yield message.result(*computed, phases=TIMER.phases())
        return
    results: dict[int, FloatArray] = {}
    flaws: dict[str, Flaw] = {}
    for item in message.task.items:
        if cancelled():
            return
        own: dict[str, Flaw] = {}
        result = {item.slot: _computed(message.task, item, compute, own)}
        if item is not message.task.items[-1]:
            answer = message.result(result, own, is_last=False)
            if not answer.flaws:
                yield answer
                continue
        results |= result
        flaws |= own
    yield message.result(results, flaws, phases=TIMER.phases())


def _computed(task: Task, item: WorkItem, compute: Compute, flaws: dict[str, Flaw]) -> FloatArray:
    """Compute a mini-task, add its flaws to ``flaws``, and return its result."""
    try:
        result = np.asarray(compute(item.parts))
    except FlawedResult as flawed:
        result = flawed.result
        flaws |= flawed.flaws
    if result.ndim != 1 or result.dtype not in ("f4", "f8"):
        rule = "`compute` must return a vector of float32 or float64"
        fault = f"{rule}; got {result.dtype} of shape {result.shape} for slot {item.slot}"
        raise WorkerError(fault, round=task.round, worker=task.worker)
    return result


def failure_of(error: BaseException) -> tuple[str, bool]:
    """Return one line that describes an error to the master, and True if the error is final.

    An error is final if the worker's code, data or package versions differ from the master's. In
    this case another attempt or another worker would not help.
    """
    final = isinstance(error, SkewError)
    return one_line(error) if final else fault_of(error), final


class Registry:
    """The workload factories of an image, by name.

    If a name is not registered, the image's ``modules`` are imported one after the other until one
    of them registers the name. Paths in a message may lead only to ``listed`` modules.

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
        """Return a decorator that registers a factory under ``name``.

        The decorator raises `ParameterError` if a different factory has this name. A module that
        registers factories may be imported again.
        """

        def register_factory(factory: WorkloadFactory) -> WorkloadFactory:
            holder = _origin(self._factories.setdefault(name, factory))
            if holder != _origin(factory):
                raise ParameterError("name", f"must be new; {holder} is registered under it", name)
            return factory

        return register_factory

    def add_modules(self, modules: Sequence[str]) -> None:
        """Append modules to the list of modules that `find` imports if a name is not registered."""
        self._modules.extend(module for module in modules if module not in self._modules)

    def list_modules(self, modules: Sequence[str]) -> None:
        """Import these modules now, and allow paths to their functions (`own_function`)."""
        for module in modules:
            _import(module)
        self.listed.extend(module for module in modules if module not in self.listed)

    def import_modules(self) -> None:
        """Import all modules of the list now, for example before a snapshot of the process.

        Raise `ParameterError` if a module cannot be imported.
        """
        while self._modules:
            _import(self._modules[0])
            del self._modules[0]

    def find(self, name: str) -> WorkloadFactory:
        """Return the factory with this name.

        Raise `ParameterError` if no module registers the name, or a module cannot be imported.
        """
        while name not in self._factories and self._modules:
            _import(self._modules[0])
            del self._modules[0]
        if name not in self._factories:
            names = sorted(self._factories)
            rule = f"must be registered in this image, as are {', '.join(names) or 'none'}"
            remedy = "add the module that registers it to the image's SEQGC_FACTORIES"
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
    """Raise `ParameterError` if a plain name is not in ``known``."""
    if name not in known:
        rule = f"must be one of {', '.join(known)}, or your own package.module:function"
        raise ParameterError(argument, rule, name, did_you_mean(name, known))


def own_function(path: str, *, argument: str, listed: Collection[str] | None = None) -> OwnFunction:
    """Import the function at ``path``, ``package.module:function``, and return it.

    If ``listed`` is given, the function must be defined in one of these modules. ``argument`` is
    the name of the argument in errors.

    Raises
    ------
    ParameterError
        If the function does not exist or is not allowed.

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
    rule, parts = "must be an importable package.module:function ({})", module.split(".")
    is_name = all(part.isidentifier() for part in parts)
    with refusing(argument, rule, path, _module_remedy(parts) if is_name else ""):
        if not is_name:
            raise ValueError("this is not a module name")
        if find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}")
    with refusing(argument, rule, path):
        holder = importlib.import_module(module)
    with refusing(argument, rule, path, _name_remedy(holder, name)):
        function = getattr(holder, name)
    if not callable(function):
        raise ParameterError(argument, "must name a function", path)
    if listed is not None:
        _require_own(function, name, path, argument=argument, listed=listed)
    return function  # type: ignore[no-any-return]


def _module_remedy(parts: Sequence[str]) -> str:
    """Return what to do if no module with this dotted name is found."""
    *folders, name = parts
    beside: list[str] = []
    with suppress(OSError):  # a name that is too long for a folder
        beside = [file.stem for file in Path(*folders).glob("*.py")]
    if name in beside:
        return "set PYTHONPATH=. to import from this folder"
    return did_you_mean(".".join(parts), [".".join([*folders, each]) for each in beside])


def _name_remedy(holder: ModuleType, name: str) -> str:
    """Return what to do if the module does not have a function of this name."""
    names = vars(holder)
    if name in names:
        return ""
    public = [each for each in names if callable(names[each]) and not each.startswith("_")]
    return did_you_mean(name, public)


def _require_own(
    function: OwnFunction, name: str, path: str, *, argument: str, listed: Collection[str]
) -> None:
    """Raise `ParameterError` if a function is private, or another module defines it."""
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

    The function gets ``seed`` if it has a parameter of this name. ``args`` maps the names of more
    arguments to their values; error messages call them ``{argument}_args``.

    Raises
    ------
    ParameterError
        If the function does not have one of the arguments, or raises an error.
    """
    require_arguments(f"{argument}_args", args, of=function, name=path)
    if seed is not None and "seed" in (_parameters(function) or {}):
        args = {"seed": seed, **args}
    try:
        return function(**args)
    except ParameterError:  # this error already names the argument
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
