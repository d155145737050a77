"""Files that survive a crash of the machine, and temporary folders that do not outlive their use.

A durable file is either complete or absent, or bytes are only ever appended to it.

A process that is killed cannot remove its temporary folders. Each folder therefore has a mark, a
file that its process holds locked. Whenever a process makes a temporary folder, it removes all
folders whose mark is no longer locked. A lock is used instead of a process number because other
containers and hosts that share the folder of temporary files also see the lock.
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
    """Let an `OSError` in this block name ``path``, not a temporary file or a descriptor."""
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

    ``check`` is called after the new file is on the disk and before it replaces ``path``. If the
    block or ``check`` raises, ``path`` is unchanged. If the folder is absent or not writable,
    `OSError` is raised. Without ``sync`` the function does not wait for the disk: other processes
    still see the complete new file or the old one, but after a power failure the file may be absent
    or damaged.
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
    """Make a folder and its missing parents, and wait until their names are on the disk.

    If the folder exists or cannot be made, raise `OSError` and remove the new parents.
    """
    absent = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True)
    try:
        for folder in reversed(absent):
            sync_folder(folder.parent)
    except BaseException:
        for folder in absent:
            with suppress(OSError):  # another process may have put a file into it
                folder.rmdir()
        raise


def write_new(path: Path, data: bytes) -> None:
    """Write a new file and wait until its bytes are on the disk.

    The name of the file may not be on the disk before `sync_folder` is called.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with _naming(path):
            _write(descriptor, data)
    finally:
        os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """Rename a file or folder. Call `sync_folder` to wait until the new name is on the disk."""
    system.replace(source, target)


class AppendOnly:
    """A file that only grows. When `append` has returned, its bytes cannot be lost.

    If ``keep_bytes`` is given, an existing file is first cut to this many bytes.

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
        """Write bytes; with ``sync``, wait until these and all earlier bytes are on the disk.

        If writing fails, or a signal handler raises, the file is cut to its previous length.
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

    @property
    def size_bytes(self) -> int:
        """The length of the file."""
        return os.fstat(self._descriptor).st_size

    def _restore(self, size: int) -> None:
        """Write the file again after it was deleted. The open descriptor still gives its content.

        Raises `OSError` if that fails, for example if another file now has the name.
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
    """Yield a new folder and remove it when the block ends.

    If this process is killed, a later process removes the folder.
    """
    with tempfile.TemporaryDirectory(prefix=prefix) as name:
        mark = mark_in_use(Path(name))
        try:
            yield Path(name)
        finally:
            os.close(mark)


def mark_in_use(folder: Path) -> int:
    """Mark a temporary folder as in use until the returned descriptor is closed.

    Also remove this user's temporary folders that no process uses any more.
    """
    mark, hidden = folder / _MARK, folder / f"{_MARK}-{os.urandom(6).hex()}"
    descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with suppress(OSError):  # a file system without locks: its folders are never removed
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        hidden.replace(mark)  # other processes see the mark only after it is locked
    except BaseException:
        os.close(descriptor)
        raise
    # `Path.glob` would raise if another process removed a folder meanwhile.
    for other in map(Path, iglob(f"{escape(tempfile.gettempdir())}/*/{_MARK}")):  # noqa: PTH207
        if _is_abandoned(other):
            shutil.rmtree(other.parent, ignore_errors=True)
    return descriptor


def is_marked(folder: Path) -> bool:
    """Return True if a folder has a mark, whether or not a process still uses the folder."""
    return (folder / _MARK).exists()


def _is_abandoned(mark: Path) -> bool:
    """Return True if a mark belongs to this user and no process has locked it."""
    try:
        descriptor = os.open(mark, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # the mark has been removed, or belongs to another user
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
