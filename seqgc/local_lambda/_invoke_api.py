"""Lambda's Invoke API: POST /2015-03-31/functions/{function}/invocations."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import uuid
from urllib.parse import parse_qs, unquote

from seqgc.local_lambda import _logs
from seqgc.local_lambda._error_bodies import api_error, retry_after
from seqgc.local_lambda._function import Function, Outcome
from seqgc.local_lambda._function_settings import ACCOUNT, MAX_EVENT_BYTES, MAX_REQUEST_BYTES
from seqgc.local_lambda._http_server import Request, Response

__all__ = ["InvokeApi", "is_signed"]

_PATH = re.compile(r"/2015-03-31/functions/([^/]+)/invocations/?\Z")
_FUNCTION = re.compile(  # a name, or a whole or partial resource name; with a qualifier or without
    r"(?:(?:arn:aws[a-z-]*:lambda:[a-z0-9-]+:)?(?P<account>\d{12}):function:)?"
    r"(?P<name>[A-Za-z0-9_-]+)(?::(?P<qualifier>[A-Za-z0-9_$-]+))?\Z"
)
_SIGNED = re.compile(
    r"AWS4-HMAC-SHA256 Credential=[^/]+/\d{8}/[a-z0-9-]+/lambda/aws4_request,.*"
    r"Signature=[0-9a-f]{64}"
)


class InvokeApi:
    """Answers what boto3's ``invoke`` sends."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._settings = function.settings
        self._background: set[asyncio.Task[Outcome | None]] = set()

    async def respond(self, request: Request) -> Response:
        """Answer one request."""
        if (match := _PATH.match(request.path)) is None or request.method != "POST":
            return api_error(404, "UnknownOperationException", f"no operation {request.path}")
        if not is_signed(request):
            return api_error(
                403, "MissingAuthenticationTokenException", "Missing Authentication Token"
            )
        version = self._version(unquote(match[1]), request.query)
        if version is None:
            arn = f"{self._settings.arn.rpartition(':')[0]}:{unquote(match[1])}"
            return api_error(404, "ResourceNotFoundException", f"Function not found: {arn}")
        kind = request.headers.get("x-amz-invocation-type", "RequestResponse")
        if (refusal := _refusal(request.body, kind)) is not None:
            return refusal
        if kind == "DryRun":
            return Response(status=204, headers=_identity(str(uuid.uuid4())))
        if kind == "Event":
            return self._accept(request)
        return await self._wait(request, version)

    async def _wait(self, request: Request, version: str) -> Response:
        outcome = await self._function.invoke(
            request.body or b"{}",
            client_context=_client_context(request),
        )
        if outcome is None:
            return _throttled(self._settings.retry_after_s)
        headers = [
            *_identity(outcome.request_id),
            ("Content-Type", "application/json"),
            ("X-Amz-Executed-Version", version),
        ]
        if outcome.failed:
            headers.append(("X-Amz-Function-Error", "Unhandled"))
        if request.headers.get("x-amz-log-type") == "Tail":
            headers.append(("X-Amz-Log-Result", _logs.tail(outcome.log)))
        return Response(headers=headers, body=outcome.body)

    def _accept(self, request: Request) -> Response:
        """Have the function answer some time; nobody waits for it, and it is not tried again."""
        invoked = self._function.invoke(
            request.body or b"{}",
            client_context=_client_context(request),
            patient=True,
        )
        task = asyncio.get_running_loop().create_task(invoked)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return Response(status=202, headers=_identity(str(uuid.uuid4())))

    def close(self) -> None:
        """Give up what nobody waits for."""
        for task in self._background:
            task.cancel()

    def _version(self, named: str, query: str) -> str | None:
        """Return the version that a request means; None if there is no such function."""
        match = _FUNCTION.match(named)
        if match is None or match["name"] != self._settings.name:
            return None
        if match["account"] not in (None, ACCOUNT):
            return None
        qualifier = match["qualifier"] or parse_qs(query).get("Qualifier", ["$LATEST"])[0]
        if qualifier == "$LATEST":
            return qualifier
        return "1" if qualifier in self._settings.aliases else None


def is_signed(request: Request) -> bool:
    """Whether a request carries a signature for Lambda; who signed, and what, is not looked at."""
    return _SIGNED.match(request.headers.get("authorization", "")) is not None


def _refusal(body: bytearray | None, kind: str) -> Response | None:
    limit = MAX_EVENT_BYTES if kind == "Event" else MAX_REQUEST_BYTES
    if body is None or len(body) > limit:
        message = f"Request must be smaller than {limit} bytes for the InvokeFunction operation"
        return api_error(413, "RequestEntityTooLargeException", message)
    if kind not in ("RequestResponse", "Event", "DryRun"):
        return api_error(400, "InvalidParameterValueException", f"no invocation type {kind}")
    try:
        json.loads(body or b"{}")
    except ValueError as error:
        message = f"Could not parse request body into json: {error}"
        return api_error(400, "InvalidRequestContentException", message)
    return None


def _throttled(retry_after_s: int) -> Response:
    """Return the answer to a request beyond the function's concurrency."""
    return api_error(
        429,
        "TooManyRequestsException",
        "Rate Exceeded.",
        reason="ReservedFunctionConcurrentInvocationLimitExceeded",
        headers=retry_after(retry_after_s),
    )


def _client_context(request: Request) -> str:
    """Return the JSON of the client context, which the API takes in base64."""
    try:
        text = base64.b64decode(request.headers.get("x-amz-client-context", ""), validate=True)
        return text.decode("ascii")
    except ValueError:
        return ""


def _identity(request_id: str) -> tuple[tuple[str, str], ...]:
    return (("x-amzn-RequestId", request_id),)
