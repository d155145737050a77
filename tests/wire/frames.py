"""Frames taken apart and put together by hand, from what `seqgc.wire` says of their bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import xxhash

from seqgc.wire import SCHEMA_VERSION, Message, encode

RUN = "run-1"
BEGIN = 36  # of the header


def framed(text: bytes, body: bytes = b"", *, version: int = SCHEMA_VERSION) -> bytes:
    """Return a frame whose digest is right, whatever its header says."""
    covered = struct.pack("<IQ", len(text), len(body)) + text + body
    digest = xxhash.xxh3_128_digest(covered)
    return struct.pack("<4sHH16s", b"SGCF", version, 0, digest) + covered


def taken_apart(frame: bytes) -> tuple[bytes, bytes]:
    """Return a frame's header and body."""
    header_bytes, _ = struct.unpack_from("<IQ", frame, 24)
    return frame[BEGIN : BEGIN + header_bytes], frame[BEGIN + header_bytes :]


def header_of(frame: bytes) -> dict[str, Any]:
    header: dict[str, Any] = json.loads(taken_apart(frame)[0])
    return header


def tampered(message: Message, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return a message's frame with another header, and the digest that goes with it."""
    frame = encode(message, run_id=RUN)
    header = header_of(frame)
    change(header)
    return framed(json.dumps(header).encode(), taken_apart(frame)[1])


def setting(*path: str | int, value: object) -> Callable[[dict[str, Any]], None]:
    """Return a change of a header: what is under this path of its message becomes the value."""

    def change(header: Any) -> None:
        place = header["message"]
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return change
