"""What lasts of a worker whose functions come and go, and what is known of each of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from seqgc.backends._owed import Owed, TaskKey
from seqgc.wire import StayMessage, TaskMessage

__all__ = ["Place", "Stay"]

_MAX_FAILED_STARTS = 3  # in a row: then tasks fail at once, and starts are tried less often
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0  # between starts that fail


@dataclass(slots=True, kw_only=True, eq=False)
class Stay:
    """One invocation, from when it is made until its function has ended."""

    tag: int
    worker: int
    call: bytes
    message: StayMessage
    began: float
    ready: bool = False
    leaving: bool = False
    asked: bool = False
    handed_back: bool = False
    refusals: int = 0  # by throttling, in a row
    owed: Owed = field(default_factory=Owed)
    requests: dict[TaskKey, TaskMessage] = field(default_factory=dict)  # of what is owed, or late


@dataclass(slots=True, kw_only=True, eq=False)
class Place:
    """What lasts of a worker when its function is replaced."""

    coming: Stay | None = None
    serving: Stay | None = None
    asked: list[Stay] = field(default_factory=list)
    held: dict[TaskKey, TaskMessage] = field(default_factory=dict)  # to be sent, in order
    invocations: int = 0
    failed_starts: int = 0  # in a row
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

    def start_failed(self, cause: str, *, at: float) -> None:
        """Take note that a function ended before it was ready: the next may wait."""
        self.failed_starts += 1
        self.cause = cause
        wait_s = _FIRST_WAIT_S * 2.0 ** min(self.failed_starts - 1, 10)
        self.start_at = at + min(wait_s, _LONGEST_WAIT_S)
