"""A function that is named by its path, ``package.module:function``: whose code it may be.

Whoever writes a configuration names functions of their own in it, and on their own machine any
module may be theirs. A function on Lambda is sent the same path in a payload, and there a path is
a stranger's word. So it leads only into modules that the image lists (``SEQGC_FACTORIES``), to what
these define themselves: what they have imported is other people's, and nobody has listed that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import Final, TypeAlias

from seqgc.errors import ParameterError, did_you_mean, refusing

__all__ = [
    "OwnFunction",
    "call_own",
    "own_function",
    "own_module",
    "require_arguments",
    "require_known",
]

OwnFunction: TypeAlias = Callable[..., object]

_NONE: Final[Mapping[str, object]] = MappingProxyType({})
_DEPLOY: Final = "seqgc deploy --include PATH --factories {}"


def own_module(path: str) -> str | None:
    """Return the module that a path leads into; None for a plain name, which is no path.

    Examples
    --------
    >>> own_module("mine.nets:net"), own_module("digits")
    ('mine.nets', None)
    """
    module, colon, _ = path.partition(":")
    return module if colon else None


def require_known(argument: str, name: str, known: Collection[str]) -> None:
    """Refuse a plain name that is not among the known ones."""
    if name not in known:
        rule = f"must be one of {', '.join(known)}, or your own package.module:function"
        raise ParameterError(argument, rule, name, did_you_mean(name, known))


def own_function(path: str, *, argument: str, listed: Collection[str] | None = None) -> OwnFunction:
    """Import ``package.module:function``; ``listed`` are the only modules it may lead into.

    Raises
    ------
    ParameterError
        If there is no such function, or it may not be named.

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
            raise ValueError("that is no name of a module")
        if find_spec(module.partition(".")[0]) is None:
            raise ModuleNotFoundError(f"No module named {module!r}")
        function = getattr(import_module(module), name)
    if not callable(function):
        raise ParameterError(argument, "must name a function", path)
    if listed is not None:
        _require_own(function, name, path, argument=argument, listed=listed)
    return function  # type: ignore[no-any-return]


def _require_own(
    function: OwnFunction, name: str, path: str, *, argument: str, listed: Collection[str]
) -> None:
    """Refuse what a module keeps to itself, or has from a module that is not listed."""
    if name.startswith("_"):
        rule = "must be public where workers are functions: its name begins with '_'"
        raise ParameterError(argument, rule, path)
    named = function if inspect.isroutine(function) or inspect.isclass(function) else type(function)
    if function is not named:  # a functools.partial, or an object that can be called
        named = getattr(function, "func", named)
    if (home := getattr(named, "__module__", None)) not in listed:
        rule = f"must be defined in its module where workers are functions; {home} defines it"
        raise ParameterError(argument, rule, path, "define a function there that calls it")


def call_own(
    function: OwnFunction,
    path: str,
    *,
    argument: str,
    seed: int | None = None,
    args: Mapping[str, object] = _NONE,
) -> object:
    """Call a user's own function, with the seed if it has a parameter ``seed``; return its result.

    ``args`` are further arguments, by name; in messages they are called ``{argument}_args``.

    Raises
    ------
    ParameterError
        If the function has no such arguments, or raises; then with the text of its error.
    """
    require_arguments(f"{argument}_args", args, of=function, name=path)
    if seed is not None and "seed" in (_parameters(function) or {}):
        args = {"seed": seed, **args}
    try:
        return function(**args)
    except ParameterError:  # which is one line, and names the argument
        raise
    except BaseException:
        with refusing(argument, "must not raise {}", path):
            raise


def require_arguments(argument: str, given: Collection[str], *, of: OwnFunction, name: str) -> None:
    """Refuse a ``given`` argument that the function or class ``of``, called ``name``, lacks.

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
    """Return the parameters of a function; None if it has no signature, as some of C."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None
