"""Reading again what a network file system, or another machine's cache, has shown half of.

NFS (and so EFS) promises that a file opened after its writer closed it is seen whole. Attributes
and pages that a client has cached may be older for a moment, and a file replaced under an open
handle is stale (ESTALE). All of that passes within a second; damage does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

from seqgc.errors import StoreError

__all__ = ["PAUSES_S", "Pause", "with_rereads"]

Pause: TypeAlias = Callable[[float], None]
_Read = TypeVar("_Read")

PAUSES_S: Final = (0.02, 0.1, 0.5)
"""Seconds before each further reading."""


def with_rereads(
    read: Callable[[], _Read], *, what: str, remedy: str, pause: Pause = time.sleep
) -> _Read:
    """Return what ``read`` returns, which is called again, after a pause, while it raises.

    Parameters
    ----------
    read
        Raises `FileNotFoundError` for what is not there, which is not asked for again: it was
        complete before anybody could know its name.
    what, remedy
        For the error's one line.
    pause
        Waits for so many seconds.

    Raises
    ------
    FileNotFoundError
        From ``read``.
    StoreError
        If all readings failed; has the last one's cause.

    Examples
    --------
    >>> readings = iter(["", "ab", "abc"])
    >>> def read():
    ...     if len(text := next(readings)) < 3:
    ...         raise ValueError("is cut short")
    ...     return text
    >>> with_rereads(read, what="a.txt", remedy="write it again", pause=lambda seconds: None)
    'abc'
    """
    pauses = iter(PAUSES_S)
    while True:
        try:
            return read()
        except FileNotFoundError:
            raise
        except Exception as error:  # a damaged header makes numpy's parser raise nearly anything
            if (seconds := next(pauses, None)) is None:
                reason = " ".join(str(error).split())
                raise StoreError(f"{what} cannot be used: {reason} ({remedy})") from error
            pause(seconds)
