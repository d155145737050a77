"""Frames that mean harm: an error of the wire's, little memory, little time."""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest

from seqgc.errors import WireError
from seqgc.wire import CancelMessage, decode, decode_invocation, encode, from_json, to_json
from tests.kit import SOAK, most_bytes
from tests.wire.frames import RUN, framed, taken_apart
from tests.wire.test_wire import INVOCATION, result_of, task_of

_MOST_BYTES = 64 << 20
_HEADER_BYTES = (1 << 22) - 64
_SUBJECT = '{"round":0,"worker":0,"attempt":0,"code":"","weights_digest":""}'
_HEAD = '{"run":"run-1","message":{"type":"TYPE","subject":' + _SUBJECT
_RESULT = (
    _HEAD.replace("TYPE", "result")
    + ',"payload":null,"rounding_seed":null,"dtype":"float32","results":['
)
_TASK = _HEAD.replace("TYPE", "task") + ',"delay_s":0,"payload":null,"rounding_seed":null,"items":['
_WEIGHTS = '{"model":"","version":0,"digest":"0","dtype":"float16","size":0}'.replace(
    '"0"', f'"{0:064}"'
)
_BEFORE, _, _AFTER = taken_apart(encode(INVOCATION, run_id=RUN))[0].decode().partition("12345")


def _filled(begin: str, piece: Callable[[int], str], end: str) -> bytes:
    """As many pieces between as a header of 4 MB has room for."""
    room, pieces, number = _HEADER_BYTES - len(begin) - len(end), [], 0
    while (size := len(text := piece(number).encode()) + 1) <= room:
        pieces.append(text)
        room, number = room - size, number + 1
    return begin.encode() + b",".join(pieces) + end.encode()


_PIECES = ",".join(["[0,0]"] * 4096)
HEADERS: dict[str, tuple[str, Callable[[int], str], str]] = {
    "slots": (_RESULT, lambda k: f'{{"slot":{k},"pieces":[[0,0]]}}', "]}}"),
    "pieces": (_RESULT, lambda k: f'{{"slot":{k},"pieces":[{_PIECES}]}}', "]}}"),
    "items": (_TASK, lambda k: f'{{"slot":{k},"parts":[]}}', "]}}"),
    "parts": (
        _TASK + '{"slot":0,"parts":[',
        lambda _: f'{{"model":"","count":0,"weights":{_WEIGHTS}}}',
        "]}]}}",
    ),
    "lists": (_BEFORE + "[", lambda _: "[]", "]" + _AFTER),
    "objects": (_BEFORE + "[", lambda _: "{}", "]" + _AFTER),
    "keys": (_BEFORE + "{", lambda k: f'"{k:x}":{k + 1000}', "}" + _AFTER),
    "numbers": (_BEFORE + "[", lambda _: "1.5", "]" + _AFTER),
    "words": (_BEFORE + "[", lambda _: '"é"', "]" + _AFTER),
    "a word": (_BEFORE + '"😀', lambda _: "a" * 1000, '"' + _AFTER),
}


def _refused(frame: bytes) -> tuple[float, int]:
    """Decode it, if that can be; return the processor's seconds and bytes that it took."""
    began = time.thread_time()
    with suppress(WireError):
        decode(frame, run_id=RUN)
    seconds = time.thread_time() - began
    gc.collect()
    tracemalloc.start()
    with suppress(WireError):
        decode(frame, run_id=RUN)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return seconds, peak


@pytest.mark.parametrize("shape", HEADERS)
def test_a_header_of_four_megabytes_costs_little(shape: str) -> None:
    frame = framed(_filled(*HEADERS[shape]))
    assert len(frame) > 4_100_000
    seconds, peak = _refused(frame)
    assert peak < _MOST_BYTES, f"{peak} bytes"
    assert seconds < 1.0, f"{seconds} s"


def test_as_many_values_as_may_be_cost_little_and_one_more_is_refused() -> None:
    begin, piece, end = HEADERS["slots"]

    def values(text: str) -> int:
        return sum(map(text.count, ",[{"))

    count = ((1 << 17) - values(begin) + 1) // values("," + piece(0))
    most, more = (begin + ",".join(map(piece, range(n))) + end for n in (count, count + 2))
    assert values(most) <= 1 << 17 < values(more)
    decode(framed(most.encode()), run_id=RUN)
    seconds, peak = _refused(framed(most.encode()))
    assert peak < _MOST_BYTES
    assert seconds < 1.0
    with pytest.raises(WireError, match="values, at most 131072"):
        decode(framed(more.encode()), run_id=RUN)


_TASK_SENT = task_of([4, 5], [0.5, 2.0])
SENT = (
    INVOCATION,
    _TASK_SENT,
    result_of(np.ones(3), np.arange(4.0)),
    _TASK_SENT.failure("why\nnot"),
    _TASK_SENT.receipt(digest="0" * 64, size_bytes=3),
    CancelMessage(round=0, worker=0),
)
_COUNT = 1_000_000 if SOAK else 20_000
_SPLICES = (
    b"[",
    b"]",
    b"{",
    b"}",
    b",",
    b":",
    b'"',
    b"-",
    b"0",
    b"1e999",
    b"null",
    b"\\u0000",
    b"\xff",
)


def test_changed_frames_are_messages_or_errors_of_the_wires() -> None:
    rng = random.Random(11)
    whole = [encode(each, run_id=RUN) for each in SENT]
    parts = [taken_apart(each) for each in whole]
    refused, slowest_s = 0, 0.0
    before_bytes = most_bytes(anew=True) if SOAK else 0
    for number in range(_COUNT):
        header, body = map(bytearray, parts[number % len(parts)])
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(header))
            header[place : place + rng.choice((0, 1, 1, 9))] = (
                rng.choice(_SPLICES) if rng.random() < 0.5 else rng.randbytes(1)
            )
        if rng.random() < 0.1:
            del body[len(body) - rng.randint(0, 8) :]
        frame = framed(bytes(header), bytes(body))
        if rng.random() < 0.1:  # and here the digest is wrong, too
            frame = frame[: rng.randrange(len(frame))] + rng.randbytes(rng.randint(0, 3))
        read = (_decode, decode_invocation, _envelope)[number // len(parts) % 3]  # each by each
        began_s = time.thread_time()
        try:
            read(frame)
        except WireError as error:
            refused, line = refused + 1, str(error)
            assert line.isprintable()
            assert len(line) < 1200
        slowest_s = max(slowest_s, time.thread_time() - began_s)
    assert refused > _COUNT / 2
    assert slowest_s < 1.0
    assert not SOAK or most_bytes() - before_bytes < _MOST_BYTES


def _decode(frame: bytes) -> object:
    return decode(frame, run_id=RUN)


def _envelope(frame: bytes) -> object:
    return from_json(to_json(frame)[: len(frame)].replace(b"U", frame[40:42]))
