"""Options of verbs, made from the fields of the configuration and of dataclasses.

The strings in a field's annotation describe an option. The last string is the help, and strings
before it are the flags, if these differ from the field's name. `configured` makes an option of
every field of `RunConfig` that has such strings. A verb without a configuration takes groups of
options instead: dataclasses whose fields are options (`with_plugins`).
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

import numpy as np
import numpy.typing as npt
import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from seqgc._command_line import LOG_FORMAT, QUIET
from seqgc.cli._messages import check_format
from seqgc.cli._show import Screen, TableOutput, print_pairs
from seqgc.config._tables import RunConfig, Values, import_plugins
from seqgc.errors import ParameterError, ProfileError
from seqgc.ports import Table
from seqgc.runs import read_delays
from seqgc.search import Conformity, ProfileReading, Reading, Rehearsal, ReplaySettings

ProfileFile = Annotated[
    Path, typer.Argument(help="Delay profile (.npz or .csv), folder of a run, or lambda-cnn.")
]
AsJson = Annotated[bool, "--json", "Print the result as one JSON object."]
NumWorkers = Annotated[int, "-n", "--workers", "Number of workers."]
Region = Annotated[
    str | None, "AWS region. By default AWS_REGION, or the region of the AWS profile."
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalOptions:
    """Options of a replay, or of every replay of a search."""

    jobs: Annotated[
        int | None,
        "Number of gradients to compute. By default as many as the rounds of the profile allow.",
    ] = None
    alpha: Annotated[
        float | None,
        "Cost of load, in seconds per unit of load. By default read from the profile, or fitted to "
        "a run whose loads differ.",
    ] = None
    base_load: Annotated[
        float | None,
        "Load at which the profile was recorded, as a fraction of a job. By default read from the "
        "profile.",
    ] = None
    batch: Annotated[
        int | None,
        "Number of data points in a batch. Loads are rounded to whole points. By default they are "
        "not rounded.",
    ] = None
    repeat: Annotated[
        bool | None,
        "--repeat/--no-repeat",
        "Start the profile again when it ends. By default only `tune` does this, so that it can "
        "try bundles of every size on all rounds.",
    ] = None
    conformity: Annotated[
        str, "Straggler model of --wait-out conform: scheme (the scheme's model) or bursty."
    ] = "scheme"
    models: Annotated[
        int | None,
        "Number of models, which take turns. A scheme with delay T needs T + 1 bundles of models.",
    ] = None
    rtt: Annotated[
        float | None,
        "Time of a message to a running worker and back, in seconds. By default read from the "
        "profile, or 0.02.",
    ] = None
    after: Annotated[
        float,
        "For deal: fraction of an invocation's time that comes after its computation, 0 to 1.",
    ] = 0.0
    resident: Annotated[
        bool, "--resident", "For deal: functions keep running from round to round."
    ] = False
    reading: Annotated[
        str, "Meaning of the recorded seconds: latency of a request, or speed of a worker."
    ] = "latency"

    def of(self, path: Path) -> Rehearsal:
        """Read the profile and return the settings of its replay; `ParameterError` if invalid."""
        profile = read_delays(path, alpha=self.alpha)
        if self.base_load is not None:
            profile = replace(profile, meta=replace(profile.meta, base_load=self.base_load))
        with naming(path):
            return Rehearsal(profile=profile, **self.settings())

    def settings(self) -> ReplaySettings:
        """Return the settings of the replay, without the profile."""
        return {
            "num_jobs": self.jobs,
            "alpha": self.alpha,
            "batch": self.batch,
            "repeat": self.repeat,
            "conformity": cast("Conformity", self.conformity),
            "models": self.models,
            "reading": Reading(rtt_s=self.rtt, after=self.after, resident=self.resident),
            "recorded": cast("ProfileReading", self.reading),
        }


ALPHA_UNKNOWN: Final = (
    "All tasks of the profile have the same load, so it does not show what load costs (alpha): the "
    "truth is between the two cases. Give --alpha, or record several loads (seqgc profile --loads "
    "0,0.5,1)."
)
"""What follows the results of both `Rehearsal.alpha_cases`."""


def alpha_title(case: Rehearsal) -> str:
    """Return what one of `Rehearsal.alpha_cases` assumes about the cost of load."""
    if not case.alpha:
        return "--alpha 0: a task takes as long at every load"
    options = f"--alpha {case.alpha:.4g} --base-load {case.profile.meta.base_load:.4g}"
    return f"{options} (median / base load): a task takes time in proportion to its load"


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """The result of one of `Rehearsal.alpha_cases`: what `TableOutput.show` takes."""

    case: Rehearsal
    table: Table
    facts: Mapping[str, object]
    text: Callable[[], None] | Mapping[str, str]


def show_cases(output: TableOutput, results: Sequence[CaseResult]) -> None:
    """Print the result of a verb; if there are two cases, both, with what each assumes."""
    if len(results) == 1:
        output.show(results[0].table, facts=results[0].facts, text=results[0].text)
        return

    def text() -> None:
        for each in results:
            Screen().print(alpha_title(each.case), soft_wrap=True)
            each.text() if callable(each.text) else print_pairs(dict(each.text))
        Screen().print(ALPHA_UNKNOWN)

    columns = {"alpha_s_per_load": np.zeros(0)} | {name: np.zeros(0) for name in results[0].table}
    for name in columns:
        parts = [_case_column(each, name) for each in results]
        columns[name] = np.concatenate(parts)
    reports = [{**each.facts, "alpha": each.case.alpha} for each in results]
    output.show(columns, facts={"alpha_known": False, "cases": reports}, text=text)


def _case_column(result: CaseResult, name: str) -> npt.NDArray[Any]:
    if name != "alpha_s_per_load":
        return np.asarray(result.table[name])
    return np.full(len(next(iter(result.table.values()))), result.case.alpha)


@contextmanager
def naming(*files: Path) -> Iterator[None]:
    """Add the names of the files to the message of a `ProfileError` in this block.

    A message that begins with the name of the only file stays as it is.
    """
    try:
        yield
    except ProfileError as error:
        if len(files) == 1 and str(error).startswith(f"{files[0]}: "):
            raise
        raise ProfileError(f"{', '.join(map(str, files))}: {error}") from None


_Number = TypeVar("_Number", int, float)


def words(text: str) -> tuple[str, ...]:
    """Split a text at commas; return the words without surrounding spaces."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def numbers(argument: str, text: str, kind: type[_Number]) -> tuple[_Number, ...]:
    """Split a text at commas; return the numbers, of the type ``kind``, or raise `ParameterError`.

    ``argument`` is the option's name in the error.
    """
    values = []
    for word in words(text):
        try:
            values.append(kind(word))
        except ValueError:
            rule = f"must be {'integers' if kind is int else 'numbers'}, separated by commas"
            raise ParameterError(argument, rule, word) from None
    return tuple(values)


