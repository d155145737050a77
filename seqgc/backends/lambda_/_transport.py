"""What carries invocations to Lambda and their answers back: the protocol, and what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from seqgc.errors import ParameterError

__all__ = ["MAX_BODY_BYTES", "READ_GRACE_S", "Reply", "Transport", "check_connections"]

MAX_BODY_BYTES = 6 * 1024 * 1024
"""Lambda's limit on a synchronous invocation's payload, and on its answer's (service quotas)."""

READ_GRACE_S: Final = 10.0
"""How much longer than the function may take its answer is waited for, seconds.

The service says that the function's time is up; no transport guesses it first.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What became of the invocation ``tag``, known at ``at`` (seconds on the master's clock).

    Either a ``body``, whose memory is the transport's again at the next `Transport.poll`, or the
    ``error`` in one line. ``throttled``: the service refused it for now, and no function saw it, so
    the very same invocation can be submitted again, but not within ``retry_after_s`` seconds.
    """

    tag: int
    at: float
    body: bytes | bytearray | None = None
    error: str = ""
    throttled: bool = False
    retry_after_s: float = 0.0


class Transport(Protocol):
    """Carries invocations; never sends one twice, and decides nothing.

    Not thread-safe, but for `wake`: one master's loop calls it. Each submitted tag comes back in
    exactly one `Reply`, unless `close` comes first.
    """

    def submit(self, tag: int, body: bytes) -> None:
        """Invoke the function with ``body``; returns at once, perhaps before that has left."""

    def flush(self) -> None:
        """Return once what was submitted has left, or after a second: then it leaves later."""

    def poll(self, timeout_s: float) -> Sequence[Reply]:
        """Return the replies that have come, in order of time; wait for one if there is none."""

    def wake(self) -> None:
        """Have `poll` return, now or the next time; any thread may call it, even after `close`."""

    def close(self) -> None:
        """Abandon what is on its way, within about a second; leave no thread and no socket."""


def check_connections(connections: int) -> None:
    """Refuse a number of connections that is none.

    Raises
    ------
    ParameterError
        If it is not positive.
    """
    if connections < 1:
        raise ParameterError("connections", "must be >= 1", connections)
