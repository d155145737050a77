"""``python -m seqgc``."""

import sys

from seqgc.cli import main

if __name__ == "__main__":
    sys.exit(main())
