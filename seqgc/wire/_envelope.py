"""A frame in JSON, for services that carry nothing else: ``{"seqgc": 1, "frame": "<base64>"}``.

A parser looks at each of 2 million characters, which takes four times as long as decoding them. So
an envelope of the shape that `to_json` or Python's `json` writes is cut here, and only an unusual
one is left to the parser: base64 has neither quotes nor backslashes, hence whatever passes as
strict base64 between the quotes is that JSON string, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec

from seqgc.errors import WireError
from seqgc.wire._frame import MAX_FRAME_BYTES, one_line
from seqgc.wire._message_types import Record

try:  # compiled, 20 to 50 times as fast
    from pybase64 import b64decode, b64encode
except ImportError:
    from base64 import b64decode, b64encode  # type: ignore[assignment]

__all__ = ["MESSAGE_LIMIT_BYTES", "envelope_bytes", "from_json", "to_json", "to_mapping"]

MESSAGE_LIMIT_BYTES: Final = 6 * 2**20
"""What AWS Lambda takes in a synchronous request, and in its reply, as JSON (service quotas)."""

_VERSION = 1
_BEGINNINGS = (b'{"seqgc":1,"frame":"', b'{"seqgc": 1, "frame": "')
_END = b'"}'
_OVERHEAD_BYTES = 1024  # of JSON around the string that are put up with


class _Envelope(Record, frozen=True, kw_only=True):
    seqgc: int
    frame: str


_DECODER = msgspec.json.Decoder(_Envelope)


def envelope_bytes(frame_bytes: int) -> int:
    """Return how long, in bytes, the JSON of a frame of so many bytes is.

    Examples
    --------
    >>> envelope_bytes(1_500_000), len(to_json(bytes(1_500_000)))
    (2000022, 2000022)
    """
    return len(_BEGINNINGS[0]) + len(_END) + _encoded_bytes(frame_bytes)


def to_json(frame: bytes | bytearray) -> bytes:
    """Return the JSON of a frame.

    Examples
    --------
    >>> to_json(b"SGCF")
    b'{"seqgc":1,"frame":"U0dDRg=="}'
    """
    return b"".join((_BEGINNINGS[0], b64encode(frame), _END))


def to_mapping(frame: bytes | bytearray) -> dict[str, object]:
    """Return what the JSON of a frame stands for, to be written as JSON by somebody else."""
    return {"seqgc": _VERSION, "frame": b64encode(frame).decode("ascii")}


def from_json(
    body: bytes | bytearray | memoryview | str | Mapping[str, object],
    *,
    max_bytes: int = MAX_FRAME_BYTES,
) -> bytes:
    """Return the frame in a JSON text, or in what such a text was parsed to.

    What promises to be longer than ``max_bytes`` is refused before it is decoded.

    Raises
    ------
    WireError
        If it is no such JSON, its version is another, or the frame is too long or not base64.

    Examples
    --------
    >>> from_json(b'{"seqgc": 1, "frame": "U0dDRg=="}')
    b'SGCF'
    >>> from_json("[]")
    Traceback (most recent call last):
        ...
    seqgc.errors.WireError: envelope holds no frame: Expected `object`, got `array`
    """
    if isinstance(body, str):
        try:
            body = body.encode("ascii")
        except UnicodeEncodeError:
            raise WireError("envelope has characters that neither JSON nor base64 needs") from None
    if isinstance(body, bytes | bytearray | memoryview):
        _check_length(len(body) - _OVERHEAD_BYTES, max_bytes)
        end = len(body) - len(_END)
        for begin in _BEGINNINGS:
            if body[: len(begin)] == begin and body[max(len(begin), end) :] == _END:
                with suppress(WireError):  # unusual, perhaps escaped: left to the parser
                    return _decoded(memoryview(body)[len(begin) : end], max_bytes)
    try:
        if isinstance(body, bytes | bytearray | memoryview):
            envelope = _DECODER.decode(body)
        else:
            envelope = msgspec.convert(body, _Envelope)
    except (ValueError, RecursionError) as error:
        what = "holds no frame" if isinstance(error, msgspec.ValidationError) else "is not JSON"
        raise WireError(f"envelope {what}: {one_line(str(error))}") from error
    if envelope.seqgc != _VERSION:
        rule = f"has version {envelope.seqgc}, not {_VERSION}"
        raise WireError(f"envelope {rule}: run one seqgc version everywhere")
    return _decoded(envelope.frame, max_bytes)


def _decoded(text: str | memoryview, max_bytes: int) -> bytes:
    _check_length(len(text), max_bytes)
    try:
        return b64decode(text, validate=True)
    except ValueError as error:
        raise WireError(f"envelope's frame is not base64: {one_line(str(error))}") from error


def _check_length(encoded: int, max_bytes: int) -> None:
    if encoded > _encoded_bytes(max_bytes):
        raise WireError(
            f"envelope of {encoded} characters holds more than the {max_bytes} bytes a frame may "
            "have here: send fewer models per job, a narrower `payload`, or use a store"
        )


def _encoded_bytes(size: int) -> int:
    return (size + 2) // 3 * 4
