"""The number of local processes that should work for a run, which may change while it runs.

The number is the content of the file ``workers`` in the folder of the run. `seqgc workers` writes
the file, and the backend of the run's master reads it about once a second. The file remains when
the master ends, so that a resumed run continues with the same number of processes. It is removed
if the run is resumed with another largest number.
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
        file.write(b"%d\n" % count)


def forget_headcount(run: Path) -> None:
    """Remove the number of processes, so that the default holds. Errors are ignored."""
    with suppress(OSError):
        (run / _FILE).unlink(missing_ok=True)


def wanted_headcount(run: Path, *, default: int) -> int:
    """Return the number of processes that should work for a run; without a number the ``default``.

    A file that cannot be read or contains no number counts as absent.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     before = wanted_headcount(Path(folder), default=8)
    ...     set_headcount(Path(folder), 3, most=8)
    ...     before, wanted_headcount(Path(folder), default=8)
    (8, 3)
    """
    try:
        return int(read_bounded(run / _FILE, most_bytes=_MOST_BYTES))
    except (OSError, ValueError):
        return default
