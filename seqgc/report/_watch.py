"""`watch`: write a page again and again while its run goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from seqgc.errors import no_run
from seqgc.runs import LOG

__all__ = ["watch"]

_PAUSE_S: Final = 1.0
_SHARE: Final = 4  # a page is made for at most one part of so many of the time


def watch(
    folder: Path,
    make: Callable[[], bool],
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Call ``make`` at once, and each time the log of a run has grown, until it returns True.

    A log grows when a round closes. Between two calls there is a second at least, and four times
    as long as the last call took: a page takes longer as its run goes on.

    Raises
    ------
    ParameterError
        If the log is not there any more.
    """
    seen = _size(folder)
    while True:
        began = clock()
        if make():
            return
        pause_s = max(_PAUSE_S, _SHARE * (clock() - began))
        sleep(pause_s)
        while (size := _size(folder)) == seen:
            sleep(_PAUSE_S)
        seen = size


def _size(folder: Path) -> int:
    try:
        return (folder / LOG).stat().st_size
    except OSError as error:
        raise no_run(folder, f"{LOG}: {error.strerror}") from None
