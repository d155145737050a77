"""The function's URL: an HTTP request to an event (payload format 2.0), an answer to a response."""

from __future__ import annotations

import base64
import binascii
import json
import time
import uuid
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

from seqgc.local_lambda._error_bodies import retry_after
from seqgc.local_lambda._function import Function
from seqgc.local_lambda._function_settings import ACCOUNT
from seqgc.local_lambda._http_server import Request, Response
from seqgc.local_lambda._invoke_api import is_signed

__all__ = ["FunctionUrl", "event_of", "response_of"]

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
            return Response(
                status=413, headers=_JSON, body=b'{"Message":"Request Entity Too Large"}'
            )
        settings = self._function.settings
        event = event_of(request, region=settings.region)
        outcome = await self._function.invoke(json.dumps(event).encode())
        if outcome is None:
            headers = (*_JSON, *retry_after(settings.retry_after_s))
            return Response(status=429, headers=headers, body=b'{"Message":"Rate Exceeded."}')
        identity = ("x-amzn-RequestId", outcome.request_id)
        if outcome.failed:
            headers = (identity, ("Content-Type", "text/plain"))
            return Response(status=502, headers=headers, body=b"Internal Server Error")
        return response_of(outcome.body, identity=identity)


def event_of(request: Request, *, region: str) -> dict[str, Any]:
    """Return the event that Lambda makes of a request."""
    headers = {name: value for name, value in request.headers.items() if name != "cookie"}
    domain = f"{_DOMAIN_ID}.lambda-url.{region}.on.aws"
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
            "domainName": domain,
            "domainPrefix": _DOMAIN_ID,
            "http": {
                "method": request.method,
                "path": unquote(request.path),
                "protocol": "HTTP/1.1",
                "sourceIp": request.peer,
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
    if pairs := parse_qsl(request.query, keep_blank_values=True):
        event["queryStringParameters"] = _joined(pairs)
    if request.body:
        event |= _body_of(request.body, headers.get("content-type", ""))
    return event


def response_of(body: bytes | bytearray, *, identity: tuple[str, str]) -> Response:
    """Return the response that Lambda makes of a function's answer.

    An object with a status code is a response by itself; any other JSON is a body.
    """
    described = _described(body)
    if described is None:
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
        return Response(status=502, headers=(identity, *_JSON), body=b"Internal Server Error")


def _described(body: bytes | bytearray) -> Mapping[str, Any] | None:
    if b'"statusCode"' not in body:  # a large answer is not parsed to find that out
        return None
    answer = json.loads(body)
    return answer if isinstance(answer, dict) and "statusCode" in answer else None


def _content(described: Mapping[str, Any]) -> bytes:
    content = described.get("body", "")
    text = content if isinstance(content, str) else json.dumps(content)
    return (
        base64.b64decode(text, validate=True) if described.get("isBase64Encoded") else text.encode()
    )


def _body_of(body: bytearray, content_type: str) -> dict[str, Any]:
    if content_type.lower().startswith(_TEXTUAL):
        try:
            return {"body": body.decode("utf-8"), "isBase64Encoded": False}
        except UnicodeDecodeError:
            pass
    return {"body": binascii.b2a_base64(body, newline=False).decode(), "isBase64Encoded": True}


def _joined(pairs: list[tuple[str, str]]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for name, value in pairs:
        joined[name] = f"{joined[name]},{value}" if name in joined else value
    return joined
