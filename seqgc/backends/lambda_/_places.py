"""What lasts of a worker whose functions come and go, and what is known of each of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from seqgc.backends._owed import Owed, TaskKey
from seqgc.wire import StayMessage, TaskMessage

__all__ = ["Place", "Stay", "task_key"]

_MAX_FAILED_STARTS = 3  # in a row: then tasks fail at once, and starts are tried less often
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0  # between starts that fail
_LONGEST_VAIN_S = 10.0  # between those that are of no use


@dataclass(slots=True, kw_only=True, eq=False)
class Stay:
    """One invocation, from when it is made until its function has ended."""

    tag: int
    worker: int
    call: bytes
    message: StayMessage
    began: float
    ready: bool = False
    answered: bool = False  # a task, at least
    leaving: bool = False
    asked: bool = False
    handed_back: bool = False
    refusals: int = 0  # by throttling, in a row
    owed: Owed = field(default_factory=Owed)
    requests: dict[TaskKey, TaskMessage] = field(default_factory=dict)  # of what is owed, or late

    def owe(self, request: TaskMessage) -> None:
        """Take note that a task was sent."""
        key = task_key(request)
        self.owed.tasks.add(key)
        self.requests[key] = request

    def cancel(self, round: int) -> bool:
        """Owe nothing of a round any more; return whether any of it had been sent."""
        sent = self.owed.cancel(round)
        known = self.owed.tasks.union(self.owed.late)
        self.requests = {key: each for key, each in self.requests.items() if key in known}
        return sent

    def hand_back(self, keeps: Sequence[TaskKey]) -> dict[TaskKey, TaskMessage]:
        """Owe no more than it ``keeps``; return the other tasks, in order."""
        self.handed_back = True
        back = sorted(self.owed.tasks.difference(map(tuple, keeps)))
        self.owed.tasks.difference_update(back)
        return {key: self.requests.pop(key) for key in back}


@dataclass(slots=True, kw_only=True, eq=False)
class Place:
    """What lasts of a worker when its function is replaced."""

    coming: Stay | None = None
    serving: Stay | None = None
    asked: list[Stay] = field(default_factory=list)
    held: dict[TaskKey, TaskMessage] = field(default_factory=dict)  # to be sent, in order
    invocations: int = 0
    failed_starts: int = 0  # in a row
    vain: int = 0  # functions in a row that were ready, and ended before they had answered anything
    cause: str = ""  # of the last failed start
    start_at: float = -math.inf  # not before

    @property
    def lacks(self) -> bool:
        """Whether a function is to be invoked."""
        return self.coming is None and (self.serving is None or self.serving.leaving)

    @property
    def hopeless(self) -> bool:
        """Whether tasks had better fail than wait for the next function."""
        return self.serving is None and self.failed_starts >= _MAX_FAILED_STARTS

    def stays(self) -> list[Stay]:
        """Return all functions that there are, the serving one last."""
        there = (*self.asked, self.coming, self.serving)
        return [each for each in there if each is not None]

    def due_at(self, patience_s: float) -> float:
        """When a start is due, or has taken too long; infinity if there is nothing to do."""
        if self.lacks:
            return self.start_at
        return math.inf if self.coming is None else self.coming.began + patience_s

    def start_failed(self, cause: str, *, at: float) -> None:
        """Take note that a function ended before it was ready: the next may wait."""
        self.failed_starts += 1
        self.cause = cause
        self.start_at = at + _wait_s(self.failed_starts, _LONGEST_WAIT_S)

    def served_nobody(self, *, at: float) -> None:
        """Take note that a function ended that was ready and had answered nothing.

        The next one after the first such starts at once, as after any; others may wait: each is
        paid for, and nobody hears of one that was asked for nothing.
        """
        self.vain += 1
        if self.vain > 1:
            self.start_at = at + _wait_s(self.vain - 1, _LONGEST_VAIN_S)


def _wait_s(times: int, longest_s: float) -> float:
    return min(_FIRST_WAIT_S * 2.0 ** min(times - 1, 10), longest_s)


def task_key(request: TaskMessage) -> TaskKey:
    """Return a task's round and attempt."""
    return request.task.round, request.task.attempt
