"""``python -m seqgc``, and the ``seqgc`` command."""

import io
import os
import signal
import sys


def run() -> int:
    """Run the command line; Ctrl-C during its imports, and SIGTERM, end it in good order."""
    signal.signal(signal.SIGTERM, _end)
    _open_standard_streams()
    try:
        from seqgc.cli import main

        return main()
    except KeyboardInterrupt:
        sys.stderr.write("seqgc: interrupted\n")
        return 130
    finally:  # the interpreter's end takes a while; whoever ends it sooner wants no traceback
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


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
