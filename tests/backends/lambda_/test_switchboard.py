"""Who gets through to a master that listens: its own functions, each once, and nobody else."""

from __future__ import annotations

import errno
import secrets
import select
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import datetime, tzinfo
from typing import Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqgc.backends import MonotonicClock
from seqgc.backends.lambda_ import Address
from seqgc.errors import ParameterError
from seqgc.testing import PATIENCE_S, eventually
from tests.backends.lambda_.caller import Caller
from tests.backends.lambda_.parts import Switchboard, tls_client, tls_server
from tests.kit import SOAK

BEAT_S = 0.2
CALL, TOKEN = b"c" * 16, b"t" * 32
FRAME = b"a frame"


@pytest.fixture(scope="module")
def listening() -> Iterator[Switchboard]:
    """One for all: what strangers do may be of no consequence to those who come after them."""
    board = opened()
    yield board
    board.close()


@pytest.fixture(scope="module")
def usual() -> Iterator[Switchboard]:
    """One with beats of a second: on a busy machine a proof may take that long."""
    board = opened(beat_s=1.0)
    yield board
    board.close()


def opened(
    tls: ssl.SSLContext | None = None, *, beat_s: float = BEAT_S, patience: int = 5, **more: int
) -> Switchboard:
    return Switchboard(
        Address().listener(),
        tls=tls,
        beat_s=beat_s,
        patience=patience,
        clock=MonotonicClock(),
        on_news=lambda: None,
        **more,
    )


def calling(board: Switchboard) -> Caller:
    return Caller(socket.create_connection((board.host, board.port), timeout=PATIENCE_S))


def is_heard(board: Switchboard, caller: Caller, tag: int) -> bool:
    """Whether a frame gets through, and none but that."""
    caller.send(FRAME)
    heard = eventually(board.take, "the frame")
    return [(each.tag, each.frame) for each in heard] == [(tag, FRAME)]


def expected(board: Switchboard, tag: int = 0) -> tuple[bytes, bytes]:
    call, token = secrets.token_bytes(16), secrets.token_bytes(32)
    board.expect(tag, call=call, token=token)
    return call, token


def gone(board: Switchboard, caller: Caller) -> str:
    caller.sock.close()
    (end,) = eventually(board.take, "the end")
    assert end.frame is None
    return end.why


def test_a_function_that_knows_the_token_is_heard_and_hears(listening: Switchboard) -> None:
    call, token = expected(listening, 7)
    caller = calling(listening)
    caller.prove(call, token)
    assert is_heard(listening, caller, 7)
    listening.send(7, FRAME)
    beats = 0
    while (length := struct.unpack("<Q", caller.exactly(8))[0]) == 0:
        beats += 1  # while nothing is said
    assert caller.exactly(length) == FRAME
    assert "ended" in gone(listening, caller)


def test_nobody_else_is_told_anything(listening: Switchboard) -> None:
    call, token = expected(listening)
    for hello in (
        {"call": secrets.token_bytes(16)},
        {"call": call, "magic": b"SGCF"},
        {"call": call, "version": 2},
    ):
        stranger = calling(listening)
        stranger.hello(**hello)  # type: ignore[arg-type]
        assert stranger.rest() == b""
        stranger.sock.close()
    mistaken = calling(listening)  # the call is known to who reads invocations, the token too
    mistaken.hello(call)
    answer = mistaken.exactly(64)
    mistaken.sock.sendall(answer[32:])  # the master's own proof
    assert mistaken.rest() == b""
    mistaken.sock.close()
    caller = calling(listening)
    caller.prove(call, token)  # nothing of that has used up the call
    assert is_heard(listening, caller, 0)
    gone(listening, caller)


def test_a_call_is_answered_once_and_no_proof_is_of_use_twice(listening: Switchboard) -> None:
    call, token = expected(listening)
    caller = calling(listening)
    proof = caller.prove(call, token)
    assert is_heard(listening, caller, 0)
    second = calling(listening)
    second.hello(call)
    assert second.rest() == b""
    second.sock.close()
    listening.expect(1, call=call, token=token)  # were it expected again
    replaying = calling(listening)
    replaying.hello(call)
    assert len(replaying.exactly(64)) == 64
    replaying.sock.sendall(proof)
    assert replaying.rest() == b""
    replaying.sock.close()
    assert listening.take() == []
    assert is_heard(listening, caller, 0)
    gone(listening, caller)


def test_one_who_is_hung_up_on_before_the_call_is_not_let_in(listening: Switchboard) -> None:
    call, _ = expected(listening)
    listening.hang_up(0, call=call)
    caller = calling(listening)
    caller.hello(call)
    assert caller.rest() == b""
    caller.sock.close()


