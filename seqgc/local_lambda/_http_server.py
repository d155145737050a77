"""An HTTP/1.1 server for Lambda's three APIs; httptools (llhttp) understands what comes in.

Requests of one connection are answered in turn: while one is being answered, no more is read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import httptools

__all__ = ["HttpServer", "Request", "Respond", "Response"]

_SCRATCH = memoryview(bytearray(1 << 16))  # shared: filled and emptied within one callback
_ONE_LINE = {ord("\r"): " ", ord("\n"): " "}  # or a function could write headers of its own
_JOINED_BYTES = 1 << 16  # below it, copying a body is cheaper than another system call
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request; ``headers`` have lower-case names, ``body`` is None if it was too long."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytearray | None
    peer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """One response."""

    status: int = 200
    headers: Sequence[tuple[str, str]] = ()
    body: bytes | bytearray = b""


Respond = Callable[[Request], Awaitable[Response]]


class HttpServer:
    """Listens on a free port of the loopback interface until it is closed.

    Parameters
    ----------
    respond
        Returns the response to a request; its exceptions are answered with status 500.
    max_body_bytes, max_head_bytes
        A longer body is read to its end and thrown away, a longer head ends the connection.
    """

    def __init__(
        self, respond: Respond, *, max_body_bytes: int, max_head_bytes: int = 1 << 16
    ) -> None:
        self.respond = respond
        self.max_body_bytes = max_body_bytes
        self.max_head_bytes = max_head_bytes
        self.connections: set[_Connection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self), host="127.0.0.1", port=0, backlog=1024
        )
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Stop listening and hang up on everybody."""
        if self._server is not None:
            self._server.close()
        for connection in tuple(self.connections):
            connection.transport.abort()
        for task in tuple(self.tasks):
            task.cancel()


class _Connection(asyncio.BufferedProtocol):
    """One client's; the methods ``on_...`` are called by the parser, in their order."""

    transport: asyncio.Transport

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._requests: deque[Request] = deque()
        self._busy = False
        self._parser = httptools.HttpRequestParser(self)
        self.on_message_begin()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport  # asyncio has set TCP_NODELAY
        self._peer = transport.get_extra_info("peername")[0]
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's)
        self._server.connections.discard(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (asyncio's)
        return _SCRATCH

    def buffer_updated(self, nbytes: int) -> None:
        self._head_bytes += nbytes
        try:
            self._parser.feed_data(_SCRATCH[:nbytes])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(HTTPStatus.BAD_REQUEST)
        if self._in_head and self._head_bytes > self._server.max_head_bytes:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    # ---- a request, piece by piece --------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        self._target = b""
        self._headers: dict[str, str] = {}
        self._body: bytearray | None = bytearray()

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1").strip()
        self._headers[key] = f"{self._headers[key]},{text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._headers.get("expect", "").lower() == "100-continue":
            self.transport.write(_CONTINUE)

    def on_body(self, piece: bytes) -> None:
        if self._body is not None:
            self._body += piece
            if len(self._body) > self._server.max_body_bytes:
                self._body = None

    def on_message_complete(self) -> None:
        path, _, query = self._target.decode("latin-1").partition("?")
        request = Request(
            method=self._parser.get_method().decode("latin-1"),
            path=path,
            query=query,
            headers=self._headers,
            body=self._body,
            peer=self._peer,
        )
        self._requests.append(request)
        self._head_bytes, self._body = 0, None
        self._answer_next()

    # ---- the response ---------------------------------------------------------------------------

    def _answer_next(self) -> None:
        if self._busy or not self._requests:
            return
        self._busy = True
        self.transport.pause_reading()
        task = asyncio.get_running_loop().create_task(self._answer(self._requests.popleft()))
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)

    async def _answer(self, request: Request) -> None:
        try:
            response = await self._server.respond(request)
        except Exception:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR)
            raise
        if self.transport.is_closing():
            return
        self._write(response)
        if request.headers.get("connection", "").lower() == "close":
            self.transport.close()
            return
        self._busy = False
        self.transport.resume_reading()
        self._answer_next()

    def _write(self, response: Response) -> None:
        head = _head(response)
        if len(response.body) <= _JOINED_BYTES:
            self.transport.write(head + response.body)
        else:
            self.transport.write(head)
            self.transport.write(response.body)

    def _refuse(self, status: HTTPStatus) -> None:
        self._busy = True
        if not self.transport.is_closing():
            self._write(Response(status=status, headers=(("Connection", "close"),)))
            self.transport.close()


def _head(response: Response) -> bytes:
    lines = [f"HTTP/1.1 {response.status} {_reason(response.status)}"]
    lines += [f"{name}: {value}".translate(_ONE_LINE) for name, value in response.headers]
    lines.append(f"Content-Length: {len(response.body)}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
