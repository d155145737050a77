"""Removing what ended runs have left on a shared file system.

A function that answers after its master has gone leaves its answer there, and a master that was
killed leaves everything. Buckets have a rule for that (``BucketExpiryDays`` of `template.yaml`);
a file system has not.

Ages are differences of two clocks, of which one may be wrong by months. So a master holds a lock on
its run's folder as long as it lives, and whoever holds one loses nothing, whatever the clocks say.
A file system without locks leaves the ages.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from seqgc._durable import folder_below

__all__ = ["FORGOTTEN_S", "LATE_S", "occupied", "remove_forgotten", "unique_name"]

LATE_S: Final = 2 * 3600.0
"""Age of a folder without weights, seconds: its run is over, and no function runs for 900 s."""

FORGOTTEN_S: Final = 30 * 24 * 3600.0
"""Age of a folder with weights, seconds: its master may be there still; as long as the bucket's."""

_RUN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*-[0-9a-f]{12}")  # what `unique_name` returns

_WEIGHTS = r"[A-Za-z0-9_][A-Za-z0-9._-]*@[0-9]{10}\.npy"  # of `DirectoryStore`
_ANSWER = r"result-[0-9]+-[0-9]+-[0-9]+-[0-9a-f]{32}"  # the key of `seqgc.wire.TaskMessage.stored`
_LOCK = "master.lock"
_NO_LOCKS = (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK)  # on this file system; ages must do
_UNFINISHED = r"\.{}-\w+\.tmp"  # of `seqgc._durable`


def unique_name(name: str) -> str:
    """Return a name for a run that no other run has, of characters that every store takes.

    Its folder has this name too, by which `remove_forgotten` knows it.

    Examples
    --------
    >>> len(unique_name("my run")), unique_name("my run")[:7]
    (19, 'my_run-')
    """
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:80].lstrip(".-") or "run"
    return f"{plain}-{uuid.uuid4().hex[:12]}"


@contextmanager
def occupied(mount: str | os.PathLike[str], run: str) -> Iterator[None]:
    """During the block, keep the folder of a run below ``mount`` from `remove_forgotten`."""
    with ExitStack() as stack:
        with suppress(OSError):  # there are no locks; or one cannot write, and will soon be told
            folder = stack.enter_context(folder_below(Path(mount), run, make=True))
            lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=folder)
            stack.callback(os.close, lock)
            stack.callback(_unlink, folder)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def remove_forgotten(mount: str | os.PathLike[str], *, now: float | None = None) -> int:
    """Remove the folders of runs that are over below ``mount``; return how many those were.

    A folder goes if it bears the name of a run of functions (``<name>-<12 hexadecimal digits>``),
    nothing is in it but what such runs write into a `DirectoryStore`, and the youngest of that is
    older than `LATE_S`, or with weights `FORGOTTEN_S`: while a run lives there are weights of it,
    the latest of which are about as old as its round. A folder that is `occupied` stays, as does
    whatever else there is, and what cannot be removed is left for another time. ``now`` is in
    seconds since the epoch; this machine's clock unless given.

    Examples
    --------
    >>> import tempfile
    >>> from seqgc.stores import DirectoryStore
    >>> with tempfile.TemporaryDirectory() as mount:
    ...     store = DirectoryStore(Path(mount, "run-0123456789ab"))
    ...     store.put(f"result-7-2-0-{0:032x}", b"a late answer")
    ...     remove_forgotten(mount), remove_forgotten(mount, now=time.time() + 3 * 3600)
    (0, 1)
    """
    now = time.time() if now is None else now
    with suppress(OSError), folder_below(Path(mount)) as folder:  # what needs it will say why
        runs = [each.name for each in os.scandir(folder) if _RUN.fullmatch(each.name)]
        return sum(_remove_if_over(folder, name, now) for name in runs)
    return 0


def _remove_if_over(mount: int, name: str, now: float) -> bool:
    with suppress(OSError), ExitStack() as stack:  # another master is at it, or it is not ours
        run = stack.enter_context(folder_below(mount, name))
        weights, answers = list(os.scandir(run)), []
        blobs = next(filter(_is_blobs, weights), None)
        written = [os.fstat(run).st_mtime, *map(_written, weights)]
        if blobs is not None:
            weights.remove(blobs)
            folder = stack.enter_context(folder_below(run, blobs.name))
            answers = list(os.scandir(folder))
            written.extend(map(_written, answers))
        lock = next((each for each in weights if each.name == _LOCK), None)
        if lock is not None:
            weights.remove(lock)
            _require_free(run)
        known = all(_is_file(each, _WEIGHTS) for each in weights)
        known = known and all(_is_file(each, _ANSWER) for each in answers)
        if known and now - max(written) > (FORGOTTEN_S if weights else LATE_S):
            for each in weights:
                os.unlink(each.name, dir_fd=run)
            if lock is not None:
                os.unlink(lock.name, dir_fd=run)
            if blobs is not None:
                for each in answers:
                    os.unlink(each.name, dir_fd=folder)
                os.rmdir(blobs.name, dir_fd=run)
            os.rmdir(name, dir_fd=mount)
            return True
    return False


def _require_free(run: int) -> None:
    """Raise `OSError` if a master holds the lock of this run's folder."""
    lock = os.open(_LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=run)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    finally:
        os.close(lock)


def _unlink(folder: int) -> None:
    with suppress(OSError):
        os.unlink(_LOCK, dir_fd=folder)


def _written(entry: os.DirEntry[str]) -> float:
    return entry.stat(follow_symlinks=False).st_mtime


def _is_blobs(entry: os.DirEntry[str]) -> bool:
    return entry.name == "blobs" and entry.is_dir(follow_symlinks=False)


def _is_file(entry: os.DirEntry[str], name: str) -> bool:
    fits = re.fullmatch(f"{name}|{_UNFINISHED.format(name)}", entry.name)
    return fits is not None and entry.is_file(follow_symlinks=False)
