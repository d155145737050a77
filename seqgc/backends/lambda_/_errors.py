"""One line for whatever went wrong with an invocation, with the remedy where there is one."""

from __future__ import annotations

import base64
import binascii
import json
import re

from seqgc.backends.lambda_._transport import Reply

__all__ = ["connection_error", "function_error", "reply_of", "service_error"]

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
    body: bytes | bytearray,
    *,
    function_error_kind: str = "",
    log_tail: str = "",
    code: str = "",
    retry_after: str = "",
) -> Reply:
    """Return what an HTTP response means.

    Parameters
    ----------
    tag, at
        Of the reply.
    status, body
        Of the response.
    function_error_kind, log_tail
        Its headers X-Amz-Function-Error and X-Amz-Log-Result (base64).
    code
        The service's name of the error, for other statuses than 200.
    retry_after
        Its header Retry-After, seconds.

    Examples
    --------
    >>> reply_of(1, 0.0, 200, b"{}").body
    b'{}'
    >>> refused = reply_of(1, 0.0, 429, b'{"message": "Rate Exceeded."}', retry_after="2")
    >>> refused.throttled, refused.retry_after_s
    (True, 2.0)
    """
    if function_error_kind:
        return Reply(tag=tag, at=at, error=function_error(body, log_tail))
    if 200 <= status < 300:
        return Reply(tag=tag, at=at, body=body)
    return Reply(
        tag=tag,
        at=at,
        error=service_error(status, body, code),
        throttled=status == 429,
        retry_after_s=float(retry_after) if _SECONDS.fullmatch(retry_after) else 0.0,
    )


def function_error(body: bytes | bytearray, log_tail: str) -> str:
    r"""Return why a function failed: its error, and the last line that it logged.

    Examples
    --------
    >>> body = b'{"errorType": "KeyError", "errorMessage": "no model"}'
    >>> log = base64.b64encode(b"START x\nloading cnn\nEND x\nREPORT x").decode()
    >>> function_error(body, log)
    'KeyError: no model; last log line: loading cnn'
    """
    told = _object(body)
    kind, message = told.get("errorType"), told.get("errorMessage")
    error = ": ".join(str(part) for part in (kind, message) if part)
    error = error or "the function failed without a word"
    line = _last_line(log_tail)
    return _line(f"{error}; last log line: {line}" if line else error)


def service_error(status: int, body: bytes | bytearray, code: str = "") -> str:
    """Return why the service did not invoke the function, or did not bring its answer.

    Examples
    --------
    >>> service_error(404, b'{"Message": "Function not found: f"}', "ResourceNotFoundException")
    'HTTP 404 ResourceNotFoundException: Function not found: f; deploy it, or name another function, alias or region'
    """  # noqa: E501
    told = _object(body)
    message = told.get("Message") or told.get("message") or body[:200].decode(errors="replace")
    reason = told.get("Reason")
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
    told = [line for line in lines if line and not line.startswith(_PLATFORM)]
    return told[-1] if told else ""


def _object(body: bytes | bytearray) -> dict[str, object]:
    try:
        told = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LINE_CHARACTERS else line[: _LINE_CHARACTERS - 1] + "…"
