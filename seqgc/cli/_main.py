"""The verbs, and how errors leave the program."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, partial
from queue import SimpleQueue
from traceback import walk_tb
from types import CodeType, FrameType
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rich.console import Console
from typer.main import get_command

from seqgc import __version__
from seqgc._fault import fault_of
from seqgc.cli import (
    _compare,
    _cost,
    _data,
    _demo,
    _deploy,
    _destroy,
    _doctor,
    _profile,
    _replay,
    _report,
    _resume,
    _scheme,
    _train,
    _tune,
)
from seqgc.cli._messages import check_environment, in_json, say, speaking
from seqgc.cli._options import with_plugins
from seqgc.cli._show import forget_output
from seqgc.cli._statuses import EPILOG, Status
from seqgc.errors import (
    BudgetError,
    DamageError,
    ParameterError,
    ProfileError,
    SeqgcError,
    Stopped,
    one_line,
    reraise_stop,
)

# typer carries a copy of click of its own; this is the one public way to its errors.
_UsageError: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)

_SOON_S = 0.01
_TRACEBACK = "--traceback"
_TRAINING = "torch", "safetensors", "threadpoolctl"  # packages of the extra ``train``
_LONGEST = 300 - len("seqgc: ")  # of a line that refuses
_LONGEST_NAME = 200  # of a file

app = typer.Typer(
    name="seqgc",
    help="Train many networks on unreliable workers and wait for no straggler.",
    epilog=EPILOG,
    pretty_exceptions_enable=False,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"seqgc {__version__}\n")
        raise typer.Exit


@app.callback()
def _all_verbs(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_say_version, help="Say which it is."),
    ] = False,
    traceback: Annotated[
        bool, typer.Option(_TRACEBACK, help="Show where an error comes from; after a verb, too.")
    ] = False,
) -> None:
    """Take what `_say_version` and `main` have looked for."""


# Not from docstrings, which `python -OO` leaves out.
_HELP = {
    "scheme": "Show what a scheme, or another defence, costs and what it promises.",
    "replay": "Replay a scheme, or another defence, on recorded delays: run time, stragglers, "
    "wait-outs.",
    "tune": "Find the fastest scheme, parameters and closing rule on recorded delays.",
    "compare": "Compare all defences on recorded delays: time to a target loss, and what it costs.",
    "train": "Train several models at once on unreliable workers, exactly.",
    "resume": "Go on with a run that has ended early, from its last checkpoint, to the same "
    "weights.",
    "demo": "Train models on real handwritten digits, uncoded, coded and dealt, with stragglers.",
    "report": "Draw a run, several runs or a delay profile on one page of HTML, which needs "
    "nothing else.",
    "cost": "Estimate what a plan will cost on AWS Lambda, or what a run has cost (or would have).",
    "deploy": "Build and deploy the worker functions on AWS Lambda.",
    "destroy": "Delete the worker functions and all that was deployed with them.",
    "doctor": "Look at everything that a run on AWS Lambda needs; exit status 1 if something is to "
    "mend.",
}


def _verb(name: str, verb: Callable[..., object], *, epilog: str | None = None) -> None:
    app.command(name, help=_HELP[name], epilog=epilog)(verb)


_verb("scheme", with_plugins(_scheme.scheme))
_verb("replay", with_plugins(_replay.replay))
_verb("tune", with_plugins(_tune.tune))
_verb("compare", with_plugins(_compare.compare))
app.add_typer(_profile.app, name="profile")
_verb("train", _train.train, epilog=EPILOG)
_verb("resume", _resume.resume, epilog=EPILOG)
_verb("demo", _demo.demo)
_verb("report", with_plugins(_report.report))
_verb("cost", with_plugins(_cost.cost))
app.add_typer(_data.app, name="data")
_verb("deploy", with_plugins(_deploy.deploy))
_verb("destroy", with_plugins(_destroy.destroy))
_verb("doctor", with_plugins(_doctor.doctor))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status, one of `seqgc.cli._statuses.Status`.

    What a verb has saved it need not print (`show`). A wrong parameter is one line on stderr that
    names the argument, the rule and the value.
    """
    arguments = list(sys.argv[1:] if argv is None else argv) or ["--help"]
    fail = partial(_fail, trace=_TRACEBACK in arguments)
    in_main = threading.current_thread() is threading.main_thread()  # nobody else hears signals
    with speaking(arguments), _signals() if in_main else nullcontext():
        try:
            return _run([word for word in arguments if word != _TRACEBACK] or ["--help"], fail)
        except Stopped as stop:  # even one that comes while another error is being told
            message = "interrupted" if stop.status == Status.INTERRUPTED else str(stop)
            return fail(stop, message, stop.status)


def _run(arguments: list[str], fail: Callable[[BaseException | None, str, int], int]) -> int:
    try:
        check_environment(arguments)
        status = _called(arguments)
        sys.stdout.flush()
    except (ParameterError, ProfileError, DamageError) as error:
        return fail(error, str(error), Status.WRONG)
    except BudgetError as error:
        return fail(error, str(error), Status.BUDGET)
    except SeqgcError as error:
        return fail(error, str(error), Status.FAILED)
    except BrokenPipeError as error:  # nobody reads what is printed
        forget_output()
        return fail(error, "", Status.FAILED)
    except OSError as error:
        where = one_line(error.filename or "what is printed, or a file", limit=_LONGEST_NAME)
        return fail(error, f"{where}: {error.strerror or error}", Status.FAILED)
    except MemoryError as error:
        return fail(error, f"not enough memory for this: {error}", Status.FAILED)
    except _UsageError as error:
        return fail(error, _misused(error), Status.WRONG)
    if status == Status.INTERRUPTED:  # typer's own translation of Ctrl-C
        return fail(None, "interrupted", Status.INTERRUPTED)
    return status if isinstance(status, int) else Status.DONE


