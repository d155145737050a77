"""Options of verbs: of a configuration's fields, and of groups that several verbs share.

Plain words beside a type are an option's help, after its flags, if it has some of its own.
`configured` makes an option of each field of `RunConfig` that has such words: flag, type, help and
default are the field's. A verb that has no configuration takes its options in groups instead,
dataclasses whose fields are options (`with_plugins`). No signature grows with the options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from seqgc._manner import FORMAT, QUIET
from seqgc.cli._messages import check_format
from seqgc.cli.config import RunConfig, Values, import_plugins
from seqgc.errors import ParameterError, ProfileError
from seqgc.profiles import read_profile
from seqgc.search import Conformity, ProfileReading, Reading, Rehearsal

ProfileFile = Annotated[Path, typer.Argument(help="Delay profile, .npz or .csv.")]
AsJson = Annotated[bool, "--json", "Print one JSON object."]
NumWorkers = Annotated[int, "-n", "--workers", "Number of workers."]
Region = Annotated[str | None, "AWS region; by default AWS_REGION, or the AWS profile's."]


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalOptions:
    """On what a replay, or all those of a search, run."""

    jobs: Annotated[int | None, "Gradients to compute; as many as the profile holds."] = None
    alpha: Annotated[float | None, "Seconds per unit of load; the profile's own."] = None
    base_load: Annotated[float | None, "Load the profile was recorded at; its own."] = None
    batch: Annotated[
        int | None, "Points in a model's batch, cut to whole ones; else loads are nominal."
    ] = None
    repeat: Annotated[
        bool | None,
        "--repeat/--no-repeat",
        "Begin the profile again when it ends; tune does, so that every bundle sees every round.",
    ] = None
    conformity: Annotated[str, "What conforms: scheme, or bursty alone."] = "scheme"
    models: Annotated[int | None, "Models that take turns; a delay of T needs T + 1 bundles."] = (
        None
    )
    rtt: Annotated[
        float | None, "Seconds of a message to a running worker and back; the profile's, or 0.02."
    ] = None
    after: Annotated[float, "Share of an invocation's time that follows its work (deal)."] = 0.0
    resident: Annotated[bool, "--resident", "Functions stay for all rounds (deal)."] = False
    reading: Annotated[
        str, "Meaning of the recorded seconds: latency (of a request) or speed (of the worker)."
    ] = "latency"

    def of(self, path: Path) -> Rehearsal:
        """Return what the profile and the options come to, or raise `ParameterError`."""
        profile = read_profile(path)
        if self.base_load is not None:
            profile = replace(profile, meta=replace(profile.meta, base_load=self.base_load))
        with naming(path):
            return Rehearsal(
                profile=profile,
                num_jobs=self.jobs,
                alpha=self.alpha,
                batch=self.batch,
                repeat=self.repeat,
                conformity=cast("Conformity", self.conformity),
                models=self.models,
                reading=Reading(rtt_s=self.rtt, after=self.after, resident=self.resident),
                recorded=cast("ProfileReading", self.reading),
            )


@contextmanager
def naming(*files: Path) -> Iterator[None]:
    """Have a `ProfileError` say of which files' profiles it is."""
    try:
        yield
    except ProfileError as error:
        raise ProfileError(f"{', '.join(map(str, files))}: {error}") from None


_Number = TypeVar("_Number", int, float)


