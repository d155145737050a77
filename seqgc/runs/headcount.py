"""The number of local processes that should work for a run, which may change while it runs.

The number is in the file ``workers`` in the folder of the run, for example ``3 of 8``. `seqgc
workers` writes the file, and the backend of the run's master reads it about once a second. The file
remains when the master ends, so that a resumed run continues with the same number of processes. It
is ignored, and removed, if the run is resumed with another largest number.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final

from seqgc._bounded import read_bounded
from seqgc._durable import replacing
from seqgc.errors import require_int

__all__ = ["forget_headcount", "set_headcount", "wanted_headcount"]

_FILE: Final = "workers"
_MOST_BYTES: Final = 100


def set_headcount(run: Path, count: int, *, most: int) -> None:
    """Set the number of processes, from 1 to ``most``, that should work for the run in a folder.

    Raises
    ------
    ParameterError
        If the number is out of range.
    """
    count = require_int("count", count, least=1, most=most)
    with replacing(run / _FILE) as file:
        file.write(b"%d of %d\n" % (count, most))


def forget_headcount(run: Path) -> None:
    """Remove the number of processes, so that the default holds. Errors are ignored."""
    with suppress(OSError):
        (run / _FILE).unlink(missing_ok=True)


def wanted_headcount(run: Path, *, most: int) -> int:
    """Return the number of processes that should work for the run; without a number ``most``.

    A file that cannot be read, or that was written for another largest number, counts as absent.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     before = wanted_headcount(Path(folder), most=8)
    ...     set_headcount(Path(folder), 3, most=8)
    ...     before, wanted_headcount(Path(folder), most=8), wanted_headcount(Path(folder), most=9)
    (8, 3, 9)
    """
    try:
        count, of = read_bounded(run / _FILE, most_bytes=_MOST_BYTES).split(b" of ")
        return int(count) if int(of) == most else most
    except (OSError, ValueError):
        return most
