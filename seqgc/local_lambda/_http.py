"""As much of an HTTP/1.1 server as Lambda's clients need, and little CPU per megabyte.

A body is received into its own buffer, whose length the request has announced, and never copied
after that. Requests of one connection are answered in turn. No chunked requests: neither AWS's
clients nor its runtime send any to Lambda.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus

__all__ = ["Answer", "Request", "Response", "Server"]

_SCRATCH = memoryview(bytearray(1 << 16))  # shared: filled and emptied within one callback
_ONE_LINE = {ord("\r"): " ", ord("\n"): " "}  # or a function could write headers of its own
_JOINED_BYTES = 1 << 16  # below it, copying a body is cheaper than another system call


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


Answer = Callable[[Request], Awaitable[Response]]


class Server:
    """Listens on a free port of the loopback interface until it is closed.

    Parameters
    ----------
    answer
        Returns the response to a request; its exceptions are answered with status 500.
    max_body_bytes, max_head_bytes
        A longer body is read to its end and thrown away, a longer head ends the connection.
    """

    def __init__(
        self, answer: Answer, *, max_body_bytes: int, max_head_bytes: int = 1 << 16
    ) -> None:
        self.answer = answer
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
            connection.hang_up()
        for task in tuple(self.tasks):
            task.cancel()


class _Connection(asyncio.BufferedProtocol):
    def __init__(self, server: Server) -> None:
        self._server = server
        self._transport: asyncio.Transport
        self._peer = ""
        self._head = bytearray()  # received, not yet understood
        self._request: tuple[str, str, str, dict[str, str]] | None = None  # awaits its body
        self._body = bytearray()
        self._filled = 0
        self._skip = 0  # bytes to come of a body that is too long
        self._too_long = False
        self._busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport  # asyncio has set TCP_NODELAY
        self._peer = transport.get_extra_info("peername")[0]
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 (asyncio's)
        self._server.connections.discard(self)

    def hang_up(self) -> None:
        self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (asyncio's)
        if self._request is not None and self._filled < len(self._body):
            return memoryview(self._body)[self._filled :]
        return _SCRATCH

    def buffer_updated(self, nbytes: int) -> None:
        if self._request is not None and self._filled < len(self._body):
            self._filled += nbytes
        else:
            self._take(_SCRATCH[:nbytes])
        self._proceed()

    def _take(self, data: memoryview) -> None:
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        self._head += data[skipped:]

    def _proceed(self) -> None:
        """Go on as far as the data that have come allow."""
        if self._busy:
            if len(self._head) > self._server.max_head_bytes:
                self.hang_up()  # somebody who sends on and on without waiting for an answer
            return
        if self._request is None and not self._parse():
            return
        if self._skip or self._filled < len(self._body):
            return
        self._dispatch()

    def _parse(self) -> bool:
        """Understand a request's head, and take what has come of its body."""
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            if len(self._head) > self._server.max_head_bytes:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
            return False
        try:
            first, *lines = self._head[:end].decode("latin-1").split("\r\n")
            method, target, version = first.split(" ")
            pairs = [line.split(":", 1) for line in lines]
            headers: dict[str, str] = {}
            for name, value in pairs:
                key, text = name.lower(), value.strip()
                headers[key] = f"{headers[key]},{text}" if key in headers else text
            length = int(headers.get("content-length", "0"))
            if length < 0 or not version.startswith("HTTP/1."):
                raise ValueError
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST)
            return False
        if "transfer-encoding" in headers:
            self._refuse(HTTPStatus.LENGTH_REQUIRED)
            return False
        path, _, query = target.partition("?")
        self._request = (method, path, query, headers)
        if headers.get("expect", "").lower() == "100-continue":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._begin_body(length, end + 4)
        return True

    def _begin_body(self, length: int, begin: int) -> None:
        came = self._head[begin : begin + length]
        del self._head[: begin + length]
        self._filled = len(came)
        if length > self._server.max_body_bytes:
            self._body, self._skip, self._filled = bytearray(), length - len(came), 0
            self._too_long = True
            return
        self._too_long = False
        self._body = came if len(came) == length else bytearray(length)
        self._body[: self._filled] = came

    def _dispatch(self) -> None:
        assert self._request is not None
        method, path, query, headers = self._request
        body = None if self._too_long else self._body
        request = Request(
            method=method, path=path, query=query, headers=headers, body=body, peer=self._peer
        )
        self._request, self._body, self._filled, self._busy = None, bytearray(), 0, True
        task = asyncio.get_running_loop().create_task(self._respond(request))
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)

    async def _respond(self, request: Request) -> None:
        try:
            response = await self._server.answer(request)
        except Exception:
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR)
            raise
        self._busy = False
        if self._transport.is_closing():
            return
        self._write(response)
        if request.headers.get("connection", "").lower() == "close":
            self._transport.close()
        elif self._head:
            self._proceed()

    def _write(self, response: Response) -> None:
        head = _head(response)
        if len(response.body) <= _JOINED_BYTES:
            self._transport.write(head + response.body)
        else:
            self._transport.write(head)
            self._transport.write(response.body)

    def _refuse(self, status: HTTPStatus) -> None:
        self._busy = True
        if not self._transport.is_closing():
            self._write(Response(status=status, headers=(("Connection", "close"),)))
            self._transport.close()


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
