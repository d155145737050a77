"""Lambda's two ways to call a function: its Invoke API, and the function's URL.

The Invoke API is POST /2015-03-31/functions/{function}/invocations, and beside it GET
/2015-03-31/functions/{function}/aliases/{alias}, GetAlias. The URL makes an event of an
HTTP request (payload format 2.0), and of the function's answer a response.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
import uuid
from typing import Any
from urllib.parse import parse_qs, unquote

from seqgc.local_lambda._function import Function, Outcome
from seqgc.local_lambda._function_settings import ACCOUNT, MAX_EVENT_BYTES, MAX_REQUEST_BYTES
from seqgc.local_lambda._http_server import JSON, Request, Response, json_response
from seqgc.local_lambda._versions import Versions

__all__ = ["FunctionUrl", "InvokeApi"]

_TAIL_BYTES = 4096  # of a log, as much as a header carries
_PATH = re.compile(r"/2015-03-31/functions/([^/]+)/(?:invocations|aliases/([^/]+))/?\Z")
_FUNCTION = re.compile(  # a name, or a whole or partial resource name; with a qualifier or without
    r"(?:(?:arn:aws[a-z-]*:lambda:[a-z0-9-]+:)?(?P<account>\d{12}):function:)?"
    r"(?P<name>[A-Za-z0-9_-]+)(?::(?P<qualifier>[A-Za-z0-9_$-]+))?\Z"
)
_TEXTUAL = ("text/", "application/json", "application/javascript", "application/xml")
# With these a function could end its own response early, and begin one for whoever asks next.
_OF_CONNECTIONS = frozenset(
    ("connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade")
)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")  # what a header's name is (RFC 9110, 5.6.2)
_DOMAIN_ID = "local"
_FORBIDDEN = json_response(403, {"Message": "Forbidden"})


class InvokeApi:
    """Answers what boto3's ``invoke`` and ``get_alias`` send."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._background: set[asyncio.Task[Outcome | None]] = set()

    def refusal(self, request: Request) -> Response | None:
        """Return what a request is told whose head does not name the service's key."""
        if "authorization" not in request.headers:
            return _refuse(403, "MissingAuthenticationToken", "Missing Authentication Token")
        if self._versions.newest.settings.keys.is_named(request):
            return None
        message = "The security token included in the request is invalid"
        return _refuse(403, "UnrecognizedClient", message)

    async def respond(self, request: Request) -> Response:
        """Answer one request."""
        match, settings = _PATH.match(request.path), self._versions.newest.settings
        if match is None or request.method != ("GET" if match[2] else "POST"):
            return _refuse(404, "UnknownOperation", f"no operation {request.path}")
        kind = request.headers.get("x-amz-invocation-type", "RequestResponse")
        if request.body is None:  # nor can it be told who has signed it
            return _too_large(kind)
        if not settings.keys.has_signed(request):
            message = "The request signature does not match, or is older than five minutes"
            return _refuse(403, "InvalidSignature", message)
        name = unquote(match[1])
        if match[2]:
            return self._alias(name, unquote(match[2]))
        if (meant := self._version(name, request.query)) is None:
            return self._not_found(name)
        version, function = meant
        if (refusal := _refusal(request.body, kind)) is not None:
            return refusal
        if kind == "DryRun":
            return Response(status=204, headers=(_identity(),))
        body, context = request.body or b"{}", _client_context(request)
        if kind == "Event":  # nobody waits for it, and it is not tried again
            answering = function.invoke(body, client_context=context, patient=True)
            task = asyncio.get_running_loop().create_task(answering)
            self._background.add(task)
            task.add_done_callback(self._background.discard)
            return Response(status=202, headers=(_identity(),))
        outcome = await function.invoke(body, client_context=context)
        return self._response(outcome, version, tail=request.headers.get("x-amz-log-type"))

    def close(self) -> None:
        """Give up what nobody waits for."""
        for task in self._background:
            task.cancel()

    def _alias(self, name: str, alias: str) -> Response:
        """Return what an alias means."""
        deployed = self._versions.newest.settings.deployed
        if alias not in deployed.aliases or self._qualifier(name) != "":
            return self._not_found(f"{name}:{alias}")
        version, arn = self._versions.current, f"{deployed.arn}:{alias}"
        fields = {"AliasArn": arn, "Name": alias, "FunctionVersion": version}
        return json_response(200, fields, _identity())

    def _version(self, name: str, query: str) -> tuple[str, Function] | None:
        """Return the version that a request means; None if there is no such function."""
        if (qualifier := self._qualifier(name)) is None:
            return None
        return self._versions.named(qualifier or parse_qs(query).get("Qualifier", ["$LATEST"])[0])

    def _qualifier(self, name: str) -> str | None:
        """Return what is in a function's name, empty if nothing is; None if it is another's."""
        match = _FUNCTION.match(name)
        if match is None or match["account"] not in (None, ACCOUNT):
            return None
        known = self._versions.newest.settings.deployed.function_name
        return match["qualifier"] or "" if match["name"] == known else None

    def _not_found(self, name: str) -> Response:
        where = self._versions.newest.settings.deployed.arn.rpartition(":")[0]
        return _refuse(404, "ResourceNotFound", f"Function not found: {where}:{name}")

    def _response(self, outcome: Outcome | None, version: str, *, tail: str | None) -> Response:
        if outcome is None:
            reason = "ReservedFunctionConcurrentInvocationLimitExceeded"
            wait = _retry_after(self._versions.newest.settings.retry_after_s)
            return _refuse(429, "TooManyRequests", "Rate Exceeded.", *wait, reason=reason)
        identity = _identity(outcome.request_id)
        headers = [identity, *JSON, ("X-Amz-Executed-Version", version)]
        if outcome.answer.failed:
            headers.append(("X-Amz-Function-Error", "Unhandled"))
        if tail == "Tail":
            log = base64.b64encode(outcome.log[-_TAIL_BYTES:]).decode("ascii")
            headers.append(("X-Amz-Log-Result", log))
        return Response(headers=headers, body=outcome.answer.body)


