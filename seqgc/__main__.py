"""The ``seqgc`` command, and ``python -m seqgc``."""

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from seqgc import __version__
from seqgc._command_line import message_format

_WITH_TORCH: Final = ("demo", "profile", "resume", "train")  # verbs
_WITH_GRADIENTS: Final = ("compare", *_WITH_TORCH)
# The workers need the cores, so the numerical libraries of the master use one thread.
_THREADS: Final = (
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def run() -> int:
    """Run the command line and return its exit status."""
    if None in (sys.stdin, sys.stdout, sys.stderr):
        sys.exit("seqgc: standard input, output and error must be open; use /dev/null, not `>&-`")
    if isinstance(sys.stdout, io.TextIOWrapper):  # file names may not be valid text
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.argv[1:] == ["--version"]:  # the imports below take a second
        sys.stdout.write(f"seqgc {__version__}\n")
        return 0
    if "_SEQGC_COMPLETE" in os.environ:
        from seqgc._command_line import answered

        if answered():
            return 0
    verb = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if verb == "report":  # the pages hold pictures; no window is opened
        os.environ["MPLBACKEND"] = "agg"
    if verb in _WITH_GRADIENTS:
        for variable in _THREADS:
            os.environ.setdefault(variable, "1")
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during an import: no traceback
    with _announced_imports(verb):
        from seqgc.cli import main

    return main()


@contextmanager
def _announced_imports(verb: str) -> Iterator[None]:
    """Say on stderr that seqgc is loading, because the imports in this block take seconds.

    On a terminal the message is erased afterwards. Otherwise it ends with a newline and remains.
    """
    messages, on_terminal = message_format(sys.argv[1:]), sys.stderr.isatty()
    if messages.format == "json" or messages.quiet:
        yield
        return
    what = "loading seqgc" + (", then PyTorch" if verb in _WITH_TORCH else "")
    if on_terminal or (verb and "--help" not in sys.argv):
        sys.stderr.write(f"seqgc: {what} ..." + ("" if on_terminal else "\n"))
        sys.stderr.flush()
    yield
    if on_terminal:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(run())
