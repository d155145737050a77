"""Short ways to say what happened in a run, and to start what is to be interrupted."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from unittest import mock

import numpy as np

from seqgc import _durable
from seqgc.errors import SeqgcError
from seqgc.ports import Decoding, Dispatched, FloatArray

SOAK = bool(os.environ.get("SEQGC_SOAK"))
"""Whether to count as far as the claims do; else a little way, every time."""

Handler = Callable[[int, FrameType | None], object] | signal.Handlers | int | None


@contextmanager
def interrupts(handler: Handler = signal.default_int_handler) -> Iterator[None]:
    """Let Ctrl-C be handled so, and have every process that is started meanwhile hear signals.

    What a shell runs in the background (``make test &``) ignores Ctrl-C, what ``nohup`` runs the
    terminal's end, and so does all that these start: to be ignored is inherited, to have a
    handler is not.
    """
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, handler),
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    }
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)


@contextmanager
def system_calls(system: object) -> Iterator[None]:
    """Let ``system`` stand for ``os`` in all calls that make a run's files last.

    Those are ``write``, ``fsync`` and ``replace``: a disk that is full, slow, or looked at. No file
    system that fails when it is told to can be had without privileges.
    """
    with mock.patch.object(_durable, "system", system):
        yield


def most_bytes(*, anew: bool = False) -> int:
    """Return the most resident memory that this process has had, or has, if it is set back."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(kilobytes)


def children(pid: int) -> list[int]:
    """Return the processes that a process has started (none where there is no /proc)."""
    found: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread, or the process, ended meanwhile
            found += map(int, tasks.read_text().split())
    return found


def at_some_pace(check: Callable[[float], None], *units_s: float) -> None:
    """Have a check of what comes before what hold with times that grow, until once it does.

    It speaks of time limits and what is done within them. A machine that has much else to do does
    less in a second, but no more needs a longer time: the last of the ``units_s`` must do.
    """
    for unit_s in units_s[:-1]:
        try:
            return check(unit_s)
        except (AssertionError, SeqgcError) as error:
            print(f"not with {unit_s:g} s: {error}")
    return check(units_s[-1])


def decoded(job: int) -> Decoding:
    """The decoding of a gradient that somebody else has added up."""
    return Decoding(job=job, terms=())


def left(
    round: int, n: int, *, at: float, attempt: int = 0, loads: float | FloatArray = 0.5
) -> Dispatched:
    """The tasks of all of n workers left at one instant."""
    return Dispatched(
        round=round,
        attempt=attempt,
        workers=tuple(range(n)),
        left_at=(at,) * n,
        loads=np.broadcast_to(loads, (n,)),
    )
