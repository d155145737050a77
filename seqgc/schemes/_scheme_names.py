"""Which schemes there are, by the names that specs begin with.

A scheme's file registers it; nothing else in seqgc lists schemes. The parameters of its spec are
the fields of its dataclass, beside ``n`` and those that the name fixes: integers, real numbers or
words, and those with a default may be left out. So one class can have several names (``gc``,
``gc-rep``, ``gc-binary`` fix ``GC``'s ``family``), and a file outside of seqgc can do all
that ours can. The schemes of an installed package with an entry point of the group
``seqgc.schemes`` are found by name; any other module is named to `load_plugins` first, as
``--plugin`` does.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeVar, cast, get_type_hints

import numpy as np

from seqgc.errors import ParameterError

if TYPE_CHECKING:
    from seqgc.schemes._contract import Scheme

__all__ = ["Entry", "entry_of", "forget_scheme", "load_plugins", "register", "registered"]

ENTRY_POINTS: Final = "seqgc.schemes"

_Kind = TypeVar("_Kind", bound="type[Scheme]")
_entries: dict[str, Entry] = {}
_loaded: set[str] = set()  # entry points


@dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """A name that specs begin with: a scheme's class, and the fields that the name fixes."""

    name: str
    kind: type[Scheme]
    fixed: Mapping[str, object]

    @cached_property
    def parameters(self) -> dict[str, type]:
        """The parameters of the spec and their types, in the order of the fields."""
        hints = get_type_hints(self.kind)
        return {
            field.name: hints[field.name] if hints[field.name] in (int, float) else str
            for field in _fields(self.kind)
            if field.init and field.name != "n" and field.name not in self.fixed
        }

    @cached_property
    def defaults(self) -> dict[str, object]:
        """The parameters that may be left out, and what they are then."""
        return {
            field.name: field.default
            for field in _fields(self.kind)
            if field.name in self.parameters and field.default is not dataclasses.MISSING
        }

    @property
    def required(self) -> list[str]:
        """The parameters that a spec must give."""
        return [name for name in self.parameters if name not in self.defaults]

    def build(self, n: int, values: Mapping[str, object]) -> Scheme:
        """Return the scheme for ``n`` workers; raises what its class raises."""
        make = cast("Callable[..., Scheme]", self.kind)
        scheme = make(n=n, **self.fixed, **values)
        if (broken := _broken(scheme)) is not None:
            kind = f"{self.kind.__module__}.{self.kind.__qualname__}"
            raise ParameterError("scheme", f"breaks its contract: {broken}", kind)
        return scheme

    def names(self, scheme: Scheme) -> bool:
        """Whether the scheme is of this name."""
        of_kind = type(scheme) is self.kind
        return of_kind and all(getattr(scheme, key) == v for key, v in self.fixed.items())

    def spec(self, scheme: Scheme) -> str:
        """Spell a scheme of this name; what is left at its default is left out."""
        values = {key: getattr(scheme, key) for key in self.parameters}
        chosen = {
            k: v for k, v in values.items() if k not in self.defaults or v != self.defaults[k]
        }
        return ":".join(filter(None, [self.name, ",".join(f"{k}={v}" for k, v in chosen.items())]))