noise = st.binary(max_size=200) | st.binary(max_size=80).map(
    lambda rest: b"SGCR\x01\x00" + CALL + rest
)


@settings(max_examples=2000 if SOAK else 40)
@given(first=noise, then=noise, hangs_up=st.booleans())
def test_whatever_strangers_say_they_hear_no_secret_and_disturb_nobody(
    usual: Switchboard, first: bytes, then: bytes, hangs_up: bool
) -> None:
    call, token = expected(usual, 3)
    caller = calling(usual)
    caller.prove(call, token)
    usual.expect(9, call=CALL, token=TOKEN)
    stranger = calling(usual)
    try:
        stranger.sock.sendall(first)
        stranger.sock.sendall(then)
        if hangs_up:
            stranger.sock.close()
        else:
            stranger.sock.shutdown(socket.SHUT_WR)
            told = stranger.rest()
            assert len(told) in (0, 64)  # a nonce and the master's proof, to who knows a call
            if told:
                assert (first + then).startswith(b"SGCR\x01\x00" + CALL)
    except ConnectionError:
        pass  # hung up on in mid-sentence
    finally:
        stranger.sock.close()
    assert is_heard(usual, caller, 3)
    gone(usual, caller)
    usual.hang_up(9, call=CALL)


def test_strangers_who_say_nothing_keep_nobody_out_and_must_go(listening: Switchboard) -> None:
    count = 2000 if SOAK else 300  # more than may be there at once
    with ExitStack() as stack:
        silent = [calling(listening) for _ in range(count)]
        for each in silent:
            stack.callback(each.sock.close)
        call, token = expected(listening, 5)
        caller = calling(listening)
        caller.prove(call, token)
        assert is_heard(listening, caller, 5)
        assert silent[0].rest() == b""
        assert silent[-1].rest() == b""  # after five beats
        gone(listening, caller)


def test_who_is_silent_for_five_beats_is_lost(listening: Switchboard) -> None:
    call, token = expected(listening)
    caller = calling(listening)
    caller.prove(call, token)
    assert is_heard(listening, caller, 0)
    began = time.monotonic()
    (end,) = eventually(listening.take, "the end")
    assert "silent for 5 heartbeats" in end.why
    assert time.monotonic() - began >= 4 * BEAT_S
    caller.sock.close()


def test_before_its_first_frame_a_function_may_be_too_busy_to_beat() -> None:
    board = opened(patience=1)
    try:
        caller = calling(board)
        caller.prove(*expected(board))
        for _ in range(4):
            assert caller.exactly(8) == bytes(8)  # a beat of the master's, which hears none
        caller.send(FRAME)
        assert eventually(board.take, "the frame")[0].frame == FRAME
        caller.sock.close()
    finally:
        board.close()


def test_what_nobody_takes_is_not_read_and_is_no_silence() -> None:
    board, most = opened(beat_s=0.02, untaken_bytes=1 << 20), 1 << 20
    try:
        caller = calling(board)
        caller.prove(*expected(board))
        message = struct.pack("<Q", 100_000) + bytes(100_000)
        caller.sock.setblocking(False)
        told = 0  # bytes, until there is room neither there nor on the way
        while told < 40 << 20 and select.select([], [caller.sock], [], 0.5)[1]:
            offset = told % len(message)
            told += caller.sock.send(message[offset:])
        first = board.take()
        assert first
        assert all(each.frame is not None for each in first)
        assert sum(len(each.frame or b"") for each in first) <= most + 100_000
        count, due = len(first), told // len(message)

        def takes() -> bool:
            nonlocal count
            count += sum(each.frame is not None for each in board.take())
            return count >= due

        eventually(takes, "the rest")
        caller.sock.close()
    finally:
        board.close()


def test_who_does_not_read_what_it_is_sent_is_hung_up_on() -> None:
    board = opened(beat_s=60.0, untaken_bytes=1 << 20)
    try:
        caller = calling(board)
        caller.prove(*expected(board, 8))
        assert is_heard(board, caller, 8)
        for _ in range(200):  # 20 MB: more than is on the way
            board.send(8, bytes(100_000))
        (end,) = eventually(board.take, "the end")
        assert (end.tag, end.why) == (8, "the function does not read its messages")
        caller.sock.close()
    finally:
        board.close()


class Full(socket.socket):
    def accept(self) -> tuple[socket.socket, object]:
        raise OSError(errno.EMFILE, "Too many open files")


