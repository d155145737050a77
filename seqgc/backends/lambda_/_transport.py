"""The protocol of transports, which send invocations to Lambda, with their limits and replies."""

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
_SECONDS = re.compile("[0-9]{1,9}")  # HTTP also allows a date, which Lambda does not use
_PLATFORM = ("START ", "END ", "REPORT ", "INIT_", "XRAY ", "RequestId:")

_REMEDIES = {
    403: "check the permission to invoke the function with `seqgc doctor`",
    404: "deploy it, or name another function, alias or region",
    413: "use a store for weights and results, or a narrower payload",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a transport.

    Parameters
    ----------
    timeout_s
        The time-out of the function, in seconds.
    grace_s
        Seconds to wait for an answer after this time-out. In this time, the service can report that
        the function ran out of time.
    connect_timeout_s
        Time limit, in seconds, to make a connection.
    connections
        Largest number of invocations at the same time; further invocations wait. It should be at
        least the number of workers plus the number of their unfinished stragglers.
    max_answer_bytes
        Size limit of an answer; a longer answer is an error. The default is more than Lambda
        allows.

    Raises
    ------
    ParameterError
        If a limit is not positive; only ``grace_s`` may be 0.

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
        """The time limit for an answer, in seconds."""
        return self.timeout_s + self.grace_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The outcome of the invocation ``tag``, received at ``at`` (seconds on the master's clock).

    A reply has either a ``body``, which is valid until the next `Transport.poll`, or an ``error``
    of one line.

    - ``throttled``: True if the service refused the invocation because of its load. No function has
      run, so the invocation can be submitted again after ``retry_after_s`` seconds.
    - ``ran``: True if a function ran and has ended, and False if the service refused the
      invocation. None if this is unknown because a connection broke; the function may still run.
    - ``died``: True if the function's process ended during the invocation.
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
    """An object that sends invocations to a function, each at most once, and makes no decisions.

    The thread of the master's loop calls all methods; any thread may call `wake`. For each
    submitted tag there is exactly one `Reply`, unless the transport is closed before.
    """

    def submit(self, tag: int, body: bytes) -> None:
        """Invoke the function with ``body``. Return at once, perhaps before the request is sent.

        Raises `seqgc.errors.WorkerError` if the transport is closed.
        """

    def flush(self) -> None:
        """Wait until all submitted requests have been sent, for at most one second."""

    def poll(self, timeout_s: float) -> Sequence[Reply]:
        """Return the replies that have arrived, in order of time.

        Without replies, wait for a reply or for `wake`, for at most ``timeout_s`` seconds.
        """

    def wake(self) -> None:
        """Make the present or the next `poll` return at once.

        Any thread may call this, even after `close`.
        """

    def close(self) -> None:
        """Abandon all invocations, within about a second.

        Daemon threads may remain until their invocations end.
        """


# ---- reading responses --------------------------------------------------------------------------


def reply_of(tag: int, at: float, status: int, body: Body, headers: Mapping[str, str]) -> Reply:
    """Convert an HTTP response of the service to a reply.

    An error is one line with a remedy. The names of ``headers`` must be in lower case. The function
    reads four of them: the flag that the function failed, the end of its log in base64, the
    service's name for an error, and the seconds to wait.
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
        ran=False if 400 <= status < 500 and status != 408 else None,  # 408 may come from a proxy
        retry_after_s=float(retry_after) if _SECONDS.fullmatch(retry_after) else 0.0,
    )


def connection_error(error: BaseException) -> str:
    """Return the exception of an HTTP library as one line."""
    return _line(f"{type(error).__name__}: {error}")


def _function_error(fields: _Fields, log_tail: str) -> str:
    """Return a function's error, with the last line that the function has logged."""
    parts = [str(part) for part in (fields.errorType, fields.errorMessage) if part]
    error = ": ".join(parts) or "the function failed without a message"
    try:
        text = base64.b64decode(log_tail, validate=True).decode(errors="replace")
    except (binascii.Error, ValueError):
        return error
    lines = [line.strip() for line in text.splitlines()]
    own = [line for line in lines if line and not line.startswith(_PLATFORM)]
    return f"{error}; last log line: {own[-1]}" if own else error


_Word: TypeAlias = str | int | float | None


class _Fields(msgspec.Struct):
    """The fields that are read from the JSON object of an error."""

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
