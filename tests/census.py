"""What a run holds while it goes on: bytes, descriptors, threads, files, and its processes'."""

from __future__ import annotations

import gc
import os
import threading
import tracemalloc
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from seqgc.ports import Action, Dispatch, Event, Seen
from tests.kit import children

COMES_AND_GOES = 3


def no_more(first: dict[str, int], last: dict[str, int]) -> bool:
    """Say if descriptors, threads and files have not grown.

    A checkpoint being written, or a file being read, is open at one count and not at another.
    What each second round leaves behind is more than that between counts ten rounds apart.
    """
    held = first.keys() - {"kB"}
    return all(last[what] <= first[what] + COMES_AND_GOES for what in held)


class Census:
    """Counts, before some rounds, what this process and a folder hold; an observer of a run.

    Of the process's ``bytes`` it knows what `tracemalloc` is told, and its kilobytes from the
    system; before the rounds of ``family``, each process that it has started, or these have, is
    counted as well. (What is noted of them is not little beside what a round may leave behind.)
    """

    def __init__(
        self, folder: Path, rounds: Collection[int], *, family: Collection[int] = ()
    ) -> None:
        self._folder, self._rounds, self._family = folder, rounds, family
        self.bytes: list[int] = []
        self.own: list[dict[str, int]] = []
        self.others: list[dict[int, dict[str, int]]] = []

    def __call__(self, seen: Seen | Event | Action) -> None:
        if isinstance(seen, Dispatch) and seen.attempt == 0 and seen.round in self._rounds:
            gc.collect()
            threads = {"threads": threading.active_count()}  # the system counts the libraries' too
            self.own.append(_held_by(os.getpid()) | threads)
            self.own[-1]["files"] = len(list(self._folder.rglob("*")))
            if seen.round in self._family:
                self.others.append({})
                for pid in descendants(os.getpid()):
                    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                        self.others[-1][pid] = _held_by(pid)
            self.bytes.append(tracemalloc.get_traced_memory()[0])


class Rounds:
    """Stands for the module ``time``: a second is a round; an observer of the run."""

    def __init__(self) -> None:
        self.begun = 0

    def __call__(self, seen: Seen) -> None:
        self.begun += isinstance(seen, Dispatch) and seen.attempt == 0

    def monotonic(self) -> float:
        return self.begun


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have."""
    return [each for child in children(pid) for each in (child, *descendants(child))]


def _held_by(pid: int) -> dict[str, int]:
    """Return a process's descriptors, threads, and kilobytes that are its own."""
    status = Path(f"/proc/{pid}/status").read_text()
    values = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    return {
        "fd": len(list(Path(f"/proc/{pid}/fd").glob("*"))),
        "threads": int(values["Threads"]),
        "kB": int(values["RssAnon"].split()[0]),
    }