class FunctionUrl:
    """Answers whatever is sent to the URL, if it is signed (authorization type AWS_IAM)."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions

    def refusal(self, request: Request) -> Response | None:
        """Return what a request is told whose head does not name the service's key."""
        return None if self._versions.newest.settings.keys.is_named(request) else _FORBIDDEN

    async def respond(self, request: Request) -> Response:
        """Answer one request."""
        function = self._versions.newest
        settings = function.settings
        if request.body is None:
            return json_response(413, {"Message": "Request Entity Too Large"})
        if not settings.keys.has_signed(request):
            return _FORBIDDEN
        event = _event(request, region=settings.deployed.region)
        outcome = await function.invoke(json.dumps(event).encode())
        if outcome is None:
            wait = _retry_after(settings.retry_after_s)
            return json_response(429, {"Message": "Rate Exceeded."}, *wait)
        identity = _identity(outcome.request_id)
        if outcome.answer.failed:
            return _bad_gateway(identity, "text/plain")
        return _response(outcome.answer.body, identity)


def _retry_after(seconds: int) -> tuple[tuple[str, str], ...]:
    """Return the headers that ask a throttled caller to wait; none if it need not."""
    return (("Retry-After", str(seconds)),) if seconds else ()


def _refusal(body: bytearray, kind: str) -> Response | None:
    if len(body) > _limit(kind):
        return _too_large(kind)
    if kind not in ("RequestResponse", "Event", "DryRun"):
        return _refuse(400, "InvalidParameterValue", f"no invocation type {kind}")
    try:
        json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        message = f"Could not parse request body into json: {error}"
        return _refuse(400, "InvalidRequestContent", message)
    return None


def _limit(kind: str) -> int:
    return MAX_EVENT_BYTES if kind == "Event" else MAX_REQUEST_BYTES


def _too_large(kind: str) -> Response:
    message = f"Request must be smaller than {_limit(kind)} bytes for the InvokeFunction operation"
    return _refuse(413, "RequestEntityTooLarge", message)


def _client_context(request: Request) -> str:
    """Return the JSON of the client context, which the API takes in base64."""
    try:
        text = base64.b64decode(request.headers.get("x-amz-client-context", ""), validate=True)
        return text.decode("ascii")
    except ValueError:
        return ""


