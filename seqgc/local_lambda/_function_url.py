"""The function's URL: an HTTP request to an event (payload format 2.0), an answer to a response."""

from __future__ import annotations

import base64
import json
import time
import uuid
from typing import Any
from urllib.parse import parse_qs, unquote

from seqgc.local_lambda._function import Function
from seqgc.local_lambda._function_settings import ACCOUNT
from seqgc.local_lambda._http_server import Request, Response
from seqgc.local_lambda._invoke_api import is_signed, retry_after

__all__ = ["FunctionUrl"]

_JSON = (("Content-Type", "application/json"),)
_TEXTUAL = ("text/", "application/json", "application/javascript", "application/xml")
_DOMAIN_ID = "local"


class FunctionUrl:
    """Answers whatever is sent to the URL, if it is signed (authorization type AWS_IAM)."""

    def __init__(self, function: Function) -> None:
        self._function = function

    async def respond(self, request: Request) -> Response:
        """Answer one request."""
        if not is_signed(request):
            return Response(status=403, headers=_JSON, body=b'{"Message":"Forbidden"}')
        if request.body is None:
            body = b'{"Message":"Request Entity Too Large"}'
            return Response(status=413, headers=_JSON, body=body)
        settings = self._function.settings
        event = _event(request, region=settings.deployed.region)
        outcome = await self._function.invoke(json.dumps(event).encode())
        if outcome is None:
            headers = (*_JSON, *retry_after(settings.retry_after_s))
            return Response(status=429, headers=headers, body=b'{"Message":"Rate Exceeded."}')
        identity = ("x-amzn-RequestId", outcome.request_id)
        if outcome.answer.failed:
            return _bad_gateway(identity, "text/plain")
        return _response(outcome.answer.body, identity)


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
    # A large answer is not parsed to find that out.
    described = json.loads(body) if b'"statusCode"' in body else None
    if not (isinstance(described, dict) and "statusCode" in described):
        return Response(headers=(identity, *_JSON), body=body)
    try:
        headers = {str(k).lower(): str(v) for k, v in (described.get("headers") or {}).items()}
        headers.setdefault("content-type", "application/json")
        cookies = [("set-cookie", str(cookie)) for cookie in described.get("cookies") or ()]
        return Response(
            status=int(described["statusCode"]),
            headers=(identity, *headers.items(), *cookies),
            body=_content(described),
        )
    except (TypeError, ValueError, AttributeError):
        return _bad_gateway(identity, "application/json")


def _content(described: dict[str, Any]) -> bytes:
    content = described.get("body", "")
    text = content if isinstance(content, str) else json.dumps(content)
    encoded = described.get("isBase64Encoded")
    return base64.b64decode(text, validate=True) if encoded else text.encode()


def _bad_gateway(identity: tuple[str, str], content_type: str) -> Response:
    headers = (identity, ("Content-Type", content_type))
    return Response(status=502, headers=headers, body=b"Internal Server Error")
