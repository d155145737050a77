"""Bodies: the same however their chunks are cut, read once, and into memory of their own."""

from __future__ import annotations

import pytest

from seqgc.backends.lambda_ import _bodies
from seqgc.backends.lambda_._bodies import Chunks, HttpError, Memory
from seqgc.backends.lambda_._http1 import _Connection

STREAM = b"3;name=value\r\nabc\r\n0A \t\r\n0123456789\r\n1\r\n\r\r\n0\r\nX: y\r\nZ: w\r\n\r\n"
BODY = b"abc0123456789\r"


@pytest.mark.parametrize("size", range(1, len(STREAM) + 1))
def test_a_body_is_whole_however_it_comes(size: int) -> None:
    chunks = Chunks(max_bytes=len(BODY))
    pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    *before, last = [chunks.take(piece) for piece in pieces]
    assert before == [None] * len(before)
    assert last == BODY


def test_each_of_many_small_chunks_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count, piece = 200_000, 997
    lengths = 0
    length_of = _bodies._length

    def counting(*arguments: object) -> int:
        nonlocal lengths
        lengths += 1
        return length_of(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(_bodies, "_length", counting)
    stream = b"1\r\nx\r\n" * count + b"0\r\n\r\n"
    pieces = [stream[at : at + piece] for at in range(0, len(stream), piece)]
    chunks = Chunks(max_bytes=count)
    *_, body = [chunks.take(each) for each in pieces]
    assert body == b"x" * count
    assert lengths <= count + 1 + len(pieces), "a chunk that was cut is read once more"


@pytest.mark.parametrize(
    ("stream", "reason"),
    [
        (b"9\r\n012345678\r\n", "a body of more than 8 bytes"),
        (b"8\r\n01234567\r\n1\r\nx", "a body of more than 8 bytes"),
        (b"2\r\nabc\r\n", "a chunk is longer than it says"),
        (b"2;" + b"x" * 70_000, "a chunk's length does not end"),
        (b"2;" + b"x" * 70_000 + b"\r\n", "a chunk's length does not end"),
        (b"0\r\n" + b"X: y\r\n" * 20_000, "its trailers do not end"),
        (b"-2\r\nab\r\n", "'-2' is no length"),
        (b"\r\nab\r\n", "'' is no length"),
    ],
)
def test_what_is_no_chunk_is_refused(stream: bytes, reason: str) -> None:
    with pytest.raises(HttpError, match=reason):
        Chunks(max_bytes=8).take(stream)


def test_what_two_clients_read_at_once_in_two_threads_is_not_mixed() -> None:
    first, second = (_Connection(set(), Memory(), 100).get_buffer(-1) for _ in range(2))
    first[:2] = b"ab"
    second[:2] = b"cd"
    assert bytes(first[:2]) == b"ab"
