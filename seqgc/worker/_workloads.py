"""Workloads: what computes gradients, and which of them an image knows by name.

The name in an image's `Registry`, and a path into a module that the image lists, are the only ways
from a payload to code.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

import numpy as np

from seqgc._fault import fault_of
from seqgc.errors import ParameterError, SkewError, WorkerError, did_you_mean, one_line
from seqgc.ports import Flaw, FlawedResult, FloatArray, Task, WeightedPoints, WeightRef
from seqgc.wire import Json


class Compute(Protocol):
    """Computes gradients: one result vector per mini-task, its parts' gradients concatenated.

    Each part contributes ``sum_p coefficients[p] * grad loss(points[p])``, of shape (size,), its
    model's number of parameters; the result is float32 or float64. Where that fails for some of the
    models only, a `seqgc.ports.FlawedResult` is raised, which holds the others' parts.
    """

    def __call__(self, parts: tuple[WeightedPoints, ...], /) -> FloatArray: ...


# Called once in each worker. It crosses processes, so it is a module-level function, a
# functools.partial of one, or a dataclass instance with __call__: something pickle takes.
ComputeFactory: TypeAlias = Callable[[], Compute]
FetchWeights: TypeAlias = Callable[[WeightRef], FloatArray]
WorkloadFactory: TypeAlias = Callable[[Mapping[str, Json], FetchWeights], Compute]


def run_task(
    task: Task, compute: Compute, *, cancelled: Callable[[], bool] = lambda: False
) -> tuple[dict[int, FloatArray], dict[str, Flaw]] | None:
    """Return the task's results by slot, and their flaws by model; None if it was cancelled.

    ``cancelled`` is asked before each mini-task: a gradient that nobody wants is not computed, and
    one that was begun is finished. `WorkerError` if ``compute`` returns no vector of floats.
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


def told_of(error: BaseException) -> tuple[str, bool]:
    """Return what the master is told of an error, and whether it is final.

    It is if the worker has other code, data or versions than the master: neither another attempt
    nor another worker would make that good.
    """
    final = isinstance(error, SkewError)
    return one_line(error) if final else fault_of(error), final


class Registry:
    """Factories by name; modules that register more are imported when a name is not there yet.

    ``modules`` of this image are tried one after the other until one has registered the name. They
    are the image's own choice: a payload may name those that are ``listed``, and no others.

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
        """Return a decorator that registers a factory, and refuses another one of that name.

        Importing the factory's module again changes nothing.
        """

        def keep(factory: WorkloadFactory) -> WorkloadFactory:
            there = self._factories.setdefault(name, factory)
            if (holder := _origin(there)) != _origin(factory):
                raise ParameterError("name", f"must be new; {holder} is registered under it", name)
            return factory

        return keep

    def add_modules(self, modules: Sequence[str]) -> None:
        """Look in these modules as well, after all others, and not before a name is missing."""
        self._modules.extend(module for module in modules if module not in self._modules)

    def list_modules(self, modules: Sequence[str]) -> None:
        """Import these modules now; payloads may name what they define (`own_function`)."""
        for module in modules:
            _import(module)
        self.listed.extend(module for module in modules if module not in self.listed)

    def find(self, name: str) -> WorkloadFactory:
        """Return the factory of a name; `ParameterError` if there is none, or no such module."""
        while name not in self._factories and self._modules:
            self._import_next()
        if name not in self._factories:
            known = sorted(self._factories)
            rule = f"must be registered in this image, as are {', '.join(known) or 'none'}"
            how = "import the module that registers it: list it in the image's SEQGC_FACTORIES"
            raise ParameterError("workload", rule, name, did_you_mean(name, known) or how)
        return self._factories[name]

    def _import_next(self) -> None:
        _import(self._modules[0])
        del self._modules[0]


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError as error:
        rule = f"must be a module that the image can import ({error})"
        raise ParameterError("SEQGC_FACTORIES", rule, module) from error


def _origin(factory: WorkloadFactory) -> str:
    """Return where a factory is defined."""
    kind = type(factory)
    return f"{factory.__module__}.{getattr(factory, '__qualname__', kind.__qualname__)}"


FACTORIES: Final = Registry()  # the process's own
register = FACTORIES.register
