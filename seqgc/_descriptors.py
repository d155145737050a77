"""How many files a process may have open: sockets are files, and the usual limit is 1,024."""

from __future__ import annotations

import resource

from seqgc.errors import ParameterError

__all__ = ["allow_files", "require_files"]


def allow_files(wanted: int) -> bool:
    """Let this process have so many files open; False if the system allows fewer, as many then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed == wanted


def require_files(n: int, *, each: int, beside: int) -> None:
    """Let this process have ``each`` files open for each of ``n`` workers, and some ``beside``.

    Raises
    ------
    ParameterError
        If the system allows fewer; it names the number that is needed.
    """
    if not allow_files(files := beside + each * n):
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        rule = f"needs {files} open files, of which this system allows {most}"
        raise ParameterError("n", rule, n, "raise `ulimit -Hn`, or take fewer workers")
