"""Limits on files: the kind and size of a file that is read, and the number of open files.

A file that others can write may be a pipe, a device, or huge. Reading it could block or fill the
memory, so opening such a file raises `OSError`. An error in the content of a file is a
`ValueError`. Sockets count as open files; a process may usually have 1,024 of them.
"""

from __future__ import annotations

import errno
import os
import re
import resource
import stat
import tomllib
from pathlib import Path
from typing import IO, Any, Final

from seqgc.errors import ParameterError

_MAX_TOML_BYTES: Final = 2**18  # enough for more than a thousand models
_MAX_DOTS: Final = 6


def open_bounded(path: str | Path, *, most_bytes: int) -> IO[bytes]:
    """Open a regular file of at most ``most_bytes`` bytes for reading.

    Raises `OSError` if the file is absent, is not regular, or is too large.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # the name has a zero byte
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    try:
        _check(os.fstat(descriptor), str(path), most_bytes)
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "rb")


def _check(about: os.stat_result, path: str, most_bytes: int) -> None:
    if stat.S_ISDIR(about.st_mode):  # the error of `os.fdopen` would not have the path
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(about.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", path)
    if about.st_size > most_bytes:
        reason = f"it has {about.st_size} bytes, and at most {most_bytes} are allowed"
        raise OSError(errno.EINVAL, reason, path)


def read_bounded(path: str | Path, *, most_bytes: int) -> bytes:
    """Return the content of a regular file; raise the errors of `open_bounded`."""
    with open_bounded(path, most_bytes=most_bytes) as file:
        return file.read(most_bytes)


def parse_toml(data: bytes) -> dict[str, Any]:
    """Return the content of a TOML file; raise `ValueError` if the content is not valid.

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
    # The time and memory to parse a key grow with the square of the number of its parts.
    if any(part.count(".") > _MAX_DOTS for part in re.split(r"[\n,={}\[\]]", text)):
        raise ValueError(f"a name has more than {_MAX_DOTS} dots")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return the content of a TOML file; raise the errors of `open_bounded` and `parse_toml`."""
    return parse_toml(read_bounded(path, most_bytes=_MAX_TOML_BYTES))


# ---- descriptors ---------------------------------------------------------------------------------


def allow_files(wanted: int) -> bool:
    """Increase this process's limit of open files to ``wanted``, if it is lower.

    If the system does not allow ``wanted`` open files, return False.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed == wanted


def require_files(n: int, *, each: int, beside: int) -> None:
    """Increase the limit of open files to ``n * each + beside``.

    ``each`` is the number of files for each of ``n`` workers; ``beside`` is the number of all other
    files.

    Raises
    ------
    ParameterError
        If the system allows fewer open files.
    """
    if not allow_files(files := beside + each * n):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        rule = f"needs {files} open files, and this system allows {most}"
        raise ParameterError("n", rule, n, "raise `ulimit -Hn`, or use fewer workers")
