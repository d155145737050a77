"""The registry of schemes, and the reader of specs such as ``gc-rep:s=3``.

Each scheme is registered by the module that defines it, and seqgc has no other list of schemes. The
parameters in a spec are the fields of the scheme's dataclass, except for ``n`` and the fields that
the name fixes. Their values are integers, real numbers or words. A parameter with a default may be
omitted. A class can have several names: ``gc``, ``gc-rep`` and ``gc-binary`` stand for different
values of the field ``family`` of ``GC``. A scheme with a registered kind of code need not be
registered: ``GC`` gives it the name ``gc-KIND`` (`Defence.further_names`).

A module outside of seqgc registers schemes in the same way. The schemes of an installed package
are found through an entry point of the group ``seqgc.schemes``. Any other module must be passed to
`load_plugins`, as the option ``--plugin`` does.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Never, TypeVar, cast

import numpy as np

from seqgc.errors import ParameterError, did_you_mean, refusing
from seqgc.schemes._defence import ENTRIES, Defence, SchemeEntry, further_entries
from seqgc.schemes._scheme import Scheme

ENTRY_POINTS: Final = "seqgc.schemes"

_Kind = TypeVar("_Kind", bound=type[Defence])
_loaded: set[str] = set()  # entry points that have been loaded


def register(name: str, **fixed: object) -> Callable[[_Kind], _Kind]:
    """Return a class decorator that registers a frozen dataclass as the scheme ``name``.

    The specs of the scheme begin with its name, which consists of lower-case letters, digits and
    hyphens, for example ``gc-rep``. ``fixed`` are the values of fields that the name implies.
    Raises `ParameterError` if the name is malformed or belongs to another class, if the class is
    not a frozen dataclass derived from `Scheme` or `Defence`, or if it lacks a method or field.

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
        ENTRIES[name] = SchemeEntry(name=name, kind=kind, fixed=fixed)
        return kind

    return add


def _check(name: str, kind: type[Defence], fixed: Mapping[str, object]) -> None:
    where = _path(kind)
    if name in ENTRIES and (holder := _path(ENTRIES[name].kind)) != where:
        raise ParameterError("name", f"is taken by {holder}", name, "choose another name")
    parameters = vars(kind).get("__dataclass_params__")
    if parameters is None or not parameters.frozen:
        remedy = "put @register above @dataclass(frozen=True)"
        raise ParameterError("scheme", f"must be a frozen dataclass ({name})", where, remedy)
    if not issubclass(kind, Defence):
        raise ParameterError("scheme", f"must derive from Scheme or Defence ({name})", where)
    if inspect.isabstract(kind):
        methods = ", ".join(sorted(kind.__abstractmethods__))
        raise ParameterError("scheme", f"must define the abstract methods {methods}", where)
    fields = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if missing := [key for key in ("n", *fixed) if key not in fields]:
        raise ParameterError("scheme", f"must have the fields {', '.join(missing)} ({name})", where)


def _path(kind: type[Defence]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def forget_scheme(name: str) -> None:
    """Remove a registered name, for example in a test or a notebook.

    To remove a name ``gc-KIND`` that belongs to a code, call `seqgc.codes.forget_code`. Raises
    `ParameterError` if the name was not added by `register`.
    """
    if name not in ENTRIES:
        raise ParameterError("name", f"must be one of {', '.join(ENTRIES)}", name)
    del ENTRIES[name]


def registered(name: str | None = None) -> dict[str, SchemeEntry]:
    """Return the registered schemes by name.

    If ``name`` is None or not registered, the plug-ins of installed packages are loaded first.
    Raises `ParameterError` if a plug-in cannot be imported.
    """
    if name is None or name not in ENTRIES | further_entries():
        for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
            if point.value not in _loaded:
                _loaded.add(point.value)
                remedy = "repair or uninstall the package that declares it"
                rule = "must be importable ({})"
                with refusing(f"entry point {point.name}", rule, point.value, remedy):
                    point.load()
    return ENTRIES | further_entries()


def load_plugins(modules: Iterable[str]) -> None:
    """Import modules that register schemes or codes.

    Raises `ParameterError` if a module cannot be imported, or if one of its schemes or codes breaks
    its contract.
    """
    for module in modules:
        with refusing("plugin", "must be importable ({})", module):
            importlib.import_module(module)


def parse_scheme(spec: str, *, n: int) -> Defence:
    """Return the scheme that a spec such as ``m-sgc:B=1,W=2,lam=27`` describes.

    This is the inverse of `Defence.spec`. Raises `ParameterError` if the name or a parameter is
    unknown (the message suggests a similar name), if a parameter is missing, repeated, of the wrong
    type or out of range, or if a property of the scheme is not valid.

    Examples
    --------
    >>> parse_scheme("m-sgc:B=1,W=2,lam=27", n=256)
    MSGC(n=256, B=1, W=2, lam=27, family='cyclic', late='drop')
    >>> parse_scheme("gc-rep:s=3,allow_error=0.25", n=16)
    GC(n=16, s=3, family='rep', allow_error=0.25)
    """
    entry, values = _read(spec)
    scheme = cast("Callable[..., Defence]", entry.kind)(n=n, **entry.fixed, **values)
    if problem := _broken_rule(scheme):
        raise ParameterError("scheme", f"breaks its contract: {problem}", _path(entry.kind))
    return scheme


@dataclasses.dataclass(frozen=True, slots=True)
class PendingScheme:
    """A scheme whose number of workers is not known yet.

    Everything about a scheme except its spec depends on the number of workers. `on` makes the
    scheme when the number is known. All other attributes of a scheme raise `ParameterError`.

    Raises
    ------
    ParameterError
        If the spec has an unknown name or wrong parameters.

    Examples
    --------
    >>> pending = PendingScheme("gc-rep:s=3")
    >>> pending.on(16)
    GC(n=16, s=3, family='rep', allow_error=0.0)
    >>> pending.delay
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `n` must be known for the delay of gc-rep:s=3; got None ...
    """

    spec: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "spec", self.spec.strip())
        _read(self.spec)

    def on(self, n: int) -> Defence:
        """Return the scheme for ``n`` workers. Raises like `parse_scheme`."""
        return parse_scheme(self.spec, n=n)

    def __repr__(self) -> str:
        return repr(self.spec)

    def __getattr__(self, name: str) -> Never:
        if name.startswith("__"):
            raise AttributeError(name)
        rule = f"must be known for the {name} of {self.spec}"
        raise ParameterError("n", rule, None, "take Setting.on(n), or parse_scheme(spec, n=n)")


