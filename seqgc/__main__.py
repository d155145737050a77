"""``python -m seqgc``, and the ``seqgc`` command."""

import signal
import sys


def run() -> int:
    """Run the command line; Ctrl-C during its imports, and SIGTERM, end it in good order."""
    signal.signal(signal.SIGTERM, _end)
    try:
        from seqgc.cli import main

        return main()
    except KeyboardInterrupt:
        sys.stderr.write("seqgc: interrupted\n")
        return 130


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(run())
