"""The entry point for AWS Lambda, which calls `seqgc.worker.FunctionWorker` and logs.

The event of the Invoke API is an envelope (see `seqgc.wire`). The event of a function URL is a
request whose body is an envelope. The reply is an envelope in both cases; a function URL converts
it to a response (status 200, JSON).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from lambda_handlers.gradient_worker._snapshot import register_hooks
from lambda_handlers.gradient_worker._telemetry import Telemetry
from lambda_handlers.gradient_worker.setup import make_worker, wants_trace
from seqgc.errors import WireError

__all__ = ["handler"]

# Made once for each environment, or with SnapStart once for each version.
_telemetry = Telemetry(trace=wants_trace(os.environ))
_worker = make_worker(os.environ)
register_hooks(os.environ)


def handler(event: Mapping[str, Any], context: object) -> dict[str, object]:
    """Answer one invocation.

    Raises
    ------
    WireError
        If the event is not an invocation. Lambda then reports a function error with this message.
    """
    with _telemetry.invocation(context) as log:
        report = _worker.serve(_body(event))
        log(report)
    return dict(report.reply)


def _body(event: Mapping[str, Any]) -> Mapping[str, Any] | str:
    """Return the envelope: the event itself, or the body of a function URL's request."""
    if not isinstance(event, Mapping) or "requestContext" not in event:
        return event
    body = event.get("body")
    if not isinstance(body, str) or event.get("isBase64Encoded"):
        raise WireError("a request's body must be JSON: send content-type application/json")
    return body
