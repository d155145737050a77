"""One master a run: a lock while it lives, and a number that the ones before it see.

The lock is the system's, and ends with the process. On file systems that do not keep it for other
machines the number still tells: every master makes the file of the next one, which only one can do,
and stops before its next tasks once there is a file after its own.

The number is looked at before each dispatch, checkpoint and file of trained weights, and before and
after each line of the journal, but not at one stroke with them. So, without locks, a master that is
replaced in between does that one thing more. Of its tasks nothing comes: the next master's messages
have another run id. Its line is void, and so is its checkpoint where the next master's lines say
otherwise (`seqgc.training.journal`, ``snapshots``). It may leave rows in ``metrics.csv`` that the
next one writes again. Keep runs that several machines can reach on a file system with locks.

A run whose folder has been moved, or removed, while its master is at work is lost for it too.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

from seqgc._durable import sync_folder
from seqgc.errors import ParameterError, StoreError

__all__ = ["Lease"]

_PAUSES_S: Final = (0.02, 0.1, 0.5, 0.0)  # after each look that fails


class Lease:
    """The right to be the master of the run in a folder, until `close`.

    Raises
    ------
    ParameterError
        If another master is at work there.

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

    def __init__(self, run: Path) -> None:
        self._run, self._folder = run, run.absolute() / "masters"
        self._lock = os.open(run / "lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            self._acquire()
            self.number: Final = self._next_number()
        except BaseException:
            os.close(self._lock)
            raise

    def lost(self) -> str:
        """Return why this master must leave the run alone; empty as long as the run is its own."""
        for pause_s in _PAUSES_S:  # what a network file system has for a moment is no answer
            try:
                return self._lost()
            except OSError as error:
                why = f"{self._folder} cannot be read: {error.strerror or error}"
            time.sleep(pause_s)
        return f"{why}: nobody knows if another master is at work; seqgc resume {self._run}, later"

    def _lost(self) -> str:
        if (self._folder / str(self.number + 1)).exists():
            taken = f"master {self.number + 1} has taken the run over"
            return f"{taken}; this one, master {self.number}, stops"
        if not (self._folder / str(self.number)).exists():
            return f"{self._run} has been moved or removed; its master stops"
        return ""

    def check(self) -> None:
        """Refuse to go on once another master has taken over, or the run is gone.

        Raises
        ------
        StoreError
            If so.
        """
        if lost := self.lost():
            raise StoreError(lost)

    def close(self) -> None:
        """Let others have the run; once."""
        os.close(self._lock)

    def _acquire(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._taken() from None
        except OSError:
            pass  # a file system without locks: the number must do

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
        rule = "must be of a run that no other master is at work on"
        return ParameterError("run", rule, str(self._run), "wait for its end, or end it")
