"""An HTTP/1.1 server for Lambda's three APIs, which parses requests with httptools (llhttp).

The requests of one connection are answered one after the other. While the server answers a request,
it does not read the connection.

Any process of this machine may connect. A connection is *admitted* when the head of a request
proves that its sender may use the server. Before that, the connection is a *stranger*: the server
keeps only the head of its request, and the request must be complete within a few seconds. If there
are too many strangers, the oldest one is disconnected.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from http.client import responses

import httptools

JSON = (("Content-Type", "application/json"),)

_SCRATCH = memoryview(bytearray(1 << 16))  # shared by all connections, used within one callback
_ONE_LINE = {ord("\r"): " ", ord("\n"): " "}  # a line break would let a function add headers
_JOINED_BYTES = 1 << 16  # up to this size, copying a body is cheaper than another system call
_WITHOUT_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request with lower-case header names. ``body`` is None if the body was too long."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytearray | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    status: int = 200
    headers: Sequence[tuple[str, str]] = ()
    body: bytes | bytearray = b""


def json_response(status: int, fields: dict[str, str], *headers: tuple[str, str]) -> Response:
    """Return a response with a JSON object as its body."""
    body = json.dumps(fields, separators=(",", ":")).encode()
    return Response(status=status, headers=(*JSON, *headers), body=body)


@dataclass(slots=True, eq=False)
class HttpServer:
    """A server on a free port of the loopback interface, open until `close` is called.

    ``respond`` returns the response to a request. If it raises an exception, the client gets status
    500. ``refusal`` is called with a request before its body is received. If it returns None, the
    request is admitted. If it returns a response, the body is discarded, and the connection ends
    after this response. A body longer than ``max_body_bytes`` is read and discarded, and a head
    longer than ``max_head_bytes`` ends the connection. At most ``strangers`` connections may be
    open without having been admitted, each for at most ``stranger_s`` seconds. A connection ends if
    a request takes longer than ``request_s`` seconds to arrive, or if no request begins within
    ``idle_s`` seconds after the last response.
    """

    respond: Callable[[Request], Awaitable[Response]]
    _: KW_ONLY
    refusal: Callable[[Request], Response | None]
    max_body_bytes: int
    strangers: int
    max_head_bytes: int = 1 << 16
    stranger_s: float = 10.0
    request_s: float = 120.0
    idle_s: float = math.inf
    connections: set[_Connection] = field(default_factory=set, init=False)
    _strangers: dict[_Connection, None] = field(default_factory=dict, init=False)  # oldest first
    _server: asyncio.Server | None = field(default=None, init=False)

    async def start(self) -> int:
        """Start to listen, and return the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), host="127.0.0.1", port=0, backlog=1024
        )
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        """Stop listening and end all connections."""
        if self._server is not None:
            self._server.close()
        for connection in self.connections:
            connection.abort()

    def enter(self, connection: _Connection) -> None:
        """Add a stranger, and disconnect the oldest one if there are too many."""
        if len(self._strangers) >= self.strangers:
            first = next(iter(self._strangers))
            del self._strangers[first]
            first.abort()
        self.connections.add(connection)
        self._strangers[connection] = None

    def admit(self, connection: _Connection) -> bool:
        """Admit a connection. Return True if it was a stranger before."""
        return self._strangers.pop(connection, self) is None

    def leave(self, connection: _Connection) -> None:
        """Remove a connection that has ended."""
        self.connections.discard(connection)
        self._strangers.pop(connection, None)


