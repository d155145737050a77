"""Conversion of messages to frames and back, and of frames to JSON envelopes.

Some services carry only JSON. There a frame is put into an envelope, ``{"seqgc": 1, "frame":
"<base64>"}``. A JSON parser takes four times as long for the characters of a large frame as base64
decoding. An envelope in the form that `to_json` or Python's `json` writes is therefore sliced
without a parser, and only other envelopes are parsed. Slicing is safe: base64 has no quotes and no
backslashes, so if the text between the quotes is strict base64, it is exactly the JSON string.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec
import numpy as np

from seqgc.errors import SeqgcError, WireError, one_line
from seqgc.wire._frame import MAX_FRAME_BYTES, pack, unpack
from seqgc.wire._headers import HEADERS, WithArrays
from seqgc.wire._message_types import (
    InvokeMessage,
    Message,
    Name,
    PlainMessage,
    Record,
    StayMessage,
)

try:  # compiled, 20 to 50 times as fast
    from pybase64 import b64decode, b64encode
except ImportError:
    from base64 import b64decode, b64encode  # type: ignore[assignment]


class _Header(Record, frozen=True, kw_only=True):
    """The JSON of a frame."""

    run: Name
    message: WithArrays | PlainMessage


def _plain(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


_MAX_VALUES = 1 << 17  # in a header; enough for ten thousand models
_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
_DECODER = msgspec.json.Decoder(_Header)


def encode(message: Message, *, run_id: str, sealed: bool = True) -> bytes:
    """Return the frame of a message. The receiver must pass the same run id to decode the frame.

    If ``sealed``, the frame has a digest. A pipe to a child process needs no digest.

    Raises
    ------
    WireError
        If the message cannot be sent, for example a result that is not finite or not a vector.

    Examples
    --------
    >>> from seqgc.wire import CancelMessage
    >>> frame = encode(CancelMessage(round=3, worker=1), run_id="r1")
    >>> decode(frame, run_id="r1")
    CancelMessage(round=3, worker=1)
    >>> decode(frame, run_id="another")
    Traceback (most recent call last):
        ...
    seqgc.errors.WireError: frame belongs to run 'r1', not 'another'; drop it
    """
    return b"".join(encode_pieces(message, run_id=run_id, sealed=sealed))


def encode_pieces(
    message: Message, *, run_id: str, sealed: bool = True
) -> list[bytes | memoryview]:
    """Return the frame of a message in pieces, without copying large arrays; see `encode`.

    The pieces are views of the message's arrays, which must not change before the pieces are sent.

    Examples
    --------
    >>> from seqgc.wire import CancelMessage
    >>> message = CancelMessage(round=3, worker=1)
    >>> b"".join(encode_pieces(message, run_id="r1")) == encode(message, run_id="r1")
    True
    """
    header = HEADERS.get(type(message))
    content, arrays = (message, []) if header is None else header.of(message)
    try:
        text = _ENCODER.encode(_Header(run=run_id, message=content))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise WireError(
            f"a field of the message cannot be written as JSON: {one_line(error)}"
        ) from error
    _check_values(text)
    return pack(text, arrays, sealed=sealed)


def decode(
    data: bytes | bytearray, *, run_id: str, sealed: bool = True, max_bytes: int = MAX_FRAME_BYTES
) -> Message:
    """Return the message in a frame.

    The arrays of the message are read-only, and views of ``data`` if possible.

    Raises
    ------
    WireError
        If the frame is damaged, cut short, longer than ``max_bytes`` or of another version or run;
        if it has a digest and ``sealed`` is false, or lacks a digest and ``sealed`` is true; or if
        the message is not valid.
    """
    run, message = _opened(data, sealed=sealed, max_bytes=max_bytes)
    if run != run_id:
        raise WireError(f"frame belongs to run {run!r}, not {run_id!r}; drop it")
    return message


def decode_invocation(
    data: bytes | bytearray, *, max_bytes: int = MAX_FRAME_BYTES
) -> tuple[str, InvokeMessage | StayMessage]:
    """Return the run id and the message in the frame of an invocation of any run.

    Raises `WireError` like `decode`.
    """
    run, message = _opened(data, sealed=True, max_bytes=max_bytes)
    if not isinstance(message, InvokeMessage | StayMessage):
        kind = type(message).__name__
        raise WireError(f"a function must get an InvokeMessage or StayMessage; got a {kind}")
    return run, message


def _opened(data: bytes | bytearray, *, sealed: bool, max_bytes: int) -> tuple[str, Message]:
    text, body = unpack(data, sealed=sealed, max_bytes=max_bytes)
    header_text = bytes(text)
    _check_values(header_text)
    try:
        header = _DECODER.decode(header_text)
        content = header.message
        message = content.message(body) if isinstance(content, WithArrays) else content
    except SeqgcError:
        raise
    except Exception as error:  # the content of a frame must never cause another kind of error
        why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise WireError(f"frame cannot be read; drop it: {one_line(why)}") from error
    body.finish()
    run = header.run
    if isinstance(message, InvokeMessage | StayMessage) and not message.store.is_of(run):
        location = message.store.location
        raise WireError(f"a store's location must end in the run's id, {run!r}; got {location!r}")
    return run, message


def _check_values(header: bytes) -> None:
    # Three bytes of JSON can become an object of 200 bytes.
    if (values := sum(map(header.count, (b",", b"[", b"{")))) > _MAX_VALUES:
        raise WireError(
            f"frame's header has {values} values, at most {_MAX_VALUES} are allowed: "
            "send fewer models per job"
        )


# ---- envelopes ----------------------------------------------------------------------------------

MESSAGE_LIMIT_BYTES: Final = 6 * 2**20
"""The largest request and the largest reply of a synchronous invocation on AWS Lambda, as JSON."""

_VERSION = 1
_BEGINNINGS = (b'{"seqgc":1,"frame":"', b'{"seqgc": 1, "frame": "')
_END = b'"}'
_OVERHEAD_BYTES = 1024  # allowed around the string, for spaces and line breaks


class _Envelope(Record, frozen=True, kw_only=True):
    seqgc: int
    frame: str


_ENVELOPE_DECODER = msgspec.json.Decoder(_Envelope)


def envelope_bytes(frame_bytes: int) -> int:
    """Return the length, in bytes, of the JSON envelope of a frame of ``frame_bytes`` bytes.

    Examples
    --------
    >>> envelope_bytes(1_500_000), len(to_json(bytes(1_500_000)))
    (2000022, 2000022)
    """
    return len(_BEGINNINGS[0]) + len(_END) + _encoded_bytes(frame_bytes)


def to_json(frame: bytes | bytearray) -> bytes:
    """Return the envelope of a frame as JSON text."""
    return b"".join((_BEGINNINGS[0], b64encode(frame), _END))


def to_mapping(frame: bytes | bytearray) -> dict[str, object]:
    """Return the envelope of a frame as a dictionary, which the caller converts to JSON text."""
    return {"seqgc": _VERSION, "frame": b64encode(frame).decode("ascii")}


def from_json(
    body: bytes | bytearray | memoryview | str | Mapping[str, object],
    *,
    max_bytes: int = MAX_FRAME_BYTES,
) -> bytes:
    """Return the frame in an envelope, which is given as JSON text or as a parsed object.

    If the frame would be longer than ``max_bytes``, the error is raised before it is decoded.

    Raises
    ------
    WireError
        If ``body`` is not an envelope of this version, or its frame is too long or not base64.

    Examples
    --------
    >>> to_json(b"SGCF"), from_json('{"seqgc": 1, "frame": "U0dDRg=="}')
    (b'{"seqgc":1,"frame":"U0dDRg=="}', b'SGCF')
    >>> from_json("[]")
    Traceback (most recent call last):
        ...
    seqgc.errors.WireError: envelope holds no frame: Expected `object`, got `array`
    """
    if isinstance(body, str):
        try:
            body = body.encode("ascii")
        except UnicodeEncodeError:
            raise WireError("envelope must be ASCII, and has other characters") from None
    if isinstance(body, bytes | bytearray | memoryview):
        _check_length(len(body) - _OVERHEAD_BYTES, max_bytes)
        end = len(body) - len(_END)
        for begin in _BEGINNINGS:
            if body[: len(begin)] == begin and body[max(len(begin), end) :] == _END:
                with suppress(WireError):  # characters may be escaped; the parser below decides
                    return _decoded(memoryview(body)[len(begin) : end], max_bytes)
    try:
        if isinstance(body, bytes | bytearray | memoryview):
            envelope = _ENVELOPE_DECODER.decode(body)
        else:
            envelope = msgspec.convert(body, _Envelope)
    except (ValueError, RecursionError) as error:
        fault = "holds no frame" if isinstance(error, msgspec.ValidationError) else "is not JSON"
        raise WireError(f"envelope {fault}: {one_line(error)}") from error
    if envelope.seqgc != _VERSION:
        raise WireError(
            f"envelope has version {envelope.seqgc}, not {_VERSION}: run the same seqgc version "
            "on master and workers"
        )
    return _decoded(envelope.frame, max_bytes)


def _decoded(text: str | memoryview, max_bytes: int) -> bytes:
    _check_length(len(text), max_bytes)
    try:
        return b64decode(text, validate=True)
    except ValueError as error:
        raise WireError(f"envelope's frame is not base64: {one_line(error)}") from error


def _check_length(encoded: int, max_bytes: int) -> None:
    if encoded > _encoded_bytes(max_bytes):
        raise WireError(
            f"envelope of {encoded} characters holds more than {max_bytes} bytes, the limit of a "
            "frame: send fewer models per job, use a narrower `payload`, or use a store"
        )


def _encoded_bytes(size: int) -> int:
    return (size + 2) // 3 * 4
