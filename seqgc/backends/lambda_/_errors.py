"""One line for whatever went wrong with an invocation, with the remedy where there is one."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping

from seqgc.backends.lambda_._transport import Body, Reply

__all__ = ["connection_error", "function_error", "read_whole", "reply_of", "service_error"]

_LINE_CHARACTERS = 500
_SECONDS = re.compile("[0-9]{1,9}")  # of a date, HTTP's other form, Lambda makes no use
_PLATFORM = ("START ", "END ", "REPORT ", "INIT_", "XRAY ", "RequestId:")

_REMEDIES = {
    403: "may the caller invoke it? `seqgc doctor` says",
    404: "deploy it, or name another function, alias or region",
    413: "use a store for weights and results, or a narrower payload",
}


def reply_of(
    tag: int,
    at: float,
    status: int,
    body: Body,
    headers: Mapping[str, str],
) -> Reply:
    """Return what an HTTP response means.

    Parameters
    ----------
    tag, at
        Of the reply.
    status, body, headers
        Of the response; the headers' names are in lower case. Four of them are read: that the
        function failed, the tail of its log in base64, the service's name of an error, and how many
        seconds to wait.

    Examples
    --------
    >>> reply_of(1, 0.0, 200, b"{}", {}).body
    b'{}'
    >>> refused = reply_of(1, 0.0, 429, b'{"message": "Rate Exceeded."}', {"retry-after": "2"})
    >>> refused.throttled, refused.retry_after_s
    (True, 2.0)
    """
    if headers.get("x-amz-function-error"):
        error = function_error(body, headers.get("x-amz-log-result", ""))
        return Reply(tag=tag, at=at, error=error)
    if 200 <= status < 300:
        return Reply(tag=tag, at=at, body=body)
    retry_after = headers.get("retry-after", "")
    return Reply(
        tag=tag,
        at=at,
        error=service_error(status, body, headers.get("x-amzn-errortype", "")),
        throttled=status == 429,
        retry_after_s=float(retry_after) if _SECONDS.fullmatch(retry_after) else 0.0,
    )


def read_whole(read: Callable[[int], bytes], *, max_bytes: int) -> bytes:
    """Return the body that ``read(count)`` gives pieces of, at most ``count`` bytes each.

    Raises
    ------
    ConnectionError
        If it is longer than ``max_bytes``; no more than that has been read.

    Examples
    --------
    >>> from io import BytesIO
    >>> read_whole(BytesIO(b"{}").read, max_bytes=6)
    b'{}'
    """
    body = read(max_bytes + 1)
    while len(body) <= max_bytes and (piece := read(max_bytes + 1 - len(body))):
        body += piece
    if len(body) > max_bytes:
        raise ConnectionError(f"the answer has more than {max_bytes} bytes")
    return body


def function_error(body: Body, log_tail: str) -> str:
    r"""Return why a function failed: its error, and the last line that it logged.

    Examples
    --------
    >>> body = b'{"errorType": "KeyError", "errorMessage": "no model"}'
    >>> log = base64.b64encode(b"START x\nloading cnn\nEND x\nREPORT x").decode()
    >>> function_error(body, log)
    'KeyError: no model; last log line: loading cnn'
    """
    fields = _object(body)
    kind, message = fields.get("errorType"), fields.get("errorMessage")
    error = ": ".join(str(part) for part in (kind, message) if part)
    error = error or "the function failed without a word"
    line = _last_line(log_tail)
    return _line(f"{error}; last log line: {line}" if line else error)


def service_error(status: int, body: Body, code: str = "") -> str:
    """Return why the service did not invoke the function, or did not bring its answer.

    Examples
    --------
    >>> service_error(404, b'{"Message": "Function not found: f"}', "ResourceNotFoundException")
    'HTTP 404 ResourceNotFoundException: Function not found: f; deploy it, or name another function, alias or region'
    """  # noqa: E501
    fields = _object(body)
    start = bytes(body[:200]).decode(errors="replace")
    message = fields.get("Message") or fields.get("message") or start
    reason = fields.get("Reason")
    head = f"HTTP {status} {code}".rstrip()
    parts = [f"{head}: {message}" if message else head, reason, _REMEDIES.get(status)]
    return _line("; ".join(str(part) for part in parts if part))


def connection_error(error: BaseException) -> str:
    """Return why no response came, of whatever library the error is."""
    return _line(f"{type(error).__name__}: {error}")


def _last_line(log_tail: str) -> str:
    try:
        text = base64.b64decode(log_tail, validate=True).decode(errors="replace")
    except (binascii.Error, ValueError):
        return ""
    lines = [line.strip() for line in text.splitlines()]
    own = [line for line in lines if line and not line.startswith(_PLATFORM)]
    return own[-1] if own else ""


def _object(body: Body) -> dict[str, object]:
    try:
        value = json.loads(bytes(body))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LINE_CHARACTERS else line[: _LINE_CHARACTERS - 1] + "…"
