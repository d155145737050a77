"""The list of verbs, and the exit status and message for each kind of error."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from functools import cache, partial
from traceback import walk_tb
from types import FrameType
from typing import Annotated, Any, Final

import typer
from pydantic import ValidationError
from typer.main import get_command

from seqgc import __version__
from seqgc._fault import fault_of
from seqgc.cli import (
    _compare,
    _cost,
    _data,
    _demo,
    _deploy,
    _explain,
    _pipeline,
    _profile,
    _report,
    _scheme,
    _sweep,
    _train,
    _tune,
    _workers,
)
from seqgc.cli._help import Group, Verb
from seqgc.cli._messages import check_environment, in_json, say, speaking
from seqgc.cli._options import with_plugins
from seqgc.cli._show import discard_output
from seqgc.errors import (
    BudgetError,
    DamageError,
    ParameterError,
    ProfileError,
    SeqgcError,
    Stopped,
    one_line,
)

# typer contains a copy of click. This is the only public way to the error class of that copy.
_UsageError: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)

_TRACEBACK = "--traceback"
_TRAINING = "torch", "safetensors", "threadpoolctl"  # packages of the extra `train`
_MAX_REFUSAL = 300 - len("seqgc: ")  # characters
_MAX_FILE_NAME = 200  # characters


class Status(IntEnum):
    """The exit status of a verb, which scripts, systemd and batch systems read.

    A run that reaches its budget has not failed: `seqgc resume RUN --max-usd MORE` continues it.
    This case has a separate status, so that a program that restarts failed runs can ignore it. If
    a signal ends a verb, the status is 128 plus the number of the signal.
    """

    DONE = 0
    FAILED = 1
    WRONG = 2
    BUDGET = 3
    INTERRUPTED = 130  # 128 + SIGINT


MEANINGS: Final = {
    "0": "done",
    "1": "failed: workers, a model, a callback, files, or printing the result",
    "2": "a parameter or file is wrong, or a run is damaged; nothing was started",
    "3": "budget reached; `seqgc resume RUN --max-usd MORE` continues",
    "130, 143, 129": "SIGINT, SIGTERM or SIGHUP; `seqgc resume RUN` continues",
}
"""The meaning of each exit status, for ``seqgc --help`` and a table in ``docs/operations.md``."""

_EPILOG: Final = "\n\n".join(
    ["Exit status:", *(f"{status}: {meaning}" for status, meaning in MEANINGS.items())]
)

app = typer.Typer(
    name="seqgc",
    cls=Group,
    help="Train many networks on unreliable workers and wait for no straggler.",
    epilog=_EPILOG,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"seqgc {__version__}\n")
        raise typer.Exit


@app.callback()
def _all_verbs(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
    traceback: Annotated[
        bool,
        typer.Option(_TRACEBACK, help="Show the traceback of an error. May also follow a verb."),
    ] = False,
) -> None:
    """Declare the options that `_print_version` and `main` handle."""


# The help is not taken from docstrings, because `python -OO` removes them.
_HELP = {
    "scheme": "Show the load of a scheme and the stragglers that it tolerates.",
    "replay": "Replay a scheme, or another defence, on recorded delays.",
    "tune": "Find the fastest scheme and its settings on recorded delays.",
    "sweep": "Replay many schemes on many profiles; show means.",
    "compare": "Compare time and cost of all defences on recorded delays.",
    "train": "Train several models at once on unreliable workers. Exact schemes give exact "
    "gradients.",
    "resume": "Continue a run from its last checkpoint, to the same weights.",
    "workers": "Change the number of local processes that work for a run, while it continues.",
    "demo": "Train models on handwritten digits: uncoded, coded and dealt. Some workers straggle.",
    "explain": "Explain where the time of a run or trace went.",
    "report": "Draw runs, or a delay profile, on one self-contained HTML page.",
    "cost": "Estimate the cost of a plan, or of a run, on AWS Lambda.",
    "deploy": "Build the worker functions and deploy them on AWS Lambda.",
    "destroy": "Delete the worker functions and everything deployed with them.",
    "doctor": "Check everything that a run on AWS Lambda needs. The exit status is 1 if a check "
    "fails.",
}


def _verb(name: str, verb: Callable[..., object], *, epilog: str | None = None) -> None:
    app.command(name, cls=Verb, help=_HELP[name], epilog=epilog)(verb)


_verb("scheme", with_plugins(_scheme.scheme))
_verb("replay", with_plugins(_scheme.replay))
_verb("tune", with_plugins(_tune.tune))
_verb("sweep", with_plugins(_sweep.sweep))
_verb("compare", with_plugins(_compare.compare))
app.add_typer(_profile.app, name="profile")
_verb("train", _train.train, epilog=_EPILOG)
_verb("resume", _train.resume, epilog=_EPILOG)
_verb("workers", with_plugins(_workers.workers))
_verb("demo", _demo.demo)
_verb("explain", with_plugins(_explain.explain))
_verb("report", with_plugins(_report.report))
app.add_typer(_pipeline.app, name="pipeline")
_verb("cost", with_plugins(_cost.cost))
app.add_typer(_data.app, name="data")
_verb("deploy", with_plugins(_deploy.deploy))
_verb("destroy", with_plugins(_deploy.destroy))
_verb("doctor", with_plugins(_deploy.doctor))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status (`Status`).

    Errors are reported in one line on stderr. For a wrong parameter, the line names the argument,
    the rule and the value.
    """
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    fail = partial(_fail, trace=_TRACEBACK in arguments)
    with speaking(arguments), _stopped_by_signals():
        try:
            return _run([word for word in arguments if word != _TRACEBACK] or ["--help"], fail)
        except Stopped as stop:  # a signal may also arrive while `_run` reports an error
            message = "interrupted" if stop.status == Status.INTERRUPTED else str(stop)
            return fail(stop, message, stop.status)