def words(text: str) -> tuple[str, ...]:
    """Return what stands between commas, without the spaces around it."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def numbers(argument: str, text: str, kind: type[_Number]) -> tuple[_Number, ...]:
    """Return the numbers between commas, ``int`` or ``float``, or raise `ParameterError`."""
    found = []
    for word in words(text):
        try:
            found.append(kind(word))
        except ValueError:
            rule = f"must be {'integers' if kind is int else 'numbers'}, separated by commas"
            raise ParameterError(argument, rule, word) from None
    return tuple(found)


# ---- from fields and groups to what typer reads --------------------------------------------------

Verb = Callable[..., Any]
_OBEYED: Final = ("log_format_", "quiet_")  # before a verb is called
_PLUGINS: Final = "plugins"

_ROUNDS, _WORKERS, _PARTS = "Schemes and rounds", "Workers", "Batches in parts (ssp, asp)"
# Of a verb's help, by field or by table; of all other fields it is training.
_PANELS = {
    **dict.fromkeys(("scheme", "mu", "wait_out", "timeout_s", "max_attempts", "audit"), _ROUNDS),
    **dict.fromkeys(("jobs_per_round", "stale", "probe", "retune", "alpha", "plugins"), _ROUNDS),
    **dict.fromkeys(("apply", "refresh", "aware"), _PARTS),
    **dict.fromkeys(("workers", "backend", "dask_scheduler", "max_usd"), _WORKERS),
    "models": "Each model",
    "function": "Functions (backends lambda, lambda-local)",
    "delays": "Delays to inject",
}
# Defaults that the help of every verb shows, by field, in place of the field's own.
_SHOWN: Final[Values] = {"delays.source": None}  # delays are injected only on request


def configured(
    *only: str, defaults: Mapping[str, object] = MappingProxyType({})
) -> Callable[[Verb], Verb]:
    """Return a decorator that gives a verb an option for each field that has words beside it.

    The verb is given the options of the command line as ``flags``, by the fields' paths
    (``"function.store"``). There are options for all fields, or for those that ``only`` names, and
    always one for ``plugins``. The help shows the verb's ``defaults``, by path, in place of the
    configuration's.
    """
    shown = {**_SHOWN, **defaults}
    chosen = {
        path: field
        for path, field in _described(RunConfig).items()
        if not only or path in (*only, "plugins")
    }

    def decorate(verb: Verb) -> Verb:
        names = {path.replace(".", "_") + "_": path for path in chosen}

        @wraps(verb)
        def call(**arguments: object) -> object:
            _forget_obeyed(arguments)
            values = {path: arguments.pop(name) for name, path in names.items()}
            flags = {path: value for path, value in values.items() if value not in (None, [])}
            return verb(flags=flags, **arguments)

        options = [
            _option(name, path, field := chosen[path], shown.get(path, _default(field)))
            for name, path in names.items()
        ]
        return _with_parameters(call, verb, options)

    return decorate


def with_plugins(verb: Verb) -> Verb:
    """Return a verb that takes ``--plugin``, and the fields of its groups as options.

    A group is a parameter whose type is a dataclass. Plug-ins are imported before anything else; a
    verb with a parameter ``plugins`` is told which.
    """
    wanted = get_type_hints(verb)
    groups: dict[str, Any] = {name: kind for name, kind in wanted.items() if is_dataclass(kind)}

    @wraps(verb)
    def call(*, plugins_: list[str] | None = None, **arguments: Any) -> object:
        _forget_obeyed(arguments)
        if plugins_:
            import_plugins(plugins_)
        if _PLUGINS in wanted:
            arguments[_PLUGINS] = plugins_ or []
        for name, kind in groups.items():
            values = {each.name: arguments.pop(each.name) for each in fields(kind)}
            listed = {each.name for each in fields(kind) if isinstance(each.default, tuple)}
            lists = {each: words(",".join(values[each] or ())) for each in listed}
            arguments[name] = kind(**values | lists)
        return verb(**arguments)

    option = _option("plugins_", "plugins", RunConfig.model_fields["plugins"], None)
    return _with_parameters(call, verb, [option])


def apply(flags: Values, values: Values) -> None:
    """Let ``flags``, by path, override the ``values`` of a file; every model is meant."""
    for path, value in flags.items():
        table, _, key = path.rpartition(".")
        if path == "plugins":
            both = (values.get(path), value)
            values[path] = [n for names in both if isinstance(names, list | tuple) for n in names]
        elif not table:
            values[key] = value
        else:
            entries = values.setdefault(table, {})
            for entry in entries if isinstance(entries, list) else [entries]:
                if isinstance(entry, dict):  # or what follows refuses it
                    entry[key] = value


def _described(model: type[BaseModel], table: str = "") -> dict[str, FieldInfo]:
    """Return the fields that are described, by path, those of the tables inside included."""
    own = {f"{table}{key}": field for key, field in model.model_fields.items() if _words(field)}
    inside = model.tables if issubclass(model, RunConfig) else {}
    for key, other in inside.items():
        own |= _described(other, f"{key}.")
    return own


def _words(field: FieldInfo) -> list[str]:
    return [words for words in field.metadata if isinstance(words, str)]


def _default(field: FieldInfo) -> object:
    return field.get_default(call_default_factory=True)


def _option(name: str, path: str, field: FieldInfo, default: object) -> inspect.Parameter:
    kind, (*flags, about) = _kind(field.annotation), _words(field)
    if not flags:
        plain = path.rpartition(".")[2].replace("_", "-")
        flags = [f"--{plain}/--no-{plain}" if kind is bool else f"--{plain}"]
    shown = "none" if default in (None, ()) else str(default).lower()
    panel = _PANELS.get(path) or _PANELS.get(path.partition(".")[0], "Training")
    option = typer.Option(*flags, help=about, show_default=shown, rich_help_panel=panel)
    annotation, by_name = Annotated[kind | None, option], inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, by_name, default=None, annotation=annotation)


def _kind(annotation: Any) -> Any:
    """Return what a flag's word is read as; what it may be is for the configuration to say."""
    if NoneType in get_args(annotation):
        (annotation,) = set(get_args(annotation)) - {NoneType}
    if get_origin(annotation) is Literal:
        return str
    return list[str] if get_origin(annotation) is tuple else annotation


