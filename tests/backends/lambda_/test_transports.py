"""What every transport promises, over real sockets: one request per invocation, one reply per tag.

The peer is a scripted HTTP server: what AWS's service says in trouble can be had nowhere else.
"""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from seqgc import deploy
from seqgc._aws import open_client, open_session
from seqgc.backends.lambda_ import (
    Boto3Transport,
    CurlTransport,
    HttpTransport,
    Limits,
    Reply,
    Target,
)
from seqgc.errors import ParameterError, WorkerError
from seqgc.stores import open_s3
from seqgc.testing import PATIENCE_S, eventually
from tests.backends.lambda_.over_sockets import HEAD, Open, make, replies_of, reply_to, silent
from tests.backends.lambda_.peer import (
    KEY,
    REGION,
    SECRET,
    Peer,
    Request,
    Response,
    own_certificate,
    serving,
    signature_is_right,
)

# ---- what goes out, what comes back -------------------------------------------------------------


def test_an_invocation_is_signed_and_asks_for_the_tail_of_the_log(
    open_transport: Open, peer: Peer
) -> None:
    reply = reply_to(open_transport(), b'{"seqgc": 1}')
    assert (reply.body, reply.error, reply.throttled) == (b'{"seqgc": 1}', "", False)
    (request,) = peer.requests
    assert request.path == "/2015-03-31/functions/worker/invocations?Qualifier=live"
    assert request.headers["x-amz-log-type"] == "Tail"
    assert request.headers.get("x-amz-invocation-type", "RequestResponse") == "RequestResponse"
    assert signature_is_right(request, peer.url)


def test_an_answer_of_six_megabytes_comes_as_it_is(open_transport: Open, peer: Peer) -> None:
    body = bytes(range(256)) * (6 * 2**20 // 256)
    peer.respond = lambda _: Response(body=body)
    assert reply_to(open_transport()).body == body


def test_invocations_are_under_way_together_and_connections_are_kept(
    open_transport: Open, peer: Peer
) -> None:
    count = 20
    together = threading.Barrier(count)

    def respond(request: Request) -> Response:
        together.wait(PATIENCE_S)
        return Response(body=request.body)

    peer.respond = respond
    transport = open_transport()
    for _ in range(3):
        for tag in range(count):
            transport.submit(tag, b"%d" % tag)
        replies = replies_of(transport, count)
        assert {reply.tag: reply.body for reply in replies} == {t: b"%d" % t for t in range(count)}
        assert [reply.at for reply in replies] == sorted(reply.at for reply in replies)
    assert peer.connections == count


def test_more_invocations_than_connections_wait_for_one(open_transport: Open, peer: Peer) -> None:
    transport = open_transport(limits=Limits(connections=3))
    for tag in range(10):
        transport.submit(tag, b"{}")
    assert {reply.tag for reply in replies_of(transport, 10)} == set(range(10))
    assert peer.connections <= 3


def test_an_idle_connection_that_the_peer_closed_is_not_used_again(
    open_transport: Open, peer: Peer
) -> None:
    peer.respond = lambda request: Response(body=request.body, headers={"Connection": "close"})
    transport = open_transport()
    for _ in range(5):
        assert reply_to(transport).error == ""


def test_what_was_flushed_has_left_though_nobody_polls(open_transport: Open, peer: Peer) -> None:
    transport = open_transport()
    for tag in range(5):  # connections, and all else that is used again
        transport.submit(tag, b"{}")
    replies_of(transport, 5)
    peer.respond = silent(peer)
    for due in (10, 15):
        for tag in range(5):
            transport.submit(tag, b"{}")
        transport.flush()
        eventually(lambda due=due: len(peer.requests) == due, f"{due} requests")


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n1\r\nd\r\n0\r\n\r\n", b"abcd"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nX: y\r\n\r\n", b"ab"),
        (HEAD + b"Connection: close\r\n\r\nuntil the end", b"until the end"),
        (b"HTTP/1.0 200 OK\r\n\r\nold", b"old"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Content-Length: 2\r\n\r\nok", b"ok"),
        (HEAD + b"Content-Length: 0\r\n\r\n", b""),
    ],
)
def test_a_body_ends_where_http_says(
    open_transport: Open, peer: Peer, raw: bytes, body: bytes
) -> None:
    peer.respond = lambda _: Response(raw=raw)
    reply = reply_to(open_transport())
    assert (reply.error, reply.body) == ("", body)


