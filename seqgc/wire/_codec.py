"""Messages to frames and back; frames in JSON, for services that carry nothing else.

That is an envelope, ``{"seqgc": 1, "frame": "<base64>"}``. A parser looks at each of its 2 million
characters, which takes four times as long as decoding them. So an envelope of the shape that
`to_json` or Python's `json` writes is cut here, and only an unusual one is left to the parser:
base64 has neither quotes nor backslashes, hence whatever passes as strict base64 between the quotes
is that JSON string, and nothing else.
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
    """The JSON of a frame: whose run it belongs to, and what it says."""

    run: Name
    message: WithArrays | PlainMessage


def _plain(value: object) -> object:
    """Return what numpy's scalars are in JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} has no JSON form")


_MAX_VALUES = 1 << 17  # of a header; ten thousand models are fewer
_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
_DECODER = msgspec.json.Decoder(_Header)


def encode(message: Message, *, run_id: str, sealed: bool = True) -> bytes:
    """Return a message's frame; whoever decodes it must name the same run.

    ``sealed`` frames have a digest. A pipe to one's own child process needs none.

    Raises
    ------
    WireError
        If the message has no frame: a result that is not finite, not a vector, of mixed dtypes …

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
    header = HEADERS.get(type(message))
    content, arrays = (message, []) if header is None else header.of(message)
    try:
        text = _ENCODER.encode(_Header(run=run_id, message=content))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise WireError(f"message has a field without JSON form: {one_line(error)}") from error
    _check_values(text)
    return pack(text, arrays, sealed=sealed)


def decode(
    data: bytes | bytearray, *, run_id: str, sealed: bool = True, max_bytes: int = MAX_FRAME_BYTES
) -> Message:
    """Return the message in a frame; its arrays are read-only, views of ``data`` where they can be.

    Raises
    ------
    WireError
        If the frame is damaged, cut short, longer than ``max_bytes``, of another version or run,
        has a digest or none against what ``sealed`` says, or says something that no worker or
        master would: one line says which.
    """
    run, message = _opened(data, sealed=sealed, max_bytes=max_bytes)
    if run != run_id:
        raise WireError(f"frame belongs to run {run!r}, not {run_id!r}; drop it")
    return message


def decode_invocation(
    data: bytes | bytearray, *, max_bytes: int = MAX_FRAME_BYTES
) -> tuple[str, InvokeMessage | StayMessage]:
    """Return the run, whichever it is, and the invocation in a frame; raise like `decode`."""
    run, message = _opened(data, sealed=True, max_bytes=max_bytes)
    if not isinstance(message, InvokeMessage | StayMessage):
        kind = type(message).__name__
        raise WireError(f"a function is asked by an InvokeMessage or StayMessage; got a {kind}")
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
    except Exception as error:  # no frame, whatever it says, is more than a refused frame
        why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise WireError(f"frame cannot be read; drop it: {one_line(why)}") from error
    body.finish()
    run = header.run
    if isinstance(message, InvokeMessage | StayMessage) and not message.store.is_of(run):
        place = message.store.location
        raise WireError(f"a store's location must end in the run's id, {run!r}; got {place!r}")
    return run, message


def _check_values(header: bytes) -> None:
    """Refuse a header before 200 bytes of objects are made of every three of its own."""
    if (values := sum(map(header.count, (b",", b"[", b"{")))) > _MAX_VALUES:
        rule = f"frame's header has {values} values, at most {_MAX_VALUES} may be"
        raise WireError(f"{rule}: send fewer models per job")


# ---- envelopes ----------------------------------------------------------------------------------

MESSAGE_LIMIT_BYTES: Final = 6 * 2**20
"""What AWS Lambda takes in a synchronous request, and in its reply, as JSON (service quotas)."""

_VERSION = 1
_BEGINNINGS = (b'{"seqgc":1,"frame":"', b'{"seqgc": 1, "frame": "')
_END = b'"}'
_OVERHEAD_BYTES = 1024  # of JSON around the string that are put up with


class _Envelope(Record, frozen=True, kw_only=True):
    seqgc: int
    frame: str


_ENVELOPE_DECODER = msgspec.json.Decoder(_Envelope)


def envelope_bytes(frame_bytes: int) -> int:
    """Return how long, in bytes, the JSON of a frame of so many bytes is.

    Examples
    --------
    >>> envelope_bytes(1_500_000), len(to_json(bytes(1_500_000)))
    (2000022, 2000022)
    """
    return len(_BEGINNINGS[0]) + len(_END) + _encoded_bytes(frame_bytes)


def to_json(frame: bytes | bytearray) -> bytes:
    """Return the JSON of a frame."""
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
            envelope = _ENVELOPE_DECODER.decode(body)
        else:
            envelope = msgspec.convert(body, _Envelope)
    except (ValueError, RecursionError) as error:
        what = "holds no frame" if isinstance(error, msgspec.ValidationError) else "is not JSON"
        raise WireError(f"envelope {what}: {one_line(error)}") from error
    if envelope.seqgc != _VERSION:
        rule = f"has version {envelope.seqgc}, not {_VERSION}"
        raise WireError(f"envelope {rule}: run one seqgc version everywhere")
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
            f"envelope of {encoded} characters holds more than the {max_bytes} bytes a frame may "
            "have here: send fewer models per job, a narrower `payload`, or use a store"
        )


def _encoded_bytes(size: int) -> int:
    return (size + 2) // 3 * 4
