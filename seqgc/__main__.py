"""``python -m seqgc``, and the ``seqgc`` command."""

import atexit
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

from seqgc._manner import manner_of

_WITH_TORCH: Final = ("demo", "profile", "resume", "train")  # verbs
_WITH_GRADIENTS: Final = ("compare", *_WITH_TORCH)
# The cores are the workers': a second thread of the master would spin on one of them.
_THREADS: Final = (
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def run() -> int:
    """Run the command line; the status is exact whenever signals come, and however often.

    During the imports SIGINT, SIGTERM and SIGHUP end it at once, while a verb runs in good order
    (`seqgc.cli.main`). Then the interpreter's end takes a while, of threads that may hang, so that
    one more signal ends that at once, with the verb's own status; but the last of it, which hangs
    for nobody and has no handlers any more, hears nothing.
    """
    atexit.register(_have_signals, signal.SIG_IGN)  # the first, which is called last
    _have_signals(_end)
    status = 1
    try:
        status = _status()
        return status
    except SystemExit as end:  # of a signal that came when the verb was over
        status = end.code if isinstance(end.code, int) else 1
        raise
    finally:
        _have_signals(partial(_leave, status))


def _status() -> int:
    """Import what the command line needs, and run it."""
    _open_standard_streams()
    if os.environ.get("COLUMNS", "1").strip("0") == "":  # not known: rich would print nothing
        del os.environ["COLUMNS"]
    if "_SEQGC_COMPLETE" in os.environ:
        from seqgc._completion import answered

        if answered():
            return 0
    verb = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if verb == "report":  # which draws into a file, whatever windows others draw in
        os.environ["MPLBACKEND"] = "agg"
    if verb in _WITH_GRADIENTS:
        for variable in _THREADS:
            os.environ.setdefault(variable, "1")
    with _said(verb):
        from seqgc.cli import main

    return main()


def _have_signals(handler: Callable[[int, Any], None] | signal.Handlers) -> None:
    """Let signals be handled so, apart from those that whoever started this has ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


@contextmanager
def _said(verb: str) -> Iterator[None]:
    """Say at once what is being done, for the block is imports that take a second, or several.

    On a terminal it is wiped away again; elsewhere it is a line.
    """
    manner = manner_of(sys.argv[1:])
    if manner.format == "json" or manner.quiet:  # machines read, or nobody
        yield
        return
    wiped = sys.stderr.isatty()
    what = "loading seqgc" + (", then PyTorch" if verb in _WITH_TORCH else "")
    with suppress(OSError):
        if wiped or (verb and "--help" not in sys.argv):
            sys.stderr.write(f"seqgc: {what} ..." + ("" if wiped else "\n"))
            sys.stderr.flush()
    yield
    with suppress(OSError):
        if wiped:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _end(number: int, _frame: object) -> None:
    """End, while there is nothing to put in order; an exception might be lost in an import."""
    with suppress(OSError):  # there may be nobody to tell
        if number == signal.SIGINT:
            os.write(2, b"seqgc: interrupted\n")
    os._exit(128 + number)


def _leave(status: int, _number: int, _frame: object) -> None:
    """End, when there is nothing left to put in order but memory."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, RuntimeError):  # gone, closed, or being flushed
            stream.flush()
    os._exit(status)


def _open_standard_streams() -> None:
    """Have the descriptors 0 to 2 be somebody's: else the next file that is opened becomes one."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _forgetful()
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files may be no text
        sys.stdout.reconfigure(errors="backslashreplace")


def _forgetful() -> io.TextIOWrapper:
    """Return a standard error that keeps nothing: what cannot be written is gone.

    The usual one tries it again with all that comes after, at the interpreter's end, which changes
    the exit status, and whenever `multiprocessing` starts a process, which does not start then.
    """
    encoding = getattr(sys.stderr, "encoding", "utf-8")
    raw = io.FileIO(2, "w", closefd=False)
    return io.TextIOWrapper(raw, encoding, "backslashreplace", write_through=True)


if __name__ == "__main__":
    sys.exit(run())
