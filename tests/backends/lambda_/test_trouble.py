"""What every transport says when something is wrong: one line, and nothing is sent again."""

from __future__ import annotations

import base64
import socket

import pytest

from seqgc.backends.lambda_ import AsyncTransport
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


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("head", "reason"),
    [
        ("Transfer-Encoding: chunked\r\n\r\n-6\r\nabcdef\r\n0\r\n", "'-6' is no length"),
        ("Transfer-Encoding: chunked\r\n\r\n0x2\r\nab\r\n0\r\n", "'0x2' is no length"),
        ("Transfer-Encoding: chunked\r\n\r\n\r\nab\r\n0\r\n", "'' is no length"),
        ("Transfer-Encoding: chunked\r\n\r\nfffffffff\r\nab", "a body of more than"),
        ("Content-Length: +2\r\n\r\n", "'+2' is no length"),
        ("Content-Length: 1_0\r\n\r\n", "'1_0' is no length"),
        ("Content-Length: 99999999999\r\n\r\n", "a body of 99999999999 bytes"),
    ],
)
def test_a_length_that_is_none_ends_the_connection(peer: Peer, head: str, reason: str) -> None:
    peer.respond = lambda _: Response(raw=HEAD + head.encode() + b"\r\n")
    transport = make("asyncio", peer.url)
    try:
        assert reason in reply_to(transport).error
    finally:
        transport.close()


def test_a_poll_that_is_interrupted_gives_no_memory_back_twice(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport = make("asyncio", peer.url)
    assert isinstance(transport, AsyncTransport)
    given: list[object] = []
    monkeypatch.setattr(transport._client, "recycle", given.append)

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    try:
        reply = reply_to(transport)
        with monkeypatch.context() as patch:
            patch.setattr(transport, "_turn", interrupted)
            with pytest.raises(KeyboardInterrupt):
                transport.poll(0.0)
        transport.poll(0.0)
        assert [body for body in given if body is reply.body] == [reply.body]
    finally:
        transport.close()


def test_a_peer_that_is_not_there_is_an_error(open_transport: Open) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        reply = reply_to(open_transport(f"http://127.0.0.1:{taken.getsockname()[1]}"))
    assert "Connect" in reply.error


def test_a_silent_peer_is_given_up_after_the_functions_time(
    open_transport: Open, peer: Peer
) -> None:
    peer.respond = silent(peer)
    assert "imeout" in reply_to(open_transport(timeout_s=-9.9)).error  # 10 s are its grace
