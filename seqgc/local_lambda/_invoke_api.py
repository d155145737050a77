"""Lambda's Invoke API: POST /2015-03-31/functions/{function}/invocations."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import uuid
from urllib.parse import parse_qs, unquote

from seqgc.local_lambda._function import Function, Outcome
from seqgc.local_lambda._function_settings import ACCOUNT, MAX_EVENT_BYTES, MAX_REQUEST_BYTES
from seqgc.local_lambda._http_server import Request, Response

__all__ = ["InvokeApi", "is_signed", "retry_after"]

_TAIL_BYTES = 4096  # of a log, as much as a header carries
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
        self._background: set[asyncio.Task[Outcome | None]] = set()

    async def respond(self, request: Request) -> Response:
        """Answer one request."""
        if (match := _PATH.match(request.path)) is None or request.method != "POST":
            return _error(404, "UnknownOperationException", f"no operation {request.path}")
        if not is_signed(request):
            message = "Missing Authentication Token"
            return _error(403, "MissingAuthenticationTokenException", message)
        name = unquote(match[1])
        if (version := self._version(name, request.query)) is None:
            arn = f"{self._function.settings.deployed.arn.rpartition(':')[0]}:{name}"
            return _error(404, "ResourceNotFoundException", f"Function not found: {arn}")
        kind = request.headers.get("x-amz-invocation-type", "RequestResponse")
        if (refusal := _refusal(request.body, kind)) is not None:
            return refusal
        if kind == "DryRun":
            return Response(status=204, headers=(_identity(),))
        body, context = request.body or b"{}", _client_context(request)
        if kind == "Event":  # nobody waits for it, and it is not tried again
            invoked = self._function.invoke(body, client_context=context, patient=True)
            task = asyncio.get_running_loop().create_task(invoked)
            self._background.add(task)
            task.add_done_callback(self._background.discard)
            return Response(status=202, headers=(_identity(),))
        outcome = await self._function.invoke(body, client_context=context)
        return self._response(outcome, version, tail=request.headers.get("x-amz-log-type"))

    def close(self) -> None:
        """Give up what nobody waits for."""
        for task in self._background:
            task.cancel()

    def _version(self, named: str, query: str) -> str | None:
        """Return the version that a request means; None if there is no such function."""
        deployed = self._function.settings.deployed
        match = _FUNCTION.match(named)
        if match is None or match["name"] != deployed.function_name:
            return None
        if match["account"] not in (None, ACCOUNT):
            return None
        qualifier = match["qualifier"] or parse_qs(query).get("Qualifier", ["$LATEST"])[0]
        if qualifier == "$LATEST":
            return qualifier
        return "1" if qualifier in deployed.aliases else None

    def _response(self, outcome: Outcome | None, version: str, *, tail: str | None) -> Response:
        if outcome is None:
            return _error(
                429,
                "TooManyRequestsException",
                "Rate Exceeded.",
                reason="ReservedFunctionConcurrentInvocationLimitExceeded",
                headers=retry_after(self._function.settings.retry_after_s),
            )
        headers = [
            _identity(outcome.request_id),
            ("Content-Type", "application/json"),
            ("X-Amz-Executed-Version", version),
        ]
        if outcome.answer.failed:
            headers.append(("X-Amz-Function-Error", "Unhandled"))
        if tail == "Tail":
            log = base64.b64encode(outcome.log[-_TAIL_BYTES:]).decode("ascii")
            headers.append(("X-Amz-Log-Result", log))
        return Response(headers=headers, body=outcome.answer.body)


def is_signed(request: Request) -> bool:
    """Whether a request carries a signature for Lambda; who signed, and what, is not looked at."""
    return _SIGNED.match(request.headers.get("authorization", "")) is not None


def retry_after(seconds: int) -> tuple[tuple[str, str], ...]:
    """Return the headers that ask a throttled caller to wait; none if it need not."""
    return (("Retry-After", str(seconds)),) if seconds else ()


def _refusal(body: bytearray | None, kind: str) -> Response | None:
    limit = MAX_EVENT_BYTES if kind == "Event" else MAX_REQUEST_BYTES
    if body is None or len(body) > limit:
        message = f"Request must be smaller than {limit} bytes for the InvokeFunction operation"
        return _error(413, "RequestEntityTooLargeException", message)
    if kind not in ("RequestResponse", "Event", "DryRun"):
        return _error(400, "InvalidParameterValueException", f"no invocation type {kind}")
    try:
        json.loads(body or b"{}")
    except ValueError as error:
        message = f"Could not parse request body into json: {error}"
        return _error(400, "InvalidRequestContentException", message)
    return None


def _client_context(request: Request) -> str:
    """Return the JSON of the client context, which the API takes in base64."""
    try:
        text = base64.b64decode(request.headers.get("x-amz-client-context", ""), validate=True)
        return text.decode("ascii")
    except ValueError:
        return ""


def _identity(request_id: str = "") -> tuple[str, str]:
    return "x-amzn-RequestId", request_id or str(uuid.uuid4())


def _error(
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
