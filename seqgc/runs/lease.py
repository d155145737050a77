"""The lease of a run: the right to be its only master, by means of a lock and a number.

The lock is a lock of the operating system, which ends with the process. A run cannot be on a file
system without locks. Each master also has a number, one more than the previous master's, and
creates a file with this name. A network file system may lose a lock, so that another master takes
over. The first master then detects a file with a higher number, and stops. It checks this before
each dispatch, checkpoint and file of trained weights, and before and after each line of the
journal.

A master also stops if the folder of its run is moved or removed.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

from seqgc._durable import sync_folder
from seqgc.errors import ParameterError, StoreError

__all__ = ["Lease", "has_master"]

_PAUSES_S: Final = (0.02, 0.1, 0.5, 0.0)  # after each failed attempt to read the folder


def has_master(run: Path) -> bool:
    """Return True if a master is running the run in a folder."""
    try:
        lock = os.open(run / "lock", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


class Lease:
    """The right to be the master of the run in a folder, until `close`.

    ``argument`` is the name of the folder's argument in errors.

    Raises
    ------
    ParameterError
        If another master is running this run, or if the file system has no locks.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> first = Lease(Path(folder.name))
    >>> first.close()
    >>> second = Lease(Path(folder.name))
    >>> first.number, second.number
    (1, 2)
    >>> first.check()
    Traceback (most recent call last):
    seqgc.errors.StoreError: master 2 has taken the run over; this one, master 1, stops
    >>> second.close(); folder.cleanup()
    """

    def __init__(self, run: Path, *, argument: str = "run") -> None:
        self._run, self._folder, self._argument = run, run / "masters", argument
        self._lock = os.open(run / "lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            self._acquire()
            self.number: Final = self._next_number()
        except BaseException:
            os.close(self._lock)
            raise

    def lost(self) -> str:
        """Return the reason why this master must stop, or an empty string if it may continue."""
        for pause_s in _PAUSES_S:  # a network file system may fail for a moment
            try:
                return self._lost()
            except OSError as error:
                why = f"{self._folder} cannot be read: {error.strerror or error}"
            time.sleep(pause_s)
        return (
            f"{why}: another master may be running this run; "
            f"try `seqgc resume {self._run}` again later"
        )

    def _lost(self) -> str:
        if (self._folder / str(self.number + 1)).exists():
            taken = f"master {self.number + 1} has taken the run over"
            return f"{taken}; this one, master {self.number}, stops"
        if not (self._folder / str(self.number)).exists():
            return f"{self._run} has been moved or removed; its master stops"
        return ""

    def check(self) -> None:
        """Raise `StoreError` if another master has taken over, or if the run is gone."""
        if lost := self.lost():
            raise StoreError(lost)

    def close(self) -> None:
        """Release the run. Call this once."""
        os.close(self._lock)

    def _acquire(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._taken() from None
        except OSError as error:
            rule = "must be on a file system that has locks"
            got = f"{self._run}: {error.strerror or error}"
            remedy = "put the run on a local disk, or mount the file system with locks"
            raise ParameterError(self._argument, rule, got, remedy) from error

    def _next_number(self) -> int:
        self._folder.mkdir(exist_ok=True)
        names = [path.name for path in self._folder.iterdir()]
        number = 1 + max((int(n) for n in names if n.isascii() and n.isdigit()), default=0)
        try:
            (self._folder / str(number)).touch(exist_ok=False)
        except FileExistsError:
            raise self._taken() from None
        sync_folder(self._folder)
        return number

    def _taken(self) -> ParameterError:
        rule = "must be a run that no other master is running"
        remedy = "wait until the other process ends, or end it"
        return ParameterError(self._argument, rule, str(self._run), remedy)