def _run(arguments: list[str], fail: Callable[[BaseException | None, str, int], int]) -> int:
    try:
        check_environment(arguments)
        status = _call(arguments)
        sys.stdout.flush()
    except (ParameterError, ProfileError, DamageError) as error:
        return fail(error, str(error), Status.WRONG)
    except BudgetError as error:
        return fail(error, str(error), Status.BUDGET)
    except SeqgcError as error:
        return fail(error, str(error), Status.FAILED)
    except BrokenPipeError as error:  # as in `seqgc ... | head`, which needs no message
        discard_output()
        return fail(error, "", Status.FAILED)
    except OSError as error:
        where = one_line(error.filename or "standard output, or a file", limit=_MAX_FILE_NAME)
        return fail(error, f"{where}: {error.strerror or error}", Status.FAILED)
    except MemoryError as error:
        return fail(error, f"not enough memory: {error}", Status.FAILED)
    except _UsageError as error:
        return fail(error, _misused(error), Status.WRONG)
    if status == Status.INTERRUPTED:  # typer converts a KeyboardInterrupt to this status
        return fail(None, "interrupted", Status.INTERRUPTED)
    return status if isinstance(status, int) else Status.DONE


def _call(arguments: list[str]) -> object:
    """Call the verb and return its exit status.

    Raises `SeqgcError` if user code tries to end the program, even with status 0.
    """
    try:
        return command()(args=arguments, prog_name="seqgc", standalone_mode=False)
    except BaseException as error:
        if (stop := _stop_behind(error)) is not None:
            for note in getattr(error, "__notes__", []) if stop is not error else []:
                stop.add_note(note)
            raise stop from None
        if isinstance(error, ImportError) and (package := _training_package(error)):
            rule = f"needs {package}, which cannot be imported ({one_line(error, limit=100)})"
            remedy = "pip install 'seqgc[train]'"
            raise ParameterError("verb", rule, arguments[0], remedy) from error
        if isinstance(error, Exception):
            raise
        if isinstance(error, SystemExit) and _is_of_typer(error):
            return error.code
        raise SeqgcError(f"code of the user tried to end the program: {fault_of(error)}") from None


def _stop_behind(error: BaseException | None) -> Stopped | None:
    """Return the error if it is a `Stopped`, or the `Stopped` that preceded it, or None.

    While a `Stopped` unwinds the stack, clean-up code may raise another error.
    """
    while error is not None and not isinstance(error, Stopped):
        error = error.__context__
    return error


def _is_of_typer(end: SystemExit) -> bool:
    """Return True if typer ends the program, after installing completion or on a broken pipe."""
    *_, (frame, _) = walk_tb(end.__traceback__)
    return str(frame.f_globals.get("__name__")).partition(".")[0] == "typer"


def _training_package(error: ImportError) -> str:
    """Return the package if the import of a package for training failed, else an empty string."""
    package = (error.name or "").partition(".")[0]
    return package if package in _TRAINING else ""


def _misused(error: Exception) -> str:
    """Return typer's message about a wrong command line; add the value if the message lacks it."""
    message: str = getattr(error, "format_message", error.__str__)()
    if isinstance(cause := error.__cause__, ValidationError):
        message = f"{message.removesuffix('.')}; got {cause.errors()[0]['input']!r}"
    return message


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Raise `Stopped` in this block on SIGINT, SIGTERM or SIGHUP; a second signal ends the process.

    A second SIGHUP is ignored, because a shell and the system both send one when a terminal is
    closed. A signal that the process already ignores (under `nohup`) is still ignored.
    """
    previous: dict[signal.Signals, Any] = {}

    def stop(number: int, _: FrameType | None) -> None:
        for each in previous:
            signal.signal(each, signal.SIG_IGN if each == signal.SIGHUP else signal.SIG_DFL)
        raise Stopped(128 + number, f"ended by {signal.Signals(number).name}")

    if threading.current_thread() is threading.main_thread():  # Python's rule for signal handlers
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(each) is not signal.SIG_IGN:
                previous[each] = signal.signal(each, stop)
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


@cache  # building the command takes longer than most verbs
def command() -> Any:
    """Return the complete command line as a click command."""
    return get_command(app)


def _tell(line: str) -> None:
    sys.stderr.write(f"seqgc: {line}\n")
    sys.stderr.flush()


def _fail(error: BaseException | None, message: str, status: int, *, trace: bool) -> int:
    """Report an error and its notes in one line on stderr; return the status.

    With ``trace``, the traceback is written before the line. In JSON it is a field of the message.
    """
    fields: dict[str, object] = {"status": int(status)}
    if trace and error is not None:
        fields["traceback"] = where = "".join(traceback.format_exception(error))
        if not in_json():
            with suppress(OSError, ValueError):
                sys.stderr.write(where)
    notes = getattr(error, "__notes__", [])
    line = one_line("; ".join([message, *notes]), limit=2000)
    if status == Status.WRONG and len(line) > _MAX_REFUSAL:  # the value and remedy are at the end
        line = f"{line[: _MAX_REFUSAL - 121]}…{line[-120:]}"
    if line:
        with suppress(OSError, ValueError):  # the terminal may be gone
            say("end", line, level="error", fields=fields, show=_tell)
    return status
