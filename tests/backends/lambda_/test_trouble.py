"""What every transport says when something is wrong: one line, and nothing is sent again."""

from __future__ import annotations

import base64
import gzip
import socket

import pytest

from seqgc.backends.lambda_ import Limits
from tests.backends.lambda_.over_sockets import HEAD, Open, make, reply_to, silent
from tests.backends.lambda_.peer import Peer, Response

LOG = "START RequestId: 1\nloading the model\n[ERROR] MemoryError\nEND RequestId: 1\nREPORT 1\n"


def test_a_function_error_under_http_200_is_its_error_and_last_line(
    open_transport: Open, peer: Peer
) -> None:
    peer.respond = lambda _: Response(
        body=b'{"errorMessage": "too\\nlarge", "errorType": "MemoryError"}',
        headers={
            "X-Amz-Function-Error": "Unhandled",
            "X-Amz-Log-Result": base64.b64encode(LOG.encode()).decode(),
        },
    )
    reply = reply_to(open_transport())
    assert reply.body is None
    assert reply.error == "MemoryError: too large; last log line: [ERROR] MemoryError"
    assert reply.ran


@pytest.mark.parametrize(
    ("status", "code", "said", "throttled"),
    [
        (429, "TooManyRequestsException", "Rate Exceeded.", True),
        (500, "ServiceException", "internal", False),
        (502, "EFSIOException", "mount", False),
        (403, "AccessDeniedException", "not authorized to perform", False),
        (404, "ResourceNotFoundException", "Function not found", False),
        (413, "RequestTooLargeException", "6291457 byte payload is too large", False),
    ],
)
def test_a_refusal_is_asked_once_and_told_in_one_line(
    open_transport: Open, peer: Peer, status: int, code: str, said: str, throttled: bool
) -> None:
    peer.respond = lambda _: Response(
        status=status,
        body=f'{{"Message": "{said}", "Reason": "a reason"}}'.encode(),
        headers={"X-Amzn-ErrorType": code},
    )
    reply = reply_to(open_transport())
    assert reply.throttled == throttled
    assert reply.body is None
    assert reply.ran is (False if status < 500 else None)
    assert reply.error.startswith(f"HTTP {status} {code}: {said}")
    assert "\n" not in reply.error
    assert len(peer.requests) == 1, "the scheduler owns retries"


@pytest.mark.parametrize(
    ("told", "seconds"),
    [("3", 3.0), ("0", 0.0), ("", 0.0), ("-1", 0.0), ("Wed, 21 Oct 2026 07:28:00 GMT", 0.0)],
)
def test_a_throttled_invocation_says_when_to_come_back(
    open_transport: Open, peer: Peer, told: str, seconds: float
) -> None:
    peer.respond = lambda _: Response(
        status=429,
        body=b'{"Message": "Rate Exceeded."}',
        headers={"X-Amzn-ErrorType": "TooManyRequestsException", "Retry-After": told},
    )
    reply = reply_to(open_transport())
    assert (reply.throttled, reply.retry_after_s) == (True, seconds)


def test_a_connection_that_is_dropped_is_an_error_and_not_tried_again(
    open_transport: Open, peer: Peer
) -> None:
    peer.respond = lambda _: Response(hang_up=True)
    reply = reply_to(open_transport())
    assert reply.error
    assert not reply.throttled
    assert reply.ran is None
    assert len(peer.requests) == 1
    peer.respond = lambda _: Response(body=b"[]")
    assert reply_to(open_transport()).body == b"[]"


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        HEAD + b"Content-Length: 100\r\n\r\ncut short",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nab\r\n0\r\n\r\n",
        HEAD + b"Content-Length: -2\r\n\r\nok",
    ],
)
def test_what_is_no_answer_is_an_error_and_not_tried_again(
    open_transport: Open, peer: Peer, raw: bytes
) -> None:
    peer.respond = lambda _: Response(raw=raw)
    transport = open_transport()
    reply = reply_to(transport)
    assert (
        reply.error or len(reply.body or b"") < 100
    )  # what is cut short, the frame's length tells
    assert len(peer.requests) == 1
    peer.respond = lambda _: Response(body=b"[]")
    assert reply_to(transport).body == b"[]"


@pytest.mark.parametrize(
    "head",
    [
        "Transfer-Encoding: chunked\r\n\r\n-6\r\nabcdef\r\n0\r\n",
        "Transfer-Encoding: chunked\r\n\r\n\r\nab\r\n0\r\n",
        "Transfer-Encoding: chunked\r\n\r\nfffffffff\r\nab",
        "Content-Length: +2\r\n\r\n",
        "Content-Length: 99999999999\r\n\r\n",
    ],
)
def test_a_length_that_is_none_ends_the_connection(peer: Peer, head: str) -> None:
    peer.respond = lambda _: Response(raw=HEAD + head.encode() + b"\r\n")
    transport = make("curl", peer.url)
    try:
        reply = reply_to(transport)
        assert reply.error
        assert reply.body is None
    finally:
        transport.close()


@pytest.mark.parametrize(
    "head", ["Content-Length: 2000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n7d0\r\n", "\r\n"]
)
def test_an_answer_beyond_its_limit_is_an_error(
    open_transport: Open, peer: Peer, head: str
) -> None:
    end = b"\r\n0\r\n\r\n" if "chunked" in head else b""
    peer.respond = lambda _: Response(raw=HEAD + head.encode() + bytes(2000) + end)
    for most, long in ((2000, False), (1999, True)):
        reply = reply_to(open_transport(limits=Limits(max_answer_bytes=most)))
        assert bool(reply.error) == long, reply.error
        assert (reply.body is None) == long


def test_an_answer_is_asked_for_and_left_as_it_is(open_transport: Open, peer: Peer) -> None:
    packed = gzip.compress(b"{}")
    peer.respond = lambda _: Response(body=packed, headers={"Content-Encoding": "gzip"})
    assert reply_to(open_transport()).body == packed
    assert peer.requests[0].headers["accept-encoding"] == "identity"


def test_a_kept_connection_that_is_dropped_is_an_error_and_nothing_is_sent_again(
    open_transport: Open, peer: Peer
) -> None:
    transport = open_transport()
    assert not reply_to(transport).error
    peer.respond = lambda _: Response(hang_up=True)
    assert reply_to(transport).error
    assert (len(peer.requests), peer.connections) == (2, 1)
    peer.respond = lambda _: Response(body=b"[]")
    assert reply_to(transport).body == b"[]"


def test_a_peer_that_is_not_there_is_an_error(open_transport: Open) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        reply = reply_to(open_transport(f"http://127.0.0.1:{taken.getsockname()[1]}"))
    assert "onnect" in reply.error


def test_a_silent_peer_is_given_up_after_the_functions_time(
    open_transport: Open, peer: Peer
) -> None:
    peer.respond = silent(peer)
    limits = Limits(timeout_s=0.05, grace_s=0.05, connect_timeout_s=0.05)
    assert "imeout" in reply_to(open_transport(limits=limits)).error  # or no reply comes in time
