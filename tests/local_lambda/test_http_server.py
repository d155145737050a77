"""What a connection may cost: little, and not for long."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest

from seqgc.local_lambda._http_server import HttpServer, Request, Response

_Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
_MEGABYTE = 1 << 20


async def _respond(request: Request) -> Response:
    return Response(body=b"%d" % len(request.body or b""))


def _refusal(request: Request) -> Response | None:
    return None if request.path == "/known" else Response(status=403)


def _talk(
    *talks: _Talk,
    respond: Callable[[Request], Awaitable[Response]] = _respond,
    max_head_bytes: int = 1 << 16,
    **limits: float,
) -> None:
    """Hold these conversations with a server, one after the other, whose time-outs are short."""

    async def hold() -> None:
        server = HttpServer(
            respond,
            refusal=_refusal,
            max_body_bytes=8 * _MEGABYTE,
            max_head_bytes=max_head_bytes,
            strangers=2,
            **limits,
        )
        port = await server.start()
        try:
            for talk in talks:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                await talk(reader, writer)
                writer.close()
        finally:
            server.close()

    asyncio.run(asyncio.wait_for(hold(), 60))


async def _ended(reader: asyncio.StreamReader) -> bytes:
    """What comes before the server hangs up."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


@pytest.mark.parametrize("begin", [b"", b"POST /kno", b"POST /known HTTP/1.1\r\nX: "])
def test_a_stranger_has_seconds(begin: bytes) -> None:
    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        assert await _ended(reader) == b""

    _talk(wait, stranger_s=0.05)


def test_a_promised_body_has_to_come_and_an_idle_connection_ends() -> None:
    head = b"POST /known HTTP/1.1\r\nContent-Length: 6000000\r\n\r\n"

    async def promise(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        assert await _ended(reader) == b""

    async def idle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET /known HTTP/1.1\r\n\r\n")
        assert (await _ended(reader)).endswith(b"\r\n\r\n0")

    _talk(promise, request_s=0.05)
    _talk(idle, idle_s=0.05)


def test_nothing_of_a_strangers_body_is_kept() -> None:
    peak = 0

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal peak
        writer.write(b"POST /a HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (8 * _MEGABYTE))
        tracemalloc.start()
        for _ in range(128):
            writer.write(bytes(_MEGABYTE // 16))
            await writer.drain()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (await _ended(reader)).startswith(b"HTTP/1.1 403 ")

    _talk(send)
    assert peak < 2 * _MEGABYTE


def test_what_is_neither_head_nor_body_is_bounded_too() -> None:
    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"POST /known HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
        writer.write(b"X: y\r\n" * 40_000)
        assert b" 200 " not in await _ended(reader), "and it ends"

    _talk(send)


def test_a_header_that_comes_often_is_one_of_all_its_values() -> None:
    async def respond(request: Request) -> Response:
        return Response(body=request.headers["x"].encode())

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET /known HTTP/1.1\r\nX: a\r\nY: b\r\nx:  c \r\nConnection: close\r\n\r\n")
        assert (await _ended(reader)).endswith(b"\r\n\r\na,c")

    _talk(send, respond=respond)


def test_a_header_that_comes_often_costs_no_more_than_as_many_others() -> None:
    seconds = []

    async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = [b"x%d:y\r\n" % (number * len(seconds)) for number in range(150_000)]
        began = time.process_time()
        writer.write(b"GET /a HTTP/1.1\r\n%b\r\n" % b"".join(lines))
        assert (await _ended(reader)).startswith(b"HTTP/1.1 403 ")
        seconds.append(time.process_time() - began)

    _talk(send, send, max_head_bytes=2 * _MEGABYTE)
    often, others = seconds
    assert often < 3 * others


def test_of_too_many_strangers_the_first_must_go_and_nobody_who_is_known() -> None:
    async def hold() -> None:
        server = HttpServer(
            _respond, refusal=_refusal, max_body_bytes=10, strangers=2, stranger_s=1e6
        )
        port = await server.start()
        known_reader, known = await asyncio.open_connection("127.0.0.1", port)
        known.write(b"GET /known HTTP/1.1\r\n\r\n")
        assert (await known_reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        others = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        assert await _ended(others[0][0]) == b""
        known.write(b"GET /known HTTP/1.1\r\n\r\n")
        assert b"HTTP/1.1 200 " in await known_reader.readuntil(b"\r\n\r\n")
        for writer in (known, *(writer for _, writer in others)):
            writer.close()
        server.close()

    asyncio.run(asyncio.wait_for(hold(), 60))
