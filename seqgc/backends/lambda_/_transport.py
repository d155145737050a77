"""What carries invocations to Lambda and their answers back: protocol, limits, and replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from seqgc.errors import ParameterError

__all__ = ["Body", "Limits", "Reply", "Transport"]

Body: TypeAlias = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a transport allows one invocation, and all of them together.

    Parameters
    ----------
    timeout_s
        The function's own time-out, seconds.
    grace_s
        How much longer than that an answer is waited for, seconds: that the function's time is up
        is for the service to say, and no transport guesses it first.
    connect_timeout_s
        For a connection to be made, seconds. With transports that use threads, `Transport.close`
        may take as long if one hangs.
    connections
        Most invocations at once: at least the workers and their outstanding stragglers. What
        exceeds it waits its turn.
    max_answer_bytes
        A longer answer is an error; the default is more than the service lets through.

    Raises
    ------
    ParameterError
        If one of them is not positive; ``grace_s`` may be 0.

    Examples
    --------
    >>> Limits(timeout_s=60.0).answer_s
    70.0
    """

    timeout_s: float = 900.0
    grace_s: float = 10.0
    connect_timeout_s: float = 5.0
    connections: int = 1024
    max_answer_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        for argument in ("timeout_s", "connect_timeout_s"):
            if not getattr(self, argument) > 0:
                raise ParameterError(argument, "must be > 0 seconds", getattr(self, argument))
        if not self.grace_s >= 0:
            raise ParameterError("grace_s", "must be >= 0 seconds", self.grace_s)
        for argument in ("connections", "max_answer_bytes"):
            if getattr(self, argument) < 1:
                raise ParameterError(argument, "must be >= 1", getattr(self, argument))

    @property
    def answer_s(self) -> float:
        """How long an answer is waited for, seconds."""
        return self.timeout_s + self.grace_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What became of the invocation ``tag``, known at ``at`` (seconds on the master's clock).

    Either a ``body``, whose memory is the transport's again at the next `Transport.poll`, or the
    ``error`` in one line. ``throttled``: the service refused it for now, and no function saw it, so
    the very same invocation can be submitted again, but not within ``retry_after_s`` seconds.
    """

    tag: int
    at: float
    body: Body | None = None
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
