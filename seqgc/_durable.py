"""Files that are whole or absent, or only grow; folders that do not outlive their process long.

A process that is killed leaves its temporary folders behind. Each of ours therefore has a mark, a
file that its process keeps locked, and whoever makes the next folder removes those whose mark is no
longer locked. A lock is seen from other containers and hosts that share the folder of temporary
files, where a process number means nothing.
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

from seqgc._bounded import open_unlinked

_MARK = ".seqgc-in-use"
_PIECE = 1 << 20

system = os
"""Whose calls make files durable; tests put their own here (`tests.kit.system_calls`)."""


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Let an error name a file that a call knows by its descriptor, or by its temporary name."""
    try:
        yield
    except OSError as error:
        named = error.filename
        if error.errno is not None and (
            named is None or str(named).startswith(_temporary(path.name))
        ):
            error.filename, error.filename2 = str(path), None
        raise


def _temporary(name: str) -> str:
    """Return what the name begins with that a file has until it takes another one's place."""
    return f".{name}-"


@contextmanager
def replacing(
    path: Path, *, folder: int | None = None, check: Callable[[], object] = bool
) -> Iterator[IO[bytes]]:
    """Yield a file that takes the place of ``path`` once the block ends well, and never otherwise.

    With the handle of its ``folder`` that is where it is written, wherever its path leads by now.
    It is on the disk when ``check`` is called, which may raise and leave ``path`` as it was.
    `OSError` if the folder is absent or cannot be written to; ``path`` is then as it was.
    """
    with (
        folder_below(path.parent if folder is None else folder) as handle,
        _naming(path),
        replacing_in(handle, path.name, check=check) as file,
    ):
        yield file


@contextmanager
def replacing_in(
    folder: int, name: str, *, sync: bool = True, check: Callable[[], object] = bool
) -> Iterator[IO[bytes]]:
    """Do as `replacing` does, in the folder of an open handle, wherever its path leads by now.

    Without ``sync`` nobody waits for the disk: other processes see all of it or nothing, but after
    a power cut it may be gone, or damaged.
    """
    temporary = f"{_temporary(name)}{os.urandom(6).hex()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            if sync:
                file.flush()
                system.fsync(file.fileno())
        check()
        system.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=folder)
        raise
    if sync:
        system.fsync(folder)


@contextmanager
def folder_below(folder: int | Path, *parts: str, make: bool = False) -> Iterator[int]:
    """Yield the handle of ``folder``, or of one below it, none of whose ``parts`` may be a link.

    With ``make`` those that are not there are made; raises `OSError`, which says what is a link.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY
    handle = os.dup(folder) if isinstance(folder, int) else os.open(folder, flags)
    path = Path() if isinstance(folder, int) else folder
    try:
        for part in parts:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=handle)
            path /= part
            inner = open_unlinked(path, flags, folder=handle)
            os.close(handle)
            handle = inner
        yield handle
    finally:
        os.close(handle)


def make_folder(path: Path) -> None:
    """Make a folder, and those that it is in, and wait until their names are on the disk.

    `OSError` if it is there, or cannot be made; nothing is left then.
    """
    absent = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True)
    try:
        for folder in reversed(absent):
            sync_folder(folder.parent)
    except BaseException:
        for folder in absent:
            with suppress(OSError):  # somebody else's by now
                folder.rmdir()
        raise


def write_new(path: Path, data: bytes) -> None:
    """Write a file that is not there, and wait until its bytes are on the disk, not its name."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with _naming(path):
            _write(descriptor, data)
    finally:
        os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """Give a file or folder another name; `sync_folder` waits until that is on the disk."""
    system.replace(source, target)


class AppendOnly:
    """A file that only grows; what `append` has returned from stays, whatever happens.

    Of what is there the first ``keep_bytes`` stay, all if None.

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
        """Write, and wait until it is on the disk, unless that is for a later call.

        `OSError` if that fails. Nothing of it is left then, or if a signal ends it, as far as the
        disk can still do that.
        """
        before = (status := os.fstat(self._descriptor)).st_size
        if not status.st_nlink:
            self._come_back(before)
        try:
            with _naming(self._path):
                _write(self._descriptor, data, sync=sync)
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self._descriptor, before)
            raise

    def _come_back(self, size: int) -> None:
        """Write the file again, which somebody has removed: all of it is here still.

        `OSError` if it cannot be, as where there is another one by now.
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
        """Close the file; once."""
        os.close(self._descriptor)


def _write(descriptor: int, data: bytes, *, sync: bool = True) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[system.write(descriptor, rest) :]
    if sync:
        system.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Wait until the folder's list of files is on the disk."""
    with folder_below(folder) as handle:
        system.fsync(handle)


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Yield a new folder that is removed with the block, or later if this process is killed."""
    with tempfile.TemporaryDirectory(prefix=prefix) as name:
        mark = mark_in_use(Path(name))
        try:
            yield Path(name)
        finally:
            os.close(mark)


def mark_in_use(folder: Path) -> int:
    """Mark a temporary folder as this process's; return the descriptor that keeps it so.

    Folders of processes that are no more are removed, if they are this user's.
    """
    mark, hidden = folder / _MARK, folder / f"{_MARK}-{os.urandom(6).hex()}"
    descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with suppress(OSError):  # the file system has no locks: then nobody removes anything there
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        hidden.replace(mark)  # it is found by this name once it is locked
    except BaseException:
        os.close(descriptor)
        raise
    # `Path.glob` raises if a folder goes away meanwhile.
    for each in map(Path, iglob(f"{escape(tempfile.gettempdir())}/*/{_MARK}")):  # noqa: PTH207
        if _is_abandoned(each):
            shutil.rmtree(each.parent, ignore_errors=True)
    return descriptor


def is_marked(folder: Path) -> bool:
    """Return whether a folder has a mark, of whichever process."""
    return (folder / _MARK).exists()


def _is_abandoned(mark: Path) -> bool:
    """Return whether a mark is of this user and no process has it locked."""
    try:
        descriptor = os.open(mark, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # gone meanwhile, or another user's
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
