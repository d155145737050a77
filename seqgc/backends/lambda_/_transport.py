"""What carries invocations to Lambda and their answers back: protocol, limits, and replies."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import msgspec

from seqgc.errors import ParameterError, one_line, require_int

__all__ = ["Body", "Limits", "Reply", "Transport", "connection_error", "reply_of"]

Body: TypeAlias = bytes | bytearray | memoryview

_LINE_CHARACTERS: Final = 500
_SECONDS = re.compile("[0-9]{1,9}")  # of a date, HTTP's other form, Lambda makes no use
_PLATFORM = ("START ", "END ", "REPORT ", "INIT_", "XRAY ", "RequestId:")

_REMEDIES = {
    403: "may the caller invoke it? `seqgc doctor` says",
    404: "deploy it, or name another function, alias or region",
    413: "use a store for weights and results, or a narrower payload",
}


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
            value = require_int(argument, getattr(self, argument), least=1)
            object.__setattr__(self, argument, value)

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
    ``ran`` says whether a function has: True, and it has ended; False, the service refused it;
    None, no answer says so, since a connection has broken, or a service in between: it may run on.
    ``died`` says that the function's process ended in the middle of the invocation.
    """

    tag: int
    at: float
    body: Body | None = None
    error: str = ""
    throttled: bool = False
    retry_after_s: float = 0.0
    ran: bool | None = True
    died: bool = False


class Transport(Protocol):
    """Carries invocations; never sends one twice, and decides nothing.

    Not thread-safe, but for `wake`: one master's loop calls it. Each submitted tag comes back in
    exactly one `Reply`, unless `close` comes first.
    """

    def submit(self, tag: int, body: bytes) -> None:
        """Invoke the function with ``body``; returns at once, perhaps before that has left.

        Raises `seqgc.errors.WorkerError` if the transport is closed.
        """

    def flush(self) -> None:
        """Return once what was submitted has left, or after a second: then it leaves later."""

    def poll(self, timeout_s: float) -> Sequence[Reply]:
        """Return the replies that have come, in order of time; wait for one if there is none."""

    def wake(self) -> None:
        """Have `poll` return, now or the next time; any thread may call it, even after `close`."""

    def close(self) -> None:
        """Abandon what is on its way, within about a second; leave no thread and no socket."""


# ---- what a response means ----------------------------------------------------------------------


def reply_of(tag: int, at: float, status: int, body: Body, headers: Mapping[str, str]) -> Reply:
    """Return what an HTTP response means; what went wrong in one line, with its remedy.

    Four headers are read (names in lower case): that the function failed, the tail of its log in
    base64, the service's name of an error, and how many seconds to wait.
    """
    if headers.get("x-amz-function-error"):
        fields = _fields(body)
        error = _function_error(fields, headers.get("x-amz-log-result", ""))
        died = fields.errorType == "Runtime.ExitError"
        return Reply(tag=tag, at=at, error=_line(error), died=died)
    if 200 <= status < 300:
        return Reply(tag=tag, at=at, body=body)
    fields, start = _fields(body), bytes(body[:200]).decode(errors="replace")
    message = fields.Message or fields.message or start
    head = f"HTTP {status} {headers.get('x-amzn-errortype', '')}".rstrip()
    parts = [f"{head}: {message}" if message else head, fields.Reason, _REMEDIES.get(status)]
    retry_after = headers.get("retry-after", "")
    return Reply(
        tag=tag,
        at=at,
        error=_line("; ".join(str(part) for part in parts if part)),
        throttled=status == 429,
        ran=False if 400 <= status < 500 and status != 408 else None,  # which is a proxy's
        retry_after_s=float(retry_after) if _SECONDS.fullmatch(retry_after) else 0.0,
    )


def connection_error(error: BaseException) -> str:
    """Return why no response came, of whatever library the error is."""
    return _line(f"{type(error).__name__}: {error}")


def _function_error(fields: _Fields, log_tail: str) -> str:
    """Return a function's error, and the last line that it logged itself."""
    parts = [str(part) for part in (fields.errorType, fields.errorMessage) if part]
    error = ": ".join(parts) or "the function failed without a word"
    try:
        text = base64.b64decode(log_tail, validate=True).decode(errors="replace")
    except (binascii.Error, ValueError):
        return error
    lines = [line.strip() for line in text.splitlines()]
    own = [line for line in lines if line and not line.startswith(_PLATFORM)]
    return f"{error}; last log line: {own[-1]}" if own else error


_Word: TypeAlias = str | int | float | None


class _Fields(msgspec.Struct):
    """What is read of an error's JSON object; of all else in it no object is made."""

    errorType: _Word = None
    errorMessage: _Word = None
    Message: _Word = None
    message: _Word = None
    Reason: _Word = None


_ERROR = msgspec.json.Decoder(_Fields)


def _fields(body: Body) -> _Fields:
    try:
        return _ERROR.decode(body)
    except (ValueError, RecursionError):
        return _Fields()


def _line(text: str) -> str:
    return one_line(text, limit=_LINE_CHARACTERS)
