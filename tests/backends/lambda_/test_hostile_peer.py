"""A peer that stands where Lambda stands and means harm: little memory, one deadline, an error."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import cache

import pytest

from seqgc.backends.lambda_ import Limits, Transport
from tests.backends.lambda_.over_sockets import HEAD, Open, make, reply_to
from tests.backends.lambda_.peer import Peer, Response

_MEGABYTE = 1 << 20
_CHUNK = b"10000\r\n" + bytes(0x10000) + b"\r\n"
_LIMITS = Limits(timeout_s=0.1, grace_s=0.0, connect_timeout_s=0.1, max_answer_bytes=_MEGABYTE)


def _drip(pieces: Iterable[bytes], peer: Peer) -> Iterator[bytes]:
    """Pieces, each long before any time-out of a single read, until the test ends."""
    for piece in pieces:
        yield piece
        if peer.release.wait(0.01):
            return


DRIPS = {
    "head": (b"HTTP/1.1 200 OK\r\nX-Y: ", [b"y"]),
    "heads": (b"", [b"HTTP/1.1 100 Continue\r\n\r\n"]),
    "body": (HEAD + b"Content-Length: 100000\r\n\r\n", [b"y"]),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", [b"1\r\ny\r\n"]),
    "error": (b"HTTP/1.1 503 No\r\nContent-Length: 100000\r\n\r\n", [b"y"]),
    "end": (b"HTTP/1.0 200 OK\r\n\r\n", [b"y"]),
}


@pytest.mark.parametrize("what", DRIPS)
def test_an_answer_that_drips_ends_at_its_deadline(
    open_transport: Open, peer: Peer, what: str
) -> None:
    head, repeated = DRIPS[what]
    drips = itertools.chain([head], itertools.cycle(repeated))
    peer.respond = lambda _: Response(stream=_drip(drips, peer))
    reply = reply_to(open_transport(limits=_LIMITS))
    assert (reply.body, reply.throttled) == (None, False)
    assert "time" in reply.error.lower()
    peer.respond = lambda request: Response(body=request.body)
    assert reply_to(open_transport(limits=Limits()), b"[]").body == b"[]"


def test_an_answer_that_drips_through_a_proxy_ends_at_its_deadline(
    open_transport: Open, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", peer.url)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    head, repeated = DRIPS["body"]
    drips = itertools.chain([head], repeated * 1000)  # ten seconds
    peer.respond = lambda _: Response(stream=_drip(drips, peer))
    reply = reply_to(open_transport("http://lambda.invalid", limits=_LIMITS))
    assert (reply.body, reply.throttled) == (None, False)
    assert "time" in reply.error.lower()


FLOODS = {
    "body": HEAD + b"\r\n",
    "promised": HEAD + b"Content-Length: 1000000000000\r\n\r\n",
    "chunks": HEAD + b"Transfer-Encoding: chunked\r\n\r\n",
    "one chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffff\r\n",
}
OTHER_FLOODS = {
    "heads": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "error": (b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n", _CHUNK),
    "promised error": (b"HTTP/1.1 500 No\r\nContent-Length: 1000000000000\r\n\r\n", _CHUNK),
}


def _peak_of(transport: Transport) -> int:
    """Ask for an answer that is an error; return how many bytes that took at once."""
    tracemalloc.start()
    reply = reply_to(transport)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reply.body is None
    assert reply.error
    return peak


@pytest.mark.parametrize("what", FLOODS)
def test_an_answer_without_end_takes_no_memory(open_transport: Open, peer: Peer, what: str) -> None:
    flood = itertools.chain([FLOODS[what]], itertools.repeat(_CHUNK))
    peer.respond = lambda _: Response(stream=flood)
    transport = open_transport(limits=Limits(max_answer_bytes=_MEGABYTE))
    assert _peak_of(transport) < 24 * _MEGABYTE


@pytest.mark.parametrize("what", OTHER_FLOODS)
def test_heads_and_errors_without_end_take_no_memory_with_curl(peer: Peer, what: str) -> None:
    head, repeated = OTHER_FLOODS[what]
    flood = itertools.chain([head], itertools.repeat(repeated))
    peer.respond = lambda _: Response(stream=flood)
    with closing(make("curl", peer.url, limits=Limits(max_answer_bytes=_MEGABYTE))) as transport:
        assert _peak_of(transport) < 24 * _MEGABYTE


@cache
def _bomb() -> bytes:
    return gzip.compress(bytes(64 * _MEGABYTE))


@pytest.mark.parametrize("status", ["200 OK", "302 Found\r\nLocation: /elsewhere", "500 No"])
@pytest.mark.parametrize("framing", ["", "chunked"])
def test_nothing_is_decompressed(
    open_transport: Open, peer: Peer, status: str, framing: str
) -> None:
    bomb = _bomb()
    head = f"HTTP/1.1 {status}\r\nContent-Encoding: gzip\r\n"
    raw = bomb
    if framing == "chunked":
        head += "Transfer-Encoding: chunked\r\n"
        raw = b"%x\r\n" % len(bomb) + bomb + b"\r\n0\r\n\r\n"
    peer.respond = lambda _: Response(raw=head.encode() + b"\r\n" + raw)
    transport = open_transport()
    tracemalloc.start()
    reply = reply_to(transport)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 24 * _MEGABYTE, f"{peak} bytes"
    if status == "200 OK":
        assert reply.body == bomb


def test_what_an_error_says_is_one_printable_line(open_transport: Open, peer: Peer) -> None:
    evil = "\x1b]0;owned\x07\x1b[31mred\u202e\r\nFORGED line\u2028 \x9b1m"
    fields = {"errorType": evil, "errorMessage": evil, "Message": evil}
    tail = base64.b64encode(evil.encode()).decode()
    for status, headers in (
        (200, {"X-Amz-Function-Error": "Unhandled", "X-Amz-Log-Result": tail}),
        (500, {}),
    ):
        body = json.dumps(fields).encode()
        peer.respond = lambda _, s=status, h=headers, b=body: Response(status=s, headers=h, body=b)
        error = reply_to(open_transport()).error
        assert "red" in error
        assert error.isprintable(), repr(error)


@pytest.mark.parametrize("piece", [b"{},", b"[" * 3])
@pytest.mark.parametrize(("kind", "status"), [("curl", 500), ("curl", 200), ("boto3", 200)])
def test_an_errors_json_makes_no_objects(peer: Peer, piece: bytes, kind: str, status: int) -> None:
    body = b'{"x":[' + piece * (6 * _MEGABYTE // len(piece)) + b'0],"errorMessage":"why"}'
    headers = {"X-Amz-Function-Error": "Unhandled"} if status == 200 else {}
    peer.respond = lambda _: Response(status=status, headers=headers, body=body)
    with closing(make(kind, peer.url)) as transport:
        assert _peak_of(transport) < 64 * _MEGABYTE