def test_any_number_of_heads_may_come_before_the_answers(peer: Peer) -> None:
    heads = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\nX: y\r\n\r\n" * 1000
    peer.respond = lambda _: Response(raw=heads + HEAD + b"Content-Length: 2\r\n\r\nok")
    transport = make("curl", peer.url)
    try:
        assert reply_to(transport).body == b"ok"
    finally:
        transport.close()


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    """A peer with a certificate of its own, which is in the bundle that the caller trusts."""
    context, bundle = own_certificate(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
    with serving(context) as peer:
        yield peer


def test_a_connection_is_encrypted_kept_and_given_up_alike(
    open_transport: Open, trusted: Peer
) -> None:
    body = bytes(500_000)
    transport = open_transport(trusted.url)
    for _ in range(3):
        assert reply_to(transport, body).body == body
    assert trusted.connections == 1
    trusted.respond = silent(trusted)
    transport.submit(8, b"{}")
    while len(trusted.requests) < 4:
        assert not transport.poll(0.01)
    begun = time.monotonic()
    transport.close()
    assert time.monotonic() - begun < PATIENCE_S / 2, "the peer is silent for longer"


def test_a_peer_that_nobody_vouches_for_is_sent_nothing(
    open_transport: Open, trusted: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_CA_BUNDLE")
    assert "certificate" in reply_to(open_transport(trusted.url)).error.lower()
    assert trusted.requests == []


# ---- proxies ------------------------------------------------------------------------------------


def test_a_proxy_carries_what_is_elsewhere(
    open_transport: Open, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", peer.url)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert reply_to(open_transport("http://lambda.invalid")).error == ""
    assert peer.requests[0].path.startswith("http://lambda.invalid/2015-03-31/functions/")
    monkeypatch.setenv("no_proxy", "lambda.invalid")
    assert reply_to(open_transport("http://lambda.invalid")).error
    assert len(peer.requests) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_what_is_on_this_machine_needs_no_proxy(
    host: str, open_transport: Open, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        assert reply_to(open_transport(peer.url.replace("127.0.0.1", host))).error == ""
        assert (len(peer.requests), proxy.requests) == (1, [])


def test_no_client_of_a_configured_service_on_this_machine_asks_a_proxy(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", peer.url)
    with serving() as proxy:
        monkeypatch.setenv("http_proxy", proxy.url)
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        client = open_client(open_session(region=REGION), "lambda")
        assert client.invoke(FunctionName="worker", Payload=b"{}")["StatusCode"] == 200
        client.close()
        assert (len(peer.requests), proxy.requests) == (1, [])


def test_a_profile_that_is_missing_is_named_unless_keys_are_given(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    local = make("boto3", peer.url, session=open_session(region=REGION, keys=(KEY, SECRET)))
    assert reply_to(local).error == ""
    local.close()
    named = r"`AWS_PROFILE` must name a profile .*; got 'nobody' \(`aws configure list-profiles`"
    target = Target.invoke_api("f", region=REGION, endpoint_url=peer.url)
    for opened in (
        partial(Target.invoke_api, "f", region=REGION),
        partial(Boto3Transport, "f", region=REGION),
        partial(HttpTransport, target),
        open_s3,
        deploy.open_session,
    ):
        with pytest.raises(ParameterError, match=named):
            opened()


# ---- waiting, and the end -----------------------------------------------------------------------


def test_polling_ends_when_its_time_is_up_or_a_reply_is_there(open_transport: Open) -> None:
    transport = open_transport()
    begun = time.monotonic()
    assert not transport.poll(0.0)
    assert not transport.poll(0.05)
    assert time.monotonic() - begun >= 0.05
    transport.submit(1, b"{}")
    assert transport.poll(math.inf)


def test_whoever_polls_is_woken_now_or_the_next_time(open_transport: Open, peer: Peer) -> None:
    peer.respond = silent(peer)
    transport = open_transport()
    begun = time.monotonic()
    for _ in range(3):
        transport.wake()  # before
        transport.submit(1, b"{}")
        transport.flush()
        assert not transport.poll(math.inf)
        alarm = threading.Timer(0.02, transport.wake)
        alarm.start()
        assert not transport.poll(math.inf)
        alarm.join()
    assert time.monotonic() - begun < 10.0, "libcurl looks up every five seconds by itself"
    begun = time.monotonic()
    assert not transport.poll(0.05)
    assert time.monotonic() - begun >= 0.05, "nobody woke it"
    transport.close()
    transport.wake()


def test_a_running_event_loop_does_no_harm(open_transport: Open) -> None:
    async def cell_of_a_notebook() -> Reply:
        return reply_to(open_transport())

    assert asyncio.run(cell_of_a_notebook()).body == b"{}"


def test_an_answer_is_there_until_the_next_poll_whatever_came_since(
    open_transport: Open,
) -> None:
    transport = open_transport()
    transport.submit(0, b"0" * 100_000)
    transport.flush()
    for tag in range(1, 20):
        (reply,) = transport.poll(PATIENCE_S)
        transport.submit(tag, b"%d" % (tag % 10) * 100_000)
        transport.flush()  # in which the next answer may come
        assert (reply.tag, reply.body) == (tag - 1, b"%d" % ((tag - 1) % 10) * 100_000)


def test_replies_are_stamped_by_the_clock_that_was_given(open_transport: Open) -> None:
    class Stopped:
        def now(self) -> float:
            return 42.0

    assert reply_to(open_transport(clock=Stopped())).at == 42.0


def test_closing_abandons_what_hangs_at_once(open_transport: Open, peer: Peer) -> None:
    peer.respond = silent(peer)
    before = open_files()
    transport = open_transport()
    for tag in range(8):
        transport.submit(tag, b"{}")
    while len(peer.requests) < 8:
        assert not transport.poll(0.01)
    begun, threads = time.monotonic(), set(threading.enumerate())
    transport.close()
    assert time.monotonic() - begun < PATIENCE_S / 2, "the peer is silent for longer"
    own = [thread for thread in threads if thread.name.startswith("seqgc-")]
    assert all(thread.daemon for thread in own), "they must not keep the interpreter from exiting"
    peer.release.set()
    eventually(lambda: not any(thread.is_alive() for thread in own), "the end of its threads")
    gc.collect()  # urllib3 closes the connections of a pool when the pool is collected
    eventually(lambda: open_files() <= before, "closing of all sockets, the peer's, too")
    transport.close()
    with pytest.raises(WorkerError, match="transport is closed"):
        transport.submit(9, b"{}")


def test_closing_while_answers_come_in_is_closing(open_transport: Open, peer: Peer) -> None:
    for _ in range(5):
        transport = open_transport()
        for tag in range(10):
            transport.submit(tag, b"{}")
        transport.flush()
        eventually(lambda: peer.answered == 10, "answering")  # into the system's buffers
        peer.answered = 0
        transport.poll(0.0)  # a glance, in the midst of which it ends
        transport.close()


def open_files() -> int:
    return sum(1 for each in Path("/proc/self/fd").iterdir() if is_socket(each))


def is_socket(descriptor: Path) -> bool:
    try:
        return str(descriptor.readlink()).startswith("socket:")
    except OSError:
        return False


@pytest.mark.parametrize(
    ("argument", "value", "rule"),
    [
        ("connections", 0, "must be an integer >= 1"),
        ("max_answer_bytes", -1, "must be an integer >= 1"),
        ("timeout_s", 0.0, "must be > 0 seconds"),
        ("connect_timeout_s", math.nan, "must be > 0 seconds"),
        ("grace_s", -1.0, "must be >= 0 seconds"),
    ],
)
def test_limits_that_are_out_of_range_are_refused(argument: str, value: float, rule: str) -> None:
    with pytest.raises(ParameterError, match=f"`{argument}` {rule}"):
        Limits(**{argument: value})  # type: ignore[arg-type]


def test_boto3_finds_its_own_session(peer: Peer) -> None:
    transport = make("boto3", peer.url, session=None)
    try:
        assert reply_to(transport).body == b"{}"
        assert signature_is_right(peer.requests[0], peer.url)
    finally:
        transport.close()


# ---- addresses ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [HttpTransport, CurlTransport])
def test_a_function_url_is_posted_to_and_says_less_in_trouble(
    peer: Peer, kind: type[HttpTransport] | type[CurlTransport]
) -> None:
    transport = kind(Target.function_url(peer.url + "/", region=REGION))
    try:
        assert reply_to(transport, b'{"seqgc": 1}').body == b'{"seqgc": 1}'
        assert peer.requests[0].path == "/"
        assert signature_is_right(peer.requests[0], peer.url)
        peer.respond = lambda _: Response(status=502, body=b"Internal Server Error")
        assert reply_to(transport).error.startswith("HTTP 502: Internal Server Error")
    finally:
        transport.close()


@pytest.mark.parametrize("kind", [HttpTransport, CurlTransport])
def test_an_arn_is_quoted_as_it_is_signed(
    peer: Peer, kind: type[HttpTransport] | type[CurlTransport]
) -> None:
    arn = f"arn:aws:lambda:{REGION}:123456789012:function:worker"
    transport = kind(Target.invoke_api(arn, region=REGION, endpoint_url=peer.url))
    try:
        assert reply_to(transport).error == ""
    finally:
        transport.close()
    (request,) = peer.requests
    assert request.path == f"/2015-03-31/functions/{arn.replace(':', '%3A')}/invocations"
    assert signature_is_right(request, peer.url)


def test_targets_that_are_none_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="`url` must be a URL"):
        Target.function_url("abc.lambda-url.eu-west-1.on.aws")
    with pytest.raises(ParameterError, match="`region` must be given"):
        Target.function_url("https://example.org/")
    with pytest.raises(ParameterError, match="`endpoint_url` must be a URL"):
        Target.invoke_api("f", region=REGION, endpoint_url="localhost:9001")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(ParameterError, match=r"`credentials` must be configured.*aws configure"):
        HttpTransport(Target.invoke_api("f", region=REGION))