# ---- from fields and groups to typer's options ---------------------------------------------------

VerbFunction = Callable[..., Any]
_HANDLED: Final = ("log_format_", "quiet_")  # options that take effect before a verb is called
_PLUGINS: Final = "plugins"

_ROUNDS, _WORKERS, _PARTS = "Schemes and rounds", "Workers", "Batches in parts (ssp, asp, flexrr)"
# The section of the help for a field or table. Other fields are in the section "Training".
_SECTIONS = {
    **dict.fromkeys(("scheme", "mu", "wait_out", "timeout_s", "max_attempts", "audit"), _ROUNDS),
    **dict.fromkeys(("jobs_per_round", "stale", "probe", "retune", "alpha", "plugins"), _ROUNDS),
    "predicted_round_s": _ROUNDS,
    **dict.fromkeys(("apply", "refresh", "aware"), _PARTS),
    **dict.fromkeys(("workers", "backend", "dask_scheduler", "max_usd"), _WORKERS),
    "models": "Each model",
    "function": "Functions (backends lambda, lambda-local)",
    "delays": "Delays to inject",
}
# Defaults that the help shows instead of the field's default.
_SHOWN: Final[Values] = {"delays.source": None}  # delays are injected only on request


def configured(
    *only: str, defaults: Mapping[str, object] = MappingProxyType({})
) -> Callable[[VerbFunction], VerbFunction]:
    """Return a decorator that adds options for the fields of `RunConfig` to a verb.

    The verb receives the given values as ``flags``, a dictionary whose keys are paths of fields
    (``"function.store"``). If ``only`` lists paths, only these fields and ``plugins`` become
    options. ``defaults`` maps paths to defaults that the help shows.
    """
    shown = {**_SHOWN, **defaults}
    chosen = {
        path: field
        for path, field in _described(RunConfig).items()
        if not only or path in (*only, "plugins")
    }

    def decorate(verb: VerbFunction) -> VerbFunction:
        names = {path.replace(".", "_") + "_": path for path in chosen}
        collect = _collector(verb)

        @wraps(verb)
        def call(**arguments: object) -> object:
            _drop_handled(arguments)
            values = {path: arguments.pop(name) for name, path in names.items()}
            flags = {path: value for path, value in values.items() if value not in (None, [])}
            return verb(flags=flags, **collect(arguments))

        options = [
            _option(name, path, field := chosen[path], shown.get(path, _default(field)))
            for name, path in names.items()
        ]
        return _with_parameters(call, verb, options)

    return decorate


