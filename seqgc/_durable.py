"""Files that are whole or absent: temporary name, fsync, rename, fsync of the folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

__all__ = ["replacing"]


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that takes the place of ``path`` once the block ends well, and never otherwise.

    Raises
    ------
    OSError
        If the folder is absent or cannot be written to; ``path`` is then as it was.

    Examples
    --------
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name, "a.txt")
    >>> with replacing(path) as file:
    ...     _ = file.write(b"whole")
    >>> path.read_bytes(), os.listdir(folder.name)
    (b'whole', ['a.txt'])
    >>> folder.cleanup()
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
