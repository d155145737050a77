"""The process of the service: Lambda's Invoke API and the function URL.

The Invoke API is POST /2015-03-31/functions/{function}/invocations. The operation GetAlias is GET
/2015-03-31/functions/{function}/aliases/{alias}. The function URL converts an HTTP request to an
event (payload format 2.0), and the function's answer to an HTTP response.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import socket
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import parse_qs, unquote

from seqgc._bounded import allow_files
from seqgc.local_lambda._function import Function, Outcome, Versions
from seqgc.local_lambda._http_server import JSON, HttpServer, Request, Response, json_response
from seqgc.local_lambda._parent import Parent
from seqgc.local_lambda._settings import (
    ACCOUNT,
    MAX_EVENT_BYTES,
    MAX_REQUEST_BYTES,
    ServiceSettings,
)

_STRANGERS = 256  # limit of connections without admission, in addition to two per environment
_IDLE_S = 900.0  # clients use a connection again in later rounds
_TAIL_BYTES = 4096  # the part of a log that a header contains
_PATH = re.compile(r"/2015-03-31/functions/([^/]+)/(?:invocations|aliases/([^/]+))/?\Z")
_FUNCTION = re.compile(  # a name, or a full or partial ARN, with or without a qualifier
    r"(?:(?:arn:aws[a-z-]*:lambda:[a-z0-9-]+:)?(?P<account>\d{12}):function:)?"
    r"(?P<name>[A-Za-z0-9_-]+)(?::(?P<qualifier>[A-Za-z0-9_$-]+))?\Z"
)
_TEXTUAL = ("text/", "application/json", "application/javascript", "application/xml")
# With these headers, a function could end its response early and forge the next response.
_OF_CONNECTIONS = frozenset(
    ("connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade")
)
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")  # the name of a header (RFC 9110, 5.6.2)
_DOMAIN_ID = "local"
_FORBIDDEN = json_response(403, {"Message": "Forbidden"})


def main() -> None:
    """Serve until the control connection closes. Its descriptor is the only argument."""
    control: Connection = Connection(int(sys.argv[1]))
    try:
        settings: ServiceSettings = control.recv()
    except (OSError, EOFError):  # the caller ended before it had sent the settings
        return
    sys.path[:] = settings.search
    allow_files(2 * settings.descriptors + 2 * _STRANGERS)  # leave enough if strangers connect
    ours, theirs = socket.socketpair()
    if (pid := os.fork()) == 0:
        control.close()
        ours.close()
        Parent(theirs, settings).run()
    theirs.close()
    try:
        asyncio.run(_serve(control, ours, settings))
    finally:
        with suppress(OSError):  # the parent has already ended
            ours.shutdown(socket.SHUT_RDWR)  # the parent ends, after all its environments
        os.waitpid(pid, 0)
        control.close()


async def _serve(control: Connection, channel: socket.socket, settings: ServiceSettings) -> None:
    """Serve until the caller closes the control connection, or the parent process ends."""
    over = asyncio.Event()
    versions = Versions(settings, channel, on_loss=over.set)
    invoke_api, function_url = InvokeApi(versions), FunctionUrl(versions)
    questions: dict[str, Callable[..., object]] = {
        "log": versions.log,
        "publish": versions.publish,
        "statistics": versions.statistics,
    }
    strangers = 2 * settings.concurrency + _STRANGERS
    api, url = (
        HttpServer(
            each.respond,
            refusal=each.refusal,
            max_body_bytes=MAX_REQUEST_BYTES,
            strangers=strangers,
            idle_s=_IDLE_S,
        )
        for each in (invoke_api, function_url)
    )

    def answer_question() -> None:
        try:
            question, arguments = control.recv()
            control.send(questions[question](*arguments))
        except (OSError, EOFError):
            loop.remove_reader(control.fileno())
            over.set()

    loop = asyncio.get_running_loop()
    try:
        ports = await api.start(), await url.start()
        with suppress(OSError):  # the caller has ended
            control.send(ports)
            loop.add_reader(control.fileno(), answer_question)
            await over.wait()
    finally:
        for closing in (api, url, invoke_api, versions):
            closing.close()


class InvokeApi:
    """The operations ``invoke`` and ``get_alias`` of boto3's Lambda client."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self._background: set[asyncio.Task[Outcome | None]] = set()

    def refusal(self, request: Request) -> Response | None:
        """Return an error response if the head does not name the service's key, else None."""
        if "authorization" not in request.headers:
            return _refuse(403, "MissingAuthenticationToken", "Missing Authentication Token")
        if self._versions.newest.settings.keys.is_named(request):
            return None
        message = "The security token included in the request is invalid"
        return _refuse(403, "UnrecognizedClient", message)

    async def respond(self, request: Request) -> Response:
        match, settings = _PATH.match(request.path), self._versions.newest.settings
        if match is None or request.method != ("GET" if match[2] else "POST"):
            return _refuse(404, "UnknownOperation", f"no operation {request.path}")
        kind = request.headers.get("x-amz-invocation-type", "RequestResponse")
        if request.body is None:  # without the body, the signature cannot be checked
            return _too_large(kind)
        if not settings.keys.has_signed(request):
            message = "The request signature does not match, or is older than five minutes"
            return _refuse(403, "InvalidSignature", message)
        name = unquote(match[1])
        if match[2]:
            return self._alias(name, unquote(match[2]))
        if (named := self._version(name, request.query)) is None:
            return self._not_found(name)
        version, function = named
        if (refusal := _refusal(request.body, kind)) is not None:
            return refusal
        if kind == "DryRun":
            return Response(status=204, headers=(_identity(),))
        body, context = request.body or b"{}", _client_context(request)
        if kind == "Event":  # the caller does not wait for the answer; failures are not retried
            answering = function.invoke(body, client_context=context, patient=True)
            task = asyncio.get_running_loop().create_task(answering)
            self._background.add(task)
            task.add_done_callback(self._background.discard)
            return Response(status=202, headers=(_identity(),))
        outcome = await function.invoke(body, client_context=context)
        return self._response(outcome, version, tail=request.headers.get("x-amz-log-type"))

    def close(self) -> None:
        """Cancel the asynchronous invocations (type Event)."""
        for task in self._background:
            task.cancel()

    def _alias(self, name: str, alias: str) -> Response:
        """Return the version number that an alias refers to."""
        deployed = self._versions.newest.settings.deployed
        if alias not in deployed.aliases or self._qualifier(name) != "":
            return self._not_found(f"{name}:{alias}")
        version, arn = self._versions.current, f"{deployed.arn}:{alias}"
        fields = {"AliasArn": arn, "Name": alias, "FunctionVersion": version}
        return json_response(200, fields, _identity())

    def _version(self, name: str, query: str) -> tuple[str, Function] | None:
        """Return the version that a request names, or None if it does not exist."""
        if (qualifier := self._qualifier(name)) is None:
            return None
        return self._versions.named(qualifier or parse_qs(query).get("Qualifier", ["$LATEST"])[0])

    def _qualifier(self, name: str) -> str | None:
        """Return the qualifier in a function's name, which may be empty.

        Return None if the name is that of another function.
        """
        match = _FUNCTION.match(name)
        if match is None or match["account"] not in (None, ACCOUNT):
            return None
        own = self._versions.newest.settings.deployed.function_name
        return match["qualifier"] or "" if match["name"] == own else None

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
    """The function URL, whose requests must be signed (authorization type AWS_IAM)."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions

    def refusal(self, request: Request) -> Response | None:
        """Return an error response if the head does not name the service's key, else None."""
        return None if self._versions.newest.settings.keys.is_named(request) else _FORBIDDEN

    async def respond(self, request: Request) -> Response:
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
    """Return the headers that tell a throttled caller to wait; for 0 seconds, no headers."""
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
    """Return the client context, which is JSON in base64, or an empty text if it is invalid."""
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
    """Return the event for a request to the function URL."""
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
                "sourceIp": "127.0.0.1",  # the server listens on no other interface
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
    """Return the HTTP response for a function's answer.

    If the answer is a JSON object with a status code, it describes the response. Any other answer
    is the body of the response.
    """
    try:
        # Large answers usually have no status code, and are not parsed.
        description = json.loads(body) if b'"statusCode"' in body else None
        if not (isinstance(description, dict) and "statusCode" in description):
            return Response(headers=(identity, *JSON), body=body)
        headers = {str(k).lower(): str(v) for k, v in (description.get("headers") or {}).items()}
        headers.setdefault("content-type", "application/json")
        cookies = [("set-cookie", str(cookie)) for cookie in description.get("cookies") or ()]
        allowed = [each for each in headers.items() if _is_allowed(each[0])]
        if not 200 <= (status := int(description["statusCode"])) <= 599:
            raise ValueError(status)
        headers_sent = (identity, *allowed, *cookies)
        return Response(status=status, headers=headers_sent, body=_content(description))
    except (TypeError, ValueError, OverflowError, AttributeError, RecursionError):
        return _bad_gateway(identity, "application/json")


def _is_allowed(name: str) -> bool:
    """Return True if a function may set a header of this name."""
    return _TOKEN.fullmatch(name) is not None and name not in _OF_CONNECTIONS


def _content(description: dict[str, Any]) -> bytes:
    content = description.get("body", "")
    text = content if isinstance(content, str) else json.dumps(content)
    encoded = description.get("isBase64Encoded")
    return base64.b64decode(text, validate=True) if encoded else text.encode()


def _bad_gateway(identity: tuple[str, str], content_type: str) -> Response:
    headers = (identity, ("Content-Type", content_type))
    return Response(status=502, headers=headers, body=b"Internal Server Error")


if __name__ == "__main__":
    main()
