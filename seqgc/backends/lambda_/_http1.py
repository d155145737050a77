"""An HTTP/1.1 client of one kind of request: POST, for answers that are long and many.

A general client hands a body on in pieces, which are copied, joined and copied again: at 256 of
half a megabyte a round that is most of what a master does. Here a body of announced length is
received into its own memory, and nowhere else. Redirects, cookies, compression, proxies and
retries, which a signed invocation must not have, are not there.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from seqgc.backends.lambda_._bodies import (
    BLANK,
    MAX_HEAD_BYTES,
    Chunks,
    HttpError,
    Memory,
    announced_bytes,
)

__all__ = ["Client", "Response"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A response; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytearray


class Client:
    """Posts to one URL, over connections that are kept; to be used inside a running event loop.

    Parameters
    ----------
    url
        ``http://`` or ``https://``.
    connections
        Most at once; who finds none free waits.
    connect_timeout_s, read_timeout_s
        For a connection to be made, and for a response once there is one; seconds.
    max_body_bytes
        Of a response; a longer one is an error.
    """

    def __init__(
        self,
        url: str,
        *,
        connections: int,
        connect_timeout_s: float,
        read_timeout_s: float,
        max_body_bytes: int,
    ) -> None:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port or (443 if secure else 80)
        self._tls = _tls() if secure else None
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._request_line = f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n"
        self._free, self._limit = connections, connections
        self._connect_timeout_s, self._read_timeout_s = connect_timeout_s, read_timeout_s
        self._max_body_bytes, self._memory = max_body_bytes, Memory()
        self._idle: list[_Connection] = []  # the latest used last: others may time out in peace
        self._all: set[_Connection] = set()
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def post(
        self, headers: Mapping[str, str], body: bytes, *, sent: Callable[[], None]
    ) -> Response:
        """Send a request, once; call ``sent`` when it leaves; return its response.

        Raises
        ------
        OSError
            If no connection can be made, or it breaks (`HttpError`).
        TimeoutError
            If it or the response takes too long.
        """
        head = self._request_line + "".join(f"{k}: {v}\r\n" for k, v in headers.items())
        request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body
        await self._take_place()
        try:
            connection = self._kept() or await self._opened()
            try:
                async with asyncio.timeout(self._read_timeout_s):
                    answer = connection.ask(request)
                    sent()
                    return await answer
            finally:
                self._keep(connection)
        except TimeoutError:
            raise TimeoutError(f"Timeout: no answer within {self._read_timeout_s:g} s") from None
        finally:
            self._leave_place()

    def recycle(self, body: object) -> None:
        """Take the memory of a response that nobody reads any more, for another of its length."""
        if isinstance(body, bytearray):
            self._memory.give(body)

    @property
    def waiting(self) -> int:
        """How many wait for a free connection."""
        return len(self._waiting)

    def close(self) -> None:
        """Hang up everywhere."""
        for connection in tuple(self._all):
            connection.hang_up()

    async def _take_place(self) -> None:
        if self._free == 0:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn  # the place is ours then
        else:
            self._free -= 1

    def _leave_place(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _kept(self) -> _Connection | None:
        while self._idle:
            if (connection := self._idle.pop()).usable:
                return connection
        return None

    async def _opened(self) -> _Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: _Connection(self._all, self._memory, self._max_body_bytes),
                    self._host,
                    self._port,
                    ssl=self._tls,
                )
        except TimeoutError:
            where = f"{self._host}:{self._port}"
            raise HttpError(
                f"Connection to {where} not made within {self._connect_timeout_s:g} s"
            ) from None
        return connection

    def _keep(self, connection: _Connection) -> None:
        if connection.usable:
            self._idle.append(connection)
        else:
            connection.hang_up()


def _tls() -> ssl.SSLContext:
    """Trust what Python trusts, and the bundle that AWS's own tools would use."""
    context = ssl.create_default_context()
    if bundle := os.environ.get("AWS_CA_BUNDLE"):
        context.load_verify_locations(bundle)
    return context