def _forget_obeyed(arguments: dict[str, Any]) -> None:
    for name in _OBEYED:
        arguments.pop(name)


def _spoken() -> list[inspect.Parameter]:
    """Return the options that `speaking` has obeyed before, to be checked and explained."""
    formats = typer.Option(
        FORMAT, help="Of messages on stderr: text or json.", callback=check_format
    )
    about = "Say nothing on stderr but warnings and errors."
    quiet = typer.Option(QUIET, help=about)
    pairs = (Annotated[str, formats], "text"), (Annotated[bool, quiet], False)
    by_name = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(name, by_name, default=default, annotation=annotation)
        for name, (annotation, default) in zip(_OBEYED, pairs, strict=True)
    ]


def _with_parameters(call: Verb, verb: Verb, more: Sequence[inspect.Parameter]) -> Verb:
    """Return ``call`` with the parameters of ``verb``, and ``more`` for its flags."""
    own = (each for each in _expanded(verb) if each.name not in ("flags", _PLUGINS))
    parameters = [*own, *more, *_spoken()]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    del call.__wrapped__  # type: ignore[attr-defined]  # whose signature it no longer has
    return call


def _expanded(callable_: Any) -> Iterator[inspect.Parameter]:
    """Yield what a verb, or the constructor of a group, takes; groups field by field.

    A tuple is words with commas between them on the command line, in one option or in several.
    """
    hints = get_type_hints(callable_, include_extras=True)
    for name, parameter in inspect.signature(callable_).parameters.items():
        kind, default = hints[name], parameter.default
        if is_dataclass(kind):
            yield from _expanded(kind)
            continue
        if get_origin(kind) is Annotated and isinstance(kind.__metadata__[0], str):
            plain, *flags, about = get_args(kind)
            if isinstance(default, tuple):
                plain, default = list[str], list(default)
            kind = Annotated[plain, typer.Option(*flags, help=about)]
        by_name = inspect.Parameter.KEYWORD_ONLY
        yield parameter.replace(annotation=kind, default=default, kind=by_name)
