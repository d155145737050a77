"""The bodies of Lambda's errors: those that a function's answer says, and those of the API."""

from __future__ import annotations

import json
import signal

from seqgc.local_lambda._function_settings import MAX_RESPONSE_BYTES
from seqgc.local_lambda._http_server import Response

__all__ = [
    "api_error",
    "exited",
    "retry_after",
    "scripted",
    "time_is_up",
    "timed_out",
    "too_large",
]


def api_error(
    status: int,
    type_: str,
    message: str,
    *,
    reason: str = "",
    headers: tuple[tuple[str, str], ...] = (),
) -> Response:
    """Return a response that AWS's clients raise as the exception ``type_``."""
    fields = {"Type": "User", "Message": message, "message": message}
    if reason:
        fields["Reason"] = reason
    headers = (("Content-Type", "application/json"), ("x-amzn-ErrorType", type_), *headers)
    return Response(status=status, headers=headers, body=json.dumps(fields).encode())


def retry_after(seconds: int) -> tuple[tuple[str, str], ...]:
    """Return the headers that ask a throttled caller to wait; none if it need not."""
    return (("Retry-After", str(seconds)),) if seconds else ()


def time_is_up(timeout_s: float) -> str:
    """Return what AWS says about a time-out.

    Examples
    --------
    >>> time_is_up(3)
    'Task timed out after 3.00 seconds'
    """
    return f"Task timed out after {timeout_s:.2f} seconds"


def timed_out(request_id: str, timeout_s: float) -> bytes:
    """Return the answer of a function that was stopped at its time-out."""
    return _body("Sandbox.Timedout", f"RequestId: {request_id} Error: {time_is_up(timeout_s)}")


def exited(request_id: str, code: int) -> bytes:
    """Return the answer of a function whose process ended; a negative code is a signal's.

    Examples
    --------
    >>> exited("id", -9)[-64:]
    b'RequestId: id Error: Runtime exited with error: signal: killed"}'
    """
    how = "Runtime exited without providing a reason"
    if code > 0:
        how = f"Runtime exited with error: exit status {code}"
    elif code < 0:
        how = (
            f"Runtime exited with error: signal: {(signal.strsignal(-code) or str(-code)).lower()}"
        )
    return _body("Runtime.ExitError", f"RequestId: {request_id} Error: {how}")


def too_large() -> bytes:
    """Return the answer of a function whose response is longer than Lambda carries."""
    return _body(
        "Function.ResponseSizeTooLarge",
        "Response payload size exceeded maximum allowed payload size "
        f"({MAX_RESPONSE_BYTES} bytes).",
    )


def scripted(request_id: str) -> bytes:
    """Return the answer of a function that a fault plan has fail."""
    return _body("ScriptedFault", f"RequestId: {request_id} Error: scripted fault")


def _body(type_: str, message: str) -> bytes:
    fields = {"errorType": type_, "errorMessage": message}
    return json.dumps(fields, separators=(",", ":")).encode()
