"""``python -m seqgc``, and the ``seqgc`` command."""

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from seqgc._manner import manner_of

_WITH_TORCH: Final = ("demo", "profile", "resume", "train")  # verbs
# The cores are the workers': a second thread of the master would spin on one of them.
_THREADS: Final = (
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def run() -> int:
    """Run the command line; Ctrl-C and SIGTERM during its imports end it at once."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    try:
        _open_standard_streams()
        if "_SEQGC_COMPLETE" in os.environ:
            from seqgc._completion import answered

            if answered():
                return 0
        verb = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
        if verb in _WITH_TORCH:
            for variable in _THREADS:
                os.environ.setdefault(variable, "1")
        with _said(verb):
            from seqgc.cli import main

        return main()
    finally:  # the interpreter's end takes a while; whoever ends it sooner wants no traceback
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)


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


def _open_standard_streams() -> None:
    """Have the descriptors 0 to 2 be somebody's: else the next file that is opened becomes one."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files may be no text
        sys.stdout.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(run())