def test_a_master_that_can_let_nobody_in_says_why() -> None:
    board = Switchboard(
        Full(fileno=Address().listener().detach()),
        tls=None,
        beat_s=BEAT_S,
        patience=5,
        clock=MonotonicClock(),
        on_news=lambda: None,
    )
    try:
        assert "Too many open files" in eventually(lambda: board.trouble, "the reason")
    finally:
        board.close()


def test_who_connects_as_it_closes_is_hung_up_on_too() -> None:
    for _ in range(2000 if SOAK else 100):  # one in five was left open
        board = opened()
        with socket.create_connection((board.host, board.port), timeout=PATIENCE_S) as caller:
            board.close()
            with suppress(ConnectionResetError):  # it was not let in, or hung up on
                assert caller.recv(1) == b""


def test_one_beat_in_time_is_enough_and_half_a_frame_is_one(listening: Switchboard) -> None:
    call, token = expected(listening)
    caller = calling(listening)
    caller.prove(call, token)
    message = struct.pack("<Q", len(FRAME)) + FRAME
    beats = 0
    for number in range(len(message)):
        caller.sock.sendall(message[number : number + 1])
        if beats < 8:  # no longer than must be, to be silent if this were silence
            caller.exactly(8)  # a beat of the master's
            beats += 1
    (heard,) = eventually(listening.take, "the frame")
    assert heard.frame == FRAME
    gone(listening, caller)


def test_a_frame_that_no_memory_could_hold_ends_the_line(listening: Switchboard) -> None:
    call, token = expected(listening)
    caller = calling(listening)
    caller.prove(call, token)
    caller.sock.sendall(b"\xff" * 8)
    (end,) = eventually(listening.take, "the end")
    assert "WireError: a frame of" in end.why
    caller.sock.close()


def test_encrypted_only_who_took_this_run_s_certificate_is_talking_to_its_master() -> None:
    tls, certificate = tls_server()
    board = opened(tls)
    try:
        call, token = expected(board)
        plain = calling(board)
        plain.hello(call)
        assert call not in plain.rest()
        plain.sock.close()
        _, another = tls_server()
        raw = socket.create_connection((board.host, board.port), timeout=PATIENCE_S)
        with raw, pytest.raises(ssl.SSLCertVerificationError):
            tls_client(another).wrap_socket(raw, server_hostname="master.seqgc")
        raw = socket.create_connection((board.host, board.port), timeout=PATIENCE_S)
        caller = Caller(tls_client(certificate).wrap_socket(raw, server_hostname="master.seqgc"))
        caller.prove(call, token)
        assert is_heard(board, caller, 0)
        gone(board, caller)
    finally:
        board.close()


@pytest.mark.parametrize("year", [1990, 2090])
def test_whose_clock_is_right_is_no_question_between_the_two(
    monkeypatch: pytest.MonkeyPatch, year: int
) -> None:
    class Wrong(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls(year, 1, 1, tzinfo=tz)

    monkeypatch.setattr("seqgc.backends.lambda_._switchboard.datetime", Wrong)
    tls, certificate = tls_server()
    board = opened(tls)
    try:
        raw = socket.create_connection((board.host, board.port), timeout=PATIENCE_S)
        caller = Caller(tls_client(certificate).wrap_socket(raw, server_hostname="master.seqgc"))
        caller.prove(*expected(board))
        assert is_heard(board, caller, 0)
        gone(board, caller)
    finally:
        board.close()


def test_a_port_that_is_taken_is_passed_over_and_if_all_are_is_refused() -> None:
    with Address().listener() as first:
        port = first.getsockname()[1]
        with pytest.raises(ParameterError, match=r"`master_address` must be .* free port"):
            Address(ports=(port,)).listener()
        with Address(ports=(port, 0)).listener() as second:
            assert second.getsockname()[1] != port
    with pytest.raises(ParameterError, match="not encrypted"):
        Address(host="10.0.0.1", plain=True)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "localhost", "10.0.0"])
def test_a_master_listens_at_one_address_and_not_at_all(host: str) -> None:
    with pytest.raises(ParameterError, match="`master_address` must be one IP address"):
        Address.in_vpc(host)
    Address.in_vpc("10.0.0.5")
    Address.in_vpc("fd00::5")


def test_where_there_is_no_route_the_address_must_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unreachable(socket.socket):
        def connect(self, _: object) -> None:
            raise OSError(101, "Network is unreachable")

    monkeypatch.setattr("socket.socket", Unreachable)
    with pytest.raises(ParameterError, match=r"must be given.* \(.*unreachable\); got None$"):
        Address.in_vpc(None)
