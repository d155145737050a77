"""Files that are whole or absent; temporary folders that do not outlive their process for long.

A process that is killed leaves its temporary folders behind. Each of ours therefore has a file that
names its owner, and whoever makes the next one removes those whose owner is no more.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_OWNER = ".seqgc-owner-"


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a file that takes the place of ``path`` once the block ends well, and never otherwise.

    `OSError` if the folder is absent or cannot be written to; ``path`` is then as it was.
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
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Yield a new folder that is removed with the block, or later if this process is killed."""
    with tempfile.TemporaryDirectory(prefix=prefix) as name:
        Path(name, f"{_OWNER}{os.getpid()}").touch()
        for mark in Path(tempfile.gettempdir()).glob(f"*/{_OWNER}*"):
            if _is_orphaned(mark):
                shutil.rmtree(mark.parent, ignore_errors=True)
        yield Path(name)


def _is_orphaned(mark: Path) -> bool:
    """Say whether we made this mark, in a process that is no more."""
    try:
        if mark.stat().st_uid == os.getuid():
            os.kill(int(mark.name.removeprefix(_OWNER)), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError):  # gone meanwhile, or none of ours
        pass
    return False