def _called(arguments: list[str]) -> object:
    """Return what the verb, or typer itself, gives for an exit status."""
    try:
        with _unwrapped():
            return command()(args=arguments, prog_name="seqgc", standalone_mode=False)
    except SystemExit as end:
        if not _is_typers(end):
            raise
        return end.code
    except ImportError as error:
        if (package := (error.name or "").partition(".")[0]) not in _TRAINING:
            raise
        rule = f"needs {package}, which cannot be imported ({one_line(error, limit=100)})"
        remedy = "pip install 'seqgc[train]'"
        raise ParameterError("verb", rule, arguments[0], remedy) from error


def _misused(error: Exception) -> str:
    """Return what typer says of a command line, and the value, which it may leave out."""
    said: str = getattr(error, "format_message", error.__str__)()
    if isinstance(cause := error.__cause__, ValidationError):
        said = f"{said.removesuffix('.')}; got {cause.errors()[0]['input']!r}"
    return said


@contextmanager
def _signals() -> Iterator[None]:
    """Have SIGINT, SIGTERM and SIGHUP end the verb in good order; a second one changes nothing.

    What is ignored stays so, as for a process that is to outlive its terminal. An exception that a
    handler raises is lost where Python ignores all: in finalizers, callbacks of weak references. It
    is raised again soon after, and by a second signal if a library has swallowed it.
    """
    ignored, lost, over = sys.unraisablehook, SimpleQueue[int](), threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        if _stop_behind(sys.exception()) is not None:
            return  # it is being cleaned up
        if _is_within(frame, retry.__code__):
            lost.put(number)
        else:
            raise Stopped(128 + number, f"ended by {signal.Signals(number).name}")

    def retry(about: Any) -> None:
        if isinstance(about.exc_value, Stopped):
            lost.put(about.exc_value.status - 128)  # waits for no lock, wherever this is
        else:
            ignored(about)

    def repeat() -> None:
        while number := lost.get():
            if not over.wait(_SOON_S):
                os.kill(os.getpid(), number)

    repeats = threading.Thread(target=repeat, name="seqgc-signals", daemon=True)
    repeats.start()
    with _handlers(stop):
        sys.unraisablehook = retry
        try:
            yield
        finally:
            sys.unraisablehook = ignored
            over.set()
            lost.put(0)
            repeats.join()  # or it would still send one


@contextmanager
def _handlers(stop: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Have the signals that ask for the end handled so, but for those that are ignored."""
    before = {
        each: signal.signal(each, stop)
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(each) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_within(frame: FrameType | None, function: CodeType) -> bool:
    """Return whether a function is being called."""
    while frame is not None and frame.f_code is not function:
        frame = frame.f_back
    return frame is not None


@contextmanager
def _unwrapped() -> Iterator[None]:
    """Raise a `Stopped` again that another error hides, and an error for what ends a program.

    Python makes one of it where a class is made; what cleans up may fail, for a terminal is gone.
    Code that is called may end the program, and say with status 0 that all is done.
    """
    try:
        yield
    except BaseException as error:
        reraise_stop(error)
        if _is_typers(error):
            raise
        if _is_richs(error):  # typer prints help on a console of rich's own
            raise BrokenPipeError(errno.EPIPE, "Broken pipe") from None
        end: BaseException | None = _stop_behind(error)
        if end is None and isinstance(error, Exception):
            raise
        end = end or SeqgcError(f"ended by code that was called: {fault_of(error)}")
        for note in getattr(error, "__notes__", []):
            end.add_note(note)
        raise end from None


def _is_typers(error: BaseException) -> bool:
    """Say if typer itself ends the program: it has installed or shown a shell's completion."""
    frame = _innermost(error)
    name = str(frame.f_globals.get("__name__")) if frame else ""
    return type(error) is SystemExit and name.partition(".")[0] == "typer"


def _is_richs(error: BaseException) -> bool:
    """Say if rich ends the program, for nobody reads what it prints."""
    frame = _innermost(error)
    ends = frame is not None and frame.f_code is Console.on_broken_pipe.__code__
    return ends and type(error) is SystemExit


def _innermost(error: BaseException) -> FrameType | None:
    """Return where an error was raised."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return frames[-1] if frames else None


def _stop_behind(error: BaseException | None) -> Stopped | None:
    """Return the `Stopped` because of which this error came, if there is one."""
    while error is not None and not isinstance(error, Stopped):
        error = error.__context__
    return error


@cache
def command() -> Any:  # of typer's own click; made once, which takes longer than most verbs
    """Return the command line, made of the verbs."""
    return get_command(app)


def _tell(line: str) -> None:
    sys.stderr.write(f"seqgc: {line}\n")
    sys.stderr.flush()


def _fail(error: BaseException | None, message: str, status: int, *, trace: bool) -> int:
    """Say what went wrong, and what the error has been given to add, in one line on stderr.

    Before it, for a ``trace``, comes where that was; for machines it is in the line.
    """
    fields: dict[str, object] = {"status": int(status)}
    if trace and error is not None:
        fields["traceback"] = where = "".join(traceback.format_exception(error))
        if not in_json():
            with suppress(OSError, ValueError):
                sys.stderr.write(where)
    notes = getattr(error, "__notes__", [])
    line = one_line("; ".join([message, *notes]), limit=2000)
    if (
        status == Status.WRONG and len(line) > _LONGEST
    ):  # what it begins with, the value and the remedy
        line = f"{line[: _LONGEST - 121]}…{line[-120:]}"
    if line:
        with suppress(OSError, ValueError):  # nobody is there to read it
            say("end", line, level="error", fields=fields, show=_tell)
    return status
