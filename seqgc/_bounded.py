"""Reading what others have written: regular files of a bounded size, and whatever is in them.

A pipe would be waited for, a device has no end, a link leads anywhere, and a few bytes can stand
for gigabytes. So sizes are asked for first, no link is followed where others may write, and all
that can be wrong is an `OSError` of the file or a `ValueError` of what it says, each in one line.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

_MOST_TOML_BYTES: Final = 2**18  # more than a thousand models take
_MOST_DOTS: Final = 6


def open_bounded(path: str | Path, *, most_bytes: int, folder: int | None = None) -> IO[bytes]:
    """Open a regular file for reading; `OSError` if it is absent, another thing, or larger.

    With the handle of its ``folder`` that is where it is looked for, and it may be no link.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        if folder is None:
            descriptor = os.open(path, flags)
        else:
            descriptor = open_unlinked(Path(path), flags, folder=folder)
    except ValueError as error:  # no name of a file has a zero byte
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    try:
        _check(os.fstat(descriptor), str(path), most_bytes)
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def open_unlinked(path: Path, flags: int, *, folder: int) -> int:
    """Open what has the path's name in the folder of a handle, unless it is a link.

    `OSError`, which names the path and says if it is one.
    """
    try:
        return os.open(path.name, flags | os.O_NOFOLLOW, dir_fd=folder)
    except OSError as error:
        if _is_link(path.name, folder):  # Linux says of one that is to be a folder: it is none
            raise OSError(errno.ELOOP, "it is a link", str(path)) from None
        error.filename = str(path)
        raise


def _is_link(name: str, folder: int) -> bool:
    with suppress(OSError):
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    return False


def _check(about: os.stat_result, path: str, most_bytes: int) -> None:
    if stat.S_ISDIR(about.st_mode):  # `os.fdopen` would name its number, and leave it open
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", path)
    if about.st_size > most_bytes:
        reason = f"it has {about.st_size} bytes, and may have {most_bytes}"
        raise OSError(errno.EINVAL, reason, path)


def read_bounded(path: str | Path, *, most_bytes: int, folder: int | None = None) -> bytes:
    """Return what is in a regular file; takes and raises what `open_bounded` does."""
    with open_bounded(path, most_bytes=most_bytes, folder=folder) as file:
        return file.read(most_bytes)


def parse_toml(data: bytes) -> dict[str, Any]:
    """Return what a TOML file says; `ValueError` for whatever is wrong with it.

    Examples
    --------
    >>> parse_toml(b"steps = 3")
    {'steps': 3}
    >>> parse_toml(b"a = " + b"[" * 10_000)
    Traceback (most recent call last):
        ...
    ValueError: nested too deeply
    """
    text = data.decode()
    # A key takes the square of the number of its parts, in seconds and in bytes.
    if any(part.count(".") > _MOST_DOTS for part in re.split(r"[\n,={}\[\]]", text)):
        raise ValueError(f"a name has more than {_MOST_DOTS} dots")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return what a TOML file says; raises like `open_bounded` and `parse_toml`."""
    return parse_toml(read_bounded(path, most_bytes=_MOST_TOML_BYTES))