class _Connection(asyncio.BufferedProtocol):
    """One connection, asked one thing at a time."""

    _chunks: Chunks | None
    _until_end: bool

    def __init__(self, known: set[_Connection], memory: Memory, max_body_bytes: int) -> None:
        self._known, self._memory, self._max_body_bytes = known, memory, max_body_bytes
        self._transport: asyncio.Transport | None = None
        self._asked: asyncio.Future[Response] | None = None
        self._closing = False
        self._reset()

    @property
    def usable(self) -> bool:
        """Whether it can be asked (again)."""
        return self._transport is not None and self._asked is None and not self._closing

    def ask(self, request: bytes) -> asyncio.Future[Response]:
        """Send a request; return the response that is to come."""
        if self._transport is None:
            raise HttpError("Connection is closed")
        self._asked = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._asked

    def hang_up(self) -> None:
        """Close the connection, whatever is on its way."""
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    # ---- as asyncio's protocol ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            self._transport = transport
            self._known.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 (asyncio's)
        if self._filled < len(self._body):
            return memoryview(self._body)[self._filled :]
        return self._memory.scratch  # emptied within the same callback of the loop

    def buffer_updated(self, nbytes: int) -> None:
        if self._filled < len(self._body):
            self._filled += nbytes
            if self._filled == len(self._body):
                self._finish()
            return
        try:
            self._take(bytes(self._memory.scratch[:nbytes]))
        except (ValueError, HttpError) as error:
            self._break(HttpError(f"Connection speaks no HTTP/1.1: {error}"))

    def eof_received(self) -> bool:
        if self._asked is not None and self._until_end:
            self._body = self._came
            self._finish()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._known.discard(self)
        self._break(HttpError(f"Connection lost before the answer was complete{_why(exc)}"))
        self._transport = None

    # ---- the response ---------------------------------------------------------------------------

    def _reset(self) -> None:
        self._came = bytearray()  # of the head; of a body without announced length
        self._status, self._headers = 0, dict[str, str]()
        self._body, self._filled = bytearray(), 0
        self._chunks = None
        self._until_end = False

    def _take(self, data: bytes) -> None:
        if self._asked is None:
            raise HttpError("it answers what nobody asked")
        self._came += data
        if not self._status and not self._parse_head():
            return
        if self._chunks is not None:
            came, self._came = self._came, bytearray()
            if (body := self._chunks.take(came)) is not None:
                self._body = body
                self._finish()
        elif len(self._came) > self._max_body_bytes:
            raise HttpError(f"a body of more than {self._max_body_bytes} bytes")

    def _parse_head(self) -> bool:
        """Understand the head once it is complete; say whether it is."""
        while (end := self._came.find(BLANK)) >= 0:
            first, *lines = self._came[:end].decode("latin-1").split("\r\n")
            version, status, *_ = first.split(" ", 2)
            if version not in ("HTTP/1.1", "HTTP/1.0"):
                raise HttpError(f"it begins with {first[:40]!r}")
            del self._came[: end + len(BLANK)]
            if int(status) >= 200:  # else "continue", and the like
                self._understand(version, int(status), lines)
                return True
        if len(self._came) > MAX_HEAD_BYTES:
            raise HttpError("its head does not end")
        return False

    def _understand(self, version: str, status: int, lines: list[str]) -> None:
        self._status = status
        pairs = (line.partition(":") for line in lines)
        self._headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self._closing |= version == "HTTP/1.0" or _says(self._headers, "connection", "close")
        self._begin_body()

    def _begin_body(self) -> None:
        if _says(self._headers, "transfer-encoding", "chunked"):
            self._chunks = Chunks(max_bytes=self._max_body_bytes)
            return
        if (told := self._headers.get("content-length")) is None:
            self._until_end = self._closing = True
            return
        length = announced_bytes(told)
        if not len(self._came) <= length <= self._max_body_bytes:
            raise HttpError(f"a body of {length} bytes, of which {len(self._came)} have come")
        self._body, self._filled = self._memory.take(length), len(self._came)
        self._body[: self._filled] = self._came
        if self._filled == length:
            self._finish()

    def _finish(self) -> None:
        asked, self._asked = self._asked, None
        response = Response(status=self._status, headers=self._headers, body=self._body)
        self._reset()
        if asked is not None and not asked.done():
            asked.set_result(response)

    def _break(self, error: HttpError) -> None:
        asked, self._asked = self._asked, None
        if asked is not None and not asked.done():
            asked.set_exception(error)
        self.hang_up()


def _says(headers: Mapping[str, str], name: str, word: str) -> bool:
    return word in headers.get(name, "").lower()


def _why(error: Exception | None) -> str:
    return f": {error}" if error is not None else ""