class _Connection(asyncio.BufferedProtocol):
    """The connection of one client. The parser calls the methods whose names begin with ``on_``."""

    _transport: asyncio.Transport

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        # A request to answer, a final response to send, or None at the end of the connection.
        self._requests: asyncio.Queue[Request | Response | None] = asyncio.Queue()
        self._parser = httptools.HttpRequestParser(self)
        self._alarm: asyncio.TimerHandle | None = None
        self._admitted = False
        self.on_message_begin()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport  # asyncio has set TCP_NODELAY
        self._task = asyncio.get_running_loop().create_task(self._answer_all())
        self._server.enter(self)
        self._allow(self._server.stranger_s)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's)
        self._allow(math.inf)
        self._requests.put_nowait(None)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (asyncio's)
        return _SCRATCH

    def buffer_updated(self, nbytes: int) -> None:
        self._head_bytes += nbytes
        try:
            self._parser.feed_data(_SCRATCH[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(HTTPStatus.BAD_REQUEST)
        # Chunk lengths and trailers also count as head; allow some for each byte of the body.
        if self._head_bytes > self._server.max_head_bytes + 2 * self._body_bytes:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def abort(self) -> None:
        self._transport.abort()
        self._task.cancel()

    def _allow(self, seconds: float) -> None:
        """End the connection after this time, unless this method is called again earlier."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if seconds < math.inf:
            self._alarm = asyncio.get_running_loop().call_later(seconds, self.abort)

    # ---- the parts of a request -----------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes, self._body_bytes = True, 0, 0
        self._target = b""
        self._values: dict[str, list[str]] = {}  # a header may occur more than once
        self._headers: dict[str, str] = {}
        self._body: bytearray | None = bytearray()
        self._refusal: Response | None = None
        if self._admitted:
            self._allow(self._server.request_s)

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # ignore trailers
            key, text = name.decode("latin-1").lower(), value.decode("latin-1").strip()
            self._values.setdefault(key, []).append(text)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._headers = {name: ",".join(values) for name, values in self._values.items()}
        self._values = {}
        self._refusal = self._server.refusal(self._request())
        if self._refusal is not None:
            self._body = None
            return
        if self._server.admit(self):
            self._admitted = True
            self._allow(self._server.request_s)
        if self._headers.get("expect", "").lower() == "100-continue":
            self._transport.write(_CONTINUE)

    def on_body(self, piece: bytes) -> None:
        self._body_bytes += len(piece)
        if self._body is not None:
            self._body += piece
            if len(self._body) > self._server.max_body_bytes:
                self._body = None

    def on_message_complete(self) -> None:
        self._allow(math.inf if self._refusal is None else self._server.stranger_s)
        self._transport.pause_reading()
        self._requests.put_nowait(self._refusal or self._request())
        self._head_bytes = self._body_bytes = 0
        self._body = None

    def _request(self) -> Request:
        path, _, query = self._target.decode("latin-1").partition("?")
        return Request(
            method=self._parser.get_method().decode("latin-1"),
            path=path,
            query=query,
            headers=self._headers,
            body=self._body,
        )

    # ---- the response ---------------------------------------------------------------------------

    async def _answer_all(self) -> None:
        try:
            while await self._answer(await self._requests.get()):
                pass
        finally:
            self._server.leave(self)

    async def _answer(self, request: Request | Response | None) -> bool:
        """Answer one request. Return False if the connection ends after the response."""
        if not isinstance(request, Request):
            if request is not None:
                self._write(request)
                self._transport.close()
            return False
        try:
            response = await self._server.respond(request)
        except Exception:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR)
            raise
        if self._transport.is_closing():
            return False
        self._write(response)
        if request.headers.get("connection", "").lower() == "close":
            self._transport.close()
            return False
        if self._requests.empty():
            self._transport.resume_reading()
            self._allow(self._server.idle_s)
        return True

    def _write(self, response: Response) -> None:
        # With these statuses, clients would read a body as the beginning of the next response.
        body = b"" if response.status in _WITHOUT_BODY else response.body
        lines = [f"HTTP/1.1 {response.status} {responses.get(response.status, 'Unknown')}"]
        lines += [f"{name}: {value}".translate(_ONE_LINE) for name, value in response.headers]
        lines += [f"Date: {formatdate(usegmt=True)}", f"Content-Length: {len(body)}", "", ""]
        head = "\r\n".join(lines).encode("latin-1", "replace")
        if len(body) <= _JOINED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)

    def _refuse(self, status: HTTPStatus) -> None:
        if not self._transport.is_closing():
            self._write(Response(status=status, headers=(("Connection", "close"),)))
            self._transport.close()
