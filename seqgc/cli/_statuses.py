"""How a verb ended, as scripts, units of systemd and batch systems read it: its exit status.

A run that has reached its budget has not failed: `seqgc resume RUN --max-usd MORE` goes on with it.
So it has a status of its own, which whoever restarts what has failed can leave alone.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Status(IntEnum):
    """What a verb returns; one that a signal has ended returns 128 and the signal's number."""

    DONE = 0
    FAILED = 1
    WRONG = 2
    BUDGET = 3
    INTERRUPTED = 130  # 128 + SIGINT


MEANINGS: Final = {
    "0": "done",
    "1": "failed: workers, a model, a callback, files, or printing what was asked for",
    "2": "a wrong parameter or file, or a damaged run, named in one line; nothing was begun",
    "3": "the budget is reached; `seqgc resume RUN --max-usd MORE` goes on",
    "130, 143, 129": "SIGINT, SIGTERM or SIGHUP; `seqgc resume RUN` goes on",
}
"""The same for people: the end of ``seqgc --help``, and a table of ``docs/operations.md``."""

EPILOG: Final = "\n\n".join(
    ["Exit status:", *(f"{status}: {meaning}" for status, meaning in MEANINGS.items())]
)
