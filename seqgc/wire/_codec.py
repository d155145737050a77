"""Messages to frames and back."""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import numpy as np

from seqgc.errors import SeqgcError, WireError
from seqgc.wire._frame import MAX_FRAME_BYTES, Array, one_line, pack, unpack
from seqgc.wire._headers import InvokeHeader, ResultHeader, TaskHeader
from seqgc.wire._message_types import (
    CancelMessage,
    FailureMessage,
    InvokeMessage,
    Message,
    Name,
    ReadyMessage,
    ReceiptMessage,
    Record,
    ResultMessage,
    TaskMessage,
)

__all__ = ["decode", "decode_invocation", "encode"]

_WithArrays: TypeAlias = TaskHeader | InvokeHeader | ResultHeader
_MessageHeader: TypeAlias = (
    _WithArrays | FailureMessage | ReceiptMessage | CancelMessage | ReadyMessage
)


class _Header(Record, frozen=True, kw_only=True):
    """The JSON of a frame: whose run it belongs to, and what it says."""

    run: Name
    message: _MessageHeader


def _plain(value: object) -> object:
    """Return what numpy's scalars are in JSON."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a {type(value).__name__} has no JSON form")


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
    >>> frame = encode(CancelMessage(round=3, worker=1), run_id="r1")
    >>> decode(frame, run_id="r1")
    CancelMessage(round=3, worker=1)
    >>> decode(frame, run_id="another")
    Traceback (most recent call last):
        ...
    seqgc.errors.WireError: frame belongs to run 'r1', not 'another'; drop it
    """
    content: _MessageHeader
    arrays: list[Array] = []
    match message:
        case TaskMessage():
            content, arrays = TaskHeader.of(message)
        case InvokeMessage():
            content, arrays = InvokeHeader.of(message)
        case ResultMessage():
            content, arrays = ResultHeader.of(message)
        case _:
            content = message
    try:
        text = _ENCODER.encode(_Header(run=run_id, message=content))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise WireError(f"message has a field without JSON form: {one_line(str(error))}") from error
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
) -> tuple[str, InvokeMessage]:
    """Return the run, whichever it is, and the invocation in a frame; raise like `decode`."""
    run, message = _opened(data, sealed=True, max_bytes=max_bytes)
    if not isinstance(message, InvokeMessage):
        raise WireError(f"a function is asked by an InvokeMessage; got a {type(message).__name__}")
    return run, message


def _opened(data: bytes | bytearray, *, sealed: bool, max_bytes: int) -> tuple[str, Message]:
    text, body = unpack(data, sealed=sealed, max_bytes=max_bytes)
    try:
        header = _DECODER.decode(text)
        content = header.message
        message = content.message(body) if isinstance(content, _WithArrays) else content
    except SeqgcError:
        raise
    except Exception as error:  # no frame, whatever it says, is more than a refused frame
        why = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise WireError(f"frame cannot be read; drop it: {one_line(why)}") from error
    body.finish()
    return header.run, message
