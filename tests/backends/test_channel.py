"""Frames over a socket come out as they went in, however the bytes happen to be cut."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqgc.backends._channel import Channel
from seqgc.errors import WireError

MAX_BYTES = 1_000_000
Ends = tuple[Channel, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, max_bytes=MAX_BYTES)
    yield channel, theirs
    channel.close()
    theirs.close()


@given(frames=st.lists(st.binary(min_size=1, max_size=50), max_size=5), data=st.data())
def test_frames_are_whole_however_the_stream_is_cut(
    frames: list[bytes], data: st.DataObject
) -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, max_bytes=50)
    with theirs, closing(channel):
        stream = b"".join(len(frame).to_bytes(8, "little") + frame for frame in frames)
        received: list[bytes] = []
        while stream:
            size = data.draw(st.integers(1, len(stream)))
            theirs.sendall(stream[:size])
            stream = stream[size:]
            received += map(bytes, channel.pull())
    assert received == frames


def test_what_the_other_side_does_not_take_waits_and_goes_out_in_order() -> None:
    left, right = (Channel(end, max_bytes=MAX_BYTES) for end in socket.socketpair())
    frames = [bytes([number]) * MAX_BYTES for number in range(3)]
    for frame in frames:
        left.push(frame)
    assert left.unsent
    received: list[bytearray] = []
    while len(received) < 3:
        received += right.pull()
        left.flush()
    assert received == frames
    assert not left.unsent
    left.close()
    right.close()


@pytest.mark.parametrize("size", [0, MAX_BYTES + 1, 2**64 - 1])
def test_a_frame_of_a_wrong_size_is_refused_before_it_is_read(ends: Ends, size: int) -> None:
    channel, other = ends
    other.sendall(size.to_bytes(8, "little"))
    with pytest.raises(WireError, match=f"a frame of {size} bytes was announced"):
        channel.pull()


def test_frames_before_the_end_are_read_and_half_a_frame_is_not(ends: Ends) -> None:
    channel, other = ends
    other.sendall((2).to_bytes(8, "little") + b"ab" + (9).to_bytes(8, "little") + b"half")
    other.close()
    assert channel.pull() == [b"ab"]
    assert channel.ended


def test_sending_to_a_closed_end_forgets_the_frame_but_reads_what_is_there(ends: Ends) -> None:
    channel, other = ends
    other.sendall((2).to_bytes(8, "little") + b"ab")
    other.close()
    channel.push(b"nobody reads this")
    assert not channel.unsent
    assert channel.pull() == [b"ab"]
    assert channel.ended
