"""``python -m seqgc``, and the ``seqgc`` command."""

import io
import os
import signal
import sys
from contextlib import suppress


def run() -> int:
    """Run the command line; Ctrl-C and SIGTERM during its imports end it at once."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    try:
        _open_standard_streams()
        from seqgc.cli import main

        return main()
    finally:  # the interpreter's end takes a while; whoever ends it sooner wants no traceback
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)


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
