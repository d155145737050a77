"""``python -m seqgc``, and the ``seqgc`` command."""

import sys

__all__ = ["run"]


def run() -> int:
    """Run the command line, Ctrl-C during its imports included."""
    try:
        from seqgc.cli import main

        return main()
    except KeyboardInterrupt:
        sys.stderr.write("seqgc: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(run())