def with_plugins(verb: VerbFunction) -> VerbFunction:
    """Return a verb with the option ``--plugin``, and with one option for each field of its groups.

    A group is a parameter whose type is a dataclass. The plug-ins are imported before the verb is
    called. If the verb has a parameter ``plugins``, it receives their names.
    """
    hints, collect = get_type_hints(verb), _collector(verb)

    @wraps(verb)
    def call(*, plugins_: list[str] | None = None, **arguments: Any) -> object:
        _drop_handled(arguments)
        if plugins_:
            import_plugins(plugins_)
        if _PLUGINS in hints:
            arguments[_PLUGINS] = plugins_ or []
        return verb(**collect(arguments))

    option = _option("plugins_", "plugins", RunConfig.model_fields["plugins"], None)
    return _with_parameters(call, verb, [option])


def _collector(verb: VerbFunction) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return a function that collects the arguments of a verb into its groups of options."""
    hints = get_type_hints(verb)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}

    def collect(arguments: dict[str, Any]) -> dict[str, Any]:
        for name, kind in groups.items():
            values = {each.name: arguments.pop(each.name) for each in fields(kind)}
            listed = {each.name for each in fields(kind) if isinstance(each.default, tuple)}
            lists = {each: words(",".join(values[each] or ())) for each in listed}
            arguments[name] = kind(**values | lists)
        return arguments

    return collect


def apply(flags: Values, values: Values) -> None:
    """Put the options in ``flags`` into the ``values`` of a file, replacing values.

    ``flags`` maps paths to values; a path in ``models`` changes every model. Plug-ins are added.
    """
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
                if isinstance(entry, dict):  # a later check rejects everything else
                    entry[key] = value


def _described(model: type[BaseModel], table: str = "") -> dict[str, FieldInfo]:
    """Return the fields that describe an option, by path, including fields of inner tables."""
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
    section = _SECTIONS.get(path) or _SECTIONS.get(path.partition(".")[0], "Training")
    option = typer.Option(*flags, help=about, show_default=shown, rich_help_panel=section)
    annotation, by_name = Annotated[kind | None, option], inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, by_name, default=None, annotation=annotation)


def _kind(annotation: Any) -> Any:
    """Return the type to which typer converts the text. The configuration checks the value."""
    if NoneType in get_args(annotation):
        (annotation,) = set(get_args(annotation)) - {NoneType}
    if get_origin(annotation) is Literal:
        return str
    return list[str] if get_origin(annotation) is tuple else annotation


def _drop_handled(arguments: dict[str, Any]) -> None:
    for name in _HANDLED:
        arguments.pop(name)


def _message_options() -> list[inspect.Parameter]:
    """Return ``--log-format`` and ``--quiet``, which every verb has.

    typer shows and checks these options. `speaking` reads their values from the command line.
    """
    formats = typer.Option(
        LOG_FORMAT, help="Format of messages on stderr: text or json.", callback=check_format
    )
    about = "Write only warnings and errors to stderr."
    quiet = typer.Option(QUIET, help=about)
    pairs = (Annotated[str, formats], "text"), (Annotated[bool, quiet], False)
    by_name = inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(name, by_name, default=default, annotation=annotation)
        for name, (annotation, default) in zip(_HANDLED, pairs, strict=True)
    ]


def _with_parameters(
    call: VerbFunction, verb: VerbFunction, more: Sequence[inspect.Parameter]
) -> VerbFunction:
    """Give ``call`` the signature of ``verb`` with the parameters ``more``, and return it."""
    own = (each for each in _expanded(verb) if each.name not in ("flags", _PLUGINS))
    parameters = [*own, *more, *_message_options()]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    del call.__wrapped__  # type: ignore[attr-defined]  # else `inspect` would use its signature
    return call


def _expanded(callable_: Any) -> Iterator[inspect.Parameter]:
    """Yield the parameters of a verb; replace each group of options by its fields.

    If a field's default is a tuple, users may separate words by commas or repeat the option.
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