def _read(spec: str) -> tuple[SchemeEntry, dict[str, int | float | str]]:
    """Return the entry that a spec names, and the values of its parameters."""
    name, _, rest = spec.strip().partition(":")
    entries = registered(name)
    if name not in entries:
        remedy = did_you_mean(name, entries) or "name the module of your own scheme with --plugin"
        raise ParameterError("scheme", f"must be one of {', '.join(entries)}", name, remedy)
    entry = entries[name]
    values: dict[str, int | float | str] = {}
    for pair in filter(None, rest.split(",")):
        key, value = _parameter(entry, pair)
        if key in values:
            raise ParameterError("scheme", f"{name} takes each parameter once", pair)
        values[key] = value
    if missing := [key for key in entry.required if key not in values]:
        example = f"{name}:" + ",".join(f"{key}=…" for key in entry.required)
        raise ParameterError("scheme", f"needs {', '.join(missing)}, as in {example}", spec)
    return entry, values


def _parameter(entry: SchemeEntry, pair: str) -> tuple[str, int | float | str]:
    match = re.fullmatch(r"\s*(\w+)\s*=\s*(\S+)\s*", pair)
    if match is None:
        rule = "parameters must be key=value, separated by commas"
        raise ParameterError("scheme", f"{entry.name}: {rule}", pair)
    key, word = match.groups()
    if key not in entry.parameters:
        takes = ", ".join(entry.parameters) or "no parameters"
        hint = did_you_mean(key, entry.parameters)
        raise ParameterError("scheme", f"{entry.name} takes {takes}", pair, hint)
    kind = entry.parameters[key]
    if kind is int and not re.fullmatch(r"-?\d{1,18}", word, re.ASCII):
        raise ParameterError("scheme", f"{entry.name}: {key} must be an integer", pair)
    try:
        return key, word if kind is str else kind(word)
    except ValueError:
        raise ParameterError("scheme", f"{entry.name}: {key} must be a number", pair) from None


def _broken_rule(scheme: Defence) -> str:
    """Return the first rule that a property of the scheme breaks, or "" if it breaks no rule."""
    loads, fractions = np.asarray(scheme.worker_loads), np.asarray(scheme.chunk_fractions)
    are_loads = loads.shape == (scheme.n,) and (np.isfinite(loads) & (loads >= 0)).all()
    if not are_loads or not loads.any():
        return f"worker_loads must be {scheme.n} numbers >= 0, not all of them 0"
    if fractions.ndim != 1 or not (fractions >= 0).all() or abs(fractions.sum() - 1) > 1e-9:
        return "chunk_fractions must be numbers >= 0 that sum to 1"
    delay: object = scheme.delay  # a user's class may not follow the type hints
    exact: object = scheme.exact
    if not isinstance(delay, int) or delay < 0:
        return "delay must be an integer >= 0"
    if not isinstance(exact, bool):
        return "exact must be True or False"
    if isinstance(scheme, Scheme) and not hasattr(scheme.promise, "admits"):
        return "promise must be a StragglerModel"
    return ""