def register(name: str, **fixed: object) -> Callable[[_Kind], _Kind]:
    """Register a scheme under a name; a decorator for its frozen dataclass.

    Parameters
    ----------
    name
        What specs begin with: lower-case letters, digits and hyphens, for example ``gc-rep``.
    **fixed
        Values of fields that the name stands for.

    Raises
    ------
    ParameterError
        If the name is taken or ill-formed, or the class breaks `Scheme`'s contract.

    Examples
    --------
    >>> from seqgc.schemes import GC, parse_scheme
    >>> parse_scheme("gc-binary:s=4", n=12) == GC(n=12, s=4, family="binary")
    True
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        rule = "must be lower-case letters, digits and hyphens, and begin with a letter"
        raise ParameterError("name", rule, name)

    def add(kind: _Kind) -> _Kind:
        _check(name, kind, fixed)
        _entries[name] = Entry(name=name, kind=kind, fixed=fixed)
        return kind

    return add


def forget_scheme(name: str) -> None:
    """Make a registered name unknown again, as a test or a notebook may want to."""
    del _entries[name]


def registered(name: str | None = None) -> dict[str, Entry]:
    """Return what is registered, by name; with a name not known here, after a look for plug-ins."""
    if name is None or name not in _entries:
        _load_entry_points()
    return dict(_entries)


def entry_of(scheme: Scheme) -> Entry:
    """Return the entry that names a scheme.

    Raises
    ------
    ParameterError
        If its class, or its choice of fixed fields, is not registered.
    """
    fitting = [entry for entry in _entries.values() if entry.names(scheme)]
    if fitting:
        return max(fitting, key=lambda entry: len(entry.fixed))  # the name that says most
    rule = "must be registered to have a spec: decorate its class with @register(name)"
    raise ParameterError("scheme", rule, scheme)


def load_plugins(modules: Iterable[str]) -> None:
    """Import modules that register schemes or codes.

    Raises
    ------
    ParameterError
        If a module cannot be imported, or what it registers breaks a contract.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception as error:  # a stranger's module may raise anything
            raise ParameterError(
                "plugin", f"must be importable ({_line(error)})", module
            ) from error


def _load_entry_points() -> None:
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        if point.value not in _loaded:
            _loaded.add(point.value)
            try:
                point.load()
            except Exception as error:
                rule = f"must be importable ({_line(error)})"
                remedy = "repair the package that brings it, or uninstall it"
                raise ParameterError(
                    f"entry point {point.name}", rule, point.value, remedy
                ) from error


def _broken(scheme: Scheme) -> str | None:
    """Say which of the numbers that everything else builds on cannot be, if any."""
    loads, fractions = np.asarray(scheme.worker_loads), np.asarray(scheme.chunk_fractions)
    if loads.shape != (scheme.n,) or not (np.isfinite(loads) & (loads > 0)).all():
        return f"worker_loads must be {scheme.n} numbers > 0"
    if fractions.ndim != 1 or not (fractions >= 0).all() or abs(fractions.sum() - 1) > 1e-9:
        return "chunk_fractions must be numbers >= 0 that sum to 1"
    delay: object = scheme.delay  # a stranger's class may not keep to the types
    exact: object = scheme.exact
    if not isinstance(delay, int) or delay < 0:
        return "delay must be an integer >= 0"
    if not isinstance(exact, bool):
        return "exact must be True or False"
    return None if hasattr(scheme.promise, "admits") else "promise must be a StragglerModel"


def _fields(kind: type) -> tuple[dataclasses.Field[object], ...]:
    return dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _check(name: str, kind: type[Scheme], fixed: Mapping[str, object]) -> None:
    where = f"{kind.__module__}.{kind.__qualname__}"
    known = _entries.get(name)
    if known is not None and (known.kind.__module__, known.kind.__qualname__) != (
        kind.__module__,
        kind.__qualname__,
    ):
        rule = f"is taken by {known.kind.__module__}.{known.kind.__qualname__}: choose another"
        raise ParameterError("name", rule, name)
    parameters = vars(kind).get("__dataclass_params__")
    if parameters is None or not parameters.frozen:
        rule = f"must name a frozen dataclass ({name}): put @register above @dataclass(frozen=True)"
        raise ParameterError("scheme", rule, where)
    if inspect.isabstract(kind):
        lacks = ", ".join(sorted(kind.__abstractmethods__))
        raise ParameterError(
            "scheme", f"must define all that Scheme promises; lacks {lacks}", where
        )
    fields = [field.name for field in _fields(kind)]
    if missing := [key for key in ("n", *fixed) if key not in fields]:
        rule = f"must have the fields {', '.join(missing)} ({name})"
        raise ParameterError("scheme", rule, where)
