"""Which workloads an image knows, by name: the only way from a payload to code."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from seqgc.errors import ParameterError, did_you_mean
from seqgc.ports import FloatArray, WeightRef
from seqgc.wire import Json
from seqgc.worker._compute import Compute

__all__ = ["FACTORIES", "FetchWeights", "Registry", "WorkloadFactory", "register"]

FetchWeights: TypeAlias = Callable[[WeightRef], FloatArray]
WorkloadFactory: TypeAlias = Callable[[Mapping[str, Json], FetchWeights], Compute]


class Registry:
    """Factories by name; modules that register more are imported when a name is not there yet.

    Parameters
    ----------
    modules
        Modules of this image, tried one after the other until one has registered the name. They
        are the image's own choice: no payload ever names one.

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

    def register(self, name: str) -> Callable[[WorkloadFactory], WorkloadFactory]:
        """Return a decorator that registers a factory; importing its module again changes nothing.

        Raises
        ------
        ParameterError
            If another factory has the name.
        """

        def keep(factory: WorkloadFactory) -> WorkloadFactory:
            there = self._factories.setdefault(name, factory)
            if _origin(there) != _origin(factory):
                rule = f"must be new; {'.'.join(_origin(there))} is registered under it"
                raise ParameterError("name", rule, name)
            return factory

        return keep

    def add_modules(self, modules: Sequence[str]) -> None:
        """Look in these modules as well, after all others, and not before a name is missing."""
        self._modules.extend(module for module in modules if module not in self._modules)

    def load(self) -> None:
        """Import all modules now, before anyone waits for them."""
        while self._modules:
            self._import_next()

    def find(self, name: str) -> WorkloadFactory:
        """Return the factory of that name.

        Raises
        ------
        ParameterError
            If there is none, or one of the modules cannot be imported.
        """
        while name not in self._factories and self._modules:
            self._import_next()
        if name not in self._factories:
            known = sorted(self._factories)
            rule = f"must be registered in this image, as are {', '.join(known) or 'none'}"
            remedy = did_you_mean(name, known) or (
                "import the module that registers it: list it in the image's SEQGC_FACTORIES"
            )
            raise ParameterError("workload", rule, name, remedy)
        return self._factories[name]

    def _import_next(self) -> None:
        module = self._modules[0]
        try:
            importlib.import_module(module)
        except ImportError as error:
            rule = f"must be a module that the image can import ({error})"
            raise ParameterError("SEQGC_FACTORIES", rule, module) from error
        del self._modules[0]


def _origin(factory: WorkloadFactory) -> tuple[str, str]:
    """Return where a factory is defined, which importing its module again does not change."""
    kind = type(factory)
    return (
        getattr(factory, "__module__", kind.__module__),
        getattr(factory, "__qualname__", kind.__qualname__),
    )


FACTORIES: Final = Registry()
"""The process's own."""

register = FACTORIES.register
