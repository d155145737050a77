"""How many files a process may have open: sockets are files, and the usual limit is 1,024."""

from __future__ import annotations

import resource

__all__ = ["allow_files"]


def allow_files(wanted: int) -> bool:
    """Let this process have so many files open; False if the system allows fewer, as many then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed == wanted
