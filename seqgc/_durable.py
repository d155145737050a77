"""Durable files, which are complete or absent or only grow, and temporary folders.

A process that is killed leaves its temporary folders behind. Each folder therefore has a mark: a
file that its process keeps locked. The process that makes the next folder removes all folders whose
mark is not locked any more. Unlike a process number, a lock is also seen from other containers and
hosts that share the folder of temporary files.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from glob import escape, iglob
from pathlib import Path
from typing import IO

_MARK = ".seqgc-in-use"
_PIECE = 1 << 20

system = os
"""The module of system calls; tests replace it (`tests.kit.system_calls`)."""


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Give the name of the file to an error that has a descriptor or a temporary name instead."""
    try:
        yield
    except OSError as error:
        name = error.filename
        if error.errno is not None and (
            name is None or Path(str(name)).name.startswith(_temporary(path.name))
        ):
            error.filename, error.filename2 = str(path), None
        raise


def _temporary(name: str) -> str:
    """Return the prefix of temporary file names."""
    return f".{name}-"


@contextmanager
def replacing(
    path: Path, *, sync: bool = True, check: Callable[[], object] = bool
) -> Iterator[IO[bytes]]:
    """Yield a file that replaces ``path`` when the block ends without an error.

    ``check`` is called when the file is on the disk, before it replaces ``path``. If it raises, or
    with `OSError` if the folder is absent or not writable, ``path`` is unchanged. Without ``sync``
    the file need not be on the disk: other processes see all of it or nothing, but after a power
    failure it may be absent or damaged.
    """
    temporary = path.with_name(f"{_temporary(path.name)}{os.urandom(6).hex()}.tmp")
    with _naming(path):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                if sync:
                    file.flush()
                    system.fsync(file.fileno())
            check()
            system.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if sync:
            sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder and its parents, and wait until their names are on the disk.

    Raises `OSError` if the folder exists or cannot be made; no new folder remains then.
    """
    absent = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True)
    try:
        for folder in reversed(absent):
            sync_folder(folder.parent)
    except BaseException:
        for folder in absent:
            with suppress(OSError):  # another process may use it by now
                folder.rmdir()
        raise


def write_new(path: Path, data: bytes) -> None:
    """Write a new file and wait until its bytes (not its name) are on the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with _naming(path):
            _write(descriptor, data)
    finally:
        os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """Rename a file or folder; `sync_folder` waits until the name is on the disk."""
    system.replace(source, target)


class AppendOnly:
    """A file that only grows: bytes for which `append` has returned are never lost.

    An existing file is cut to its first ``keep_bytes``, if that is given.

    Examples
    --------
    >>> folder = tempfile.TemporaryDirectory()
    >>> file = AppendOnly(Path(folder.name, "a.txt"))
    >>> file.append(b"one"); file.append(b", two"); file.close()
    >>> Path(folder.name, "a.txt").read_bytes()
    b'one, two'
    >>> folder.cleanup()
    """

    def __init__(self, path: Path, *, keep_bytes: int | None = None) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        if keep_bytes is not None:
            with _naming(path):
                os.ftruncate(self._descriptor, keep_bytes)
        sync_folder(path.parent)

    def append(self, data: bytes, *, sync: bool = True) -> None:
        """Write bytes; with ``sync``, wait until these and all earlier ones are on the disk.

        After an `OSError`, or an exception of a signal, the file is cut to its previous length.
        """
        before = (status := os.fstat(self._descriptor)).st_size
        if not status.st_nlink:
            self._restore(before)
        try:
            with _naming(self._path):
                _write(self._descriptor, data, sync=sync)
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self._descriptor, before)
            raise

    def _restore(self, size: int) -> None:
        """Write the file again after its name was removed; its content can still be read.

        Raises `OSError` if that fails, for example if another file has the name.
        """
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            for start in range(0, size, _PIECE):
                _write(descriptor, os.pread(self._descriptor, _PIECE, start), sync=False)
            system.fsync(descriptor)
            sync_folder(self._path.parent)
        except BaseException:
            with suppress(OSError):
                self._path.unlink()
            os.close(descriptor)
            raise
        os.close(self._descriptor)
        self._descriptor = descriptor

    def close(self) -> None:
        """Close the file. Call it once."""
        os.close(self._descriptor)


def _write(descriptor: int, data: bytes, *, sync: bool = True) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[system.write(descriptor, rest) :]
    if sync:
        system.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Wait until the names of the files in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        system.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Yield a new folder, removed at the end, or by a later process if this one is killed."""
    with tempfile.TemporaryDirectory(prefix=prefix) as name:
        mark = mark_in_use(Path(name))
        try:
            yield Path(name)
        finally:
            os.close(mark)


def mark_in_use(folder: Path) -> int:
    """Mark a temporary folder as used, until the returned descriptor is closed.

    Folders of this user whose processes have ended are removed.
    """
    mark, hidden = folder / _MARK, folder / f"{_MARK}-{os.urandom(6).hex()}"
    descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with suppress(OSError):  # without locks, nothing is ever removed
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        hidden.replace(mark)  # other processes find it only when it is locked
    except BaseException:
        os.close(descriptor)
        raise
    # `Path.glob` raises if a folder is removed meanwhile.
    for each in map(Path, iglob(f"{escape(tempfile.gettempdir())}/*/{_MARK}")):  # noqa: PTH207
        if _is_abandoned(each):
            shutil.rmtree(each.parent, ignore_errors=True)
    return descriptor


def is_marked(folder: Path) -> bool:
    """Return True if a folder has a mark of any process."""
    return (folder / _MARK).exists()


def _is_abandoned(mark: Path) -> bool:
    """Return True if a mark is this user's and no process has locked it."""
    try:
        descriptor = os.open(mark, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # it is gone, or another user's
        return False
    try:
        if os.fstat(descriptor).st_uid != os.getuid():
            return False
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