def _identity(request_id: str = "") -> tuple[str, str]:
    return "x-amzn-RequestId", request_id or str(uuid.uuid4())


def _refuse(
    status: int, kind: str, message: str, *headers: tuple[str, str], reason: str = ""
) -> Response:
    """Return a response that AWS's clients raise as the exception ``<kind>Exception``."""
    fields = {"Type": "User", "Message": message, "message": message}
    if reason:
        fields["Reason"] = reason
    return json_response(status, fields, ("x-amzn-ErrorType", f"{kind}Exception"), *headers)


def _event(request: Request, *, region: str) -> dict[str, Any]:
    """Return the event that Lambda makes of a request."""
    headers = {name: value for name, value in request.headers.items() if name != "cookie"}
    now = time.time()
    event: dict[str, Any] = {
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": unquote(request.path),
        "rawQueryString": request.query,
        "headers": headers,
        "requestContext": {
            "accountId": ACCOUNT,
            "apiId": _DOMAIN_ID,
            "authorizer": {"iam": {"accountId": ACCOUNT}},
            "domainName": f"{_DOMAIN_ID}.lambda-url.{region}.on.aws",
            "domainPrefix": _DOMAIN_ID,
            "http": {
                "method": request.method,
                "path": unquote(request.path),
                "protocol": "HTTP/1.1",
                "sourceIp": "127.0.0.1",  # where alone the server listens
                "userAgent": headers.get("user-agent", ""),
            },
            "requestId": str(uuid.uuid4()),
            "routeKey": "$default",
            "stage": "$default",
            "time": time.strftime("%d/%b/%Y:%H:%M:%S +0000", time.gmtime(now)),
            "timeEpoch": int(1e3 * now),
        },
        "isBase64Encoded": False,
    }
    if cookies := request.headers.get("cookie"):
        event["cookies"] = [cookie.strip() for cookie in cookies.split(";")]
    if values := parse_qs(request.query, keep_blank_values=True):
        event["queryStringParameters"] = {name: ",".join(each) for name, each in values.items()}
    if request.body:
        event |= _encoded(request.body, headers.get("content-type", ""))
    return event


def _encoded(body: bytearray, content_type: str) -> dict[str, Any]:
    if content_type.lower().startswith(_TEXTUAL):
        try:
            return {"body": body.decode("utf-8"), "isBase64Encoded": False}
        except UnicodeDecodeError:
            pass
    return {"body": base64.b64encode(body).decode(), "isBase64Encoded": True}


def _response(body: bytes | bytearray, identity: tuple[str, str]) -> Response:
    """Return the response that Lambda makes of a function's answer.

    An object with a status code is a response by itself; any other JSON is a body.
    """
    try:
        # A large answer is not parsed to find that out.
        description = json.loads(body) if b'"statusCode"' in body else None
        if not (isinstance(description, dict) and "statusCode" in description):
            return Response(headers=(identity, *JSON), body=body)
        headers = {str(k).lower(): str(v) for k, v in (description.get("headers") or {}).items()}
        headers.setdefault("content-type", "application/json")
        cookies = [("set-cookie", str(cookie)) for cookie in description.get("cookies") or ()]
        own = [each for each in headers.items() if _is_own(each[0])]
        if not 200 <= (status := int(description["statusCode"])) <= 599:
            raise ValueError(status)
        return Response(
            status=status, headers=(identity, *own, *cookies), body=_content(description)
        )
    except (TypeError, ValueError, OverflowError, AttributeError, RecursionError):
        return _bad_gateway(identity, "application/json")


def _is_own(name: str) -> bool:
    """Whether a header may be a function's: of "content-length: 0" a client would see another."""
    return _TOKEN.fullmatch(name) is not None and name not in _OF_CONNECTIONS


def _content(description: dict[str, Any]) -> bytes:
    content = description.get("body", "")
    text = content if isinstance(content, str) else json.dumps(content)
    encoded = description.get("isBase64Encoded")
    return base64.b64decode(text, validate=True) if encoded else text.encode()


def _bad_gateway(identity: tuple[str, str], content_type: str) -> Response:
    headers = (identity, ("Content-Type", content_type))
    return Response(status=502, headers=headers, body=b"Internal Server Error")
