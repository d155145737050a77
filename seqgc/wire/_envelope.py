"""A frame in JSON, for services that carry nothing else: ``{"seqgc": 1, "frame": "<base64>"}``.

A general JSON parser copies a string of 2 MB three times over. The envelope has one shape, so it is
put together and taken apart here, and only an unusual one is left to the parser: base64 has neither
quotes nor backslashes, hence whatever passes as strict base64 between the quotes is that JSON
string, and nothing else.
"""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Mapping

from seqgc.errors import WireError
from seqgc.wire._fields import Fields, one_line
from seqgc.wire._frame import MAX_FRAME_BYTES

try:  # compiled, 20 to 50 times as fast
    from pybase64 import b64decode, b64encode
except ImportError:
    from base64 import b64decode, b64encode  # type: ignore[assignment]

__all__ = ["envelope_bytes", "from_json", "to_json", "to_mapping"]

_VERSION = 1
_HEAD = re.compile(
    rb'\s{0,8}\{\s{0,8}"seqgc"\s{0,8}:\s{0,8}1\s{0,8},\s{0,8}"frame"\s{0,8}:\s{0,8}"'
)
_TAIL = re.compile(rb'"\s{0,8}\}\s{0,8}\Z')
_BEGIN, _END = b'{"seqgc":1,"frame":"', b'"}'
_LOOK = 96  # bytes at either end, more than `_HEAD` and `_TAIL` can take
_OVERHEAD_BYTES = 1024  # of JSON around the string that are put up with


def envelope_bytes(frame_bytes: int) -> int:
    """Return how long, in bytes, the JSON of a frame of so many bytes is.

    Examples
    --------
    >>> envelope_bytes(1_500_000)
    2000022
    >>> len(to_json(bytes(1_500_000)))
    2000022
    """
    return len(_BEGIN) + len(_END) + _encoded_bytes(frame_bytes)


def to_json(frame: bytes | bytearray) -> bytes:
    """Return the JSON of a frame.

    Examples
    --------
    >>> to_json(b"SGCF")
    b'{"seqgc":1,"frame":"U0dDRg=="}'
    """
    return b"".join((_BEGIN, b64encode(frame), _END))


def to_mapping(frame: bytes | bytearray) -> dict[str, object]:
    """Return what the JSON of a frame stands for, to be written as JSON by somebody else.

    Examples
    --------
    >>> to_mapping(b"SGCF")
    {'seqgc': 1, 'frame': 'U0dDRg=='}
    """
    return {"seqgc": _VERSION, "frame": b64encode(frame).decode("ascii")}


def from_json(
    body: bytes | bytearray | memoryview | str | Mapping[str, object],
    *,
    max_bytes: int = MAX_FRAME_BYTES,
) -> bytes:
    """Return the frame in a JSON text, or in what such a text was parsed to.

    Parameters
    ----------
    body
        The text, or its object.
    max_bytes
        Of the frame; what promises to be longer is refused before it is decoded.

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
    seqgc.errors.WireError: envelope must be a JSON object; got list
    """
    if not isinstance(body, bytes | bytearray | memoryview | str):
        return _from_object(body, max_bytes)
    if isinstance(body, str):
        try:
            body = body.encode("ascii")
        except UnicodeEncodeError:
            raise WireError("envelope has characters that neither JSON nor base64 needs") from None
    _check_length(len(body) - _OVERHEAD_BYTES, max_bytes)
    head, tail = _HEAD.match(body[:_LOOK]), _TAIL.search(body[-_LOOK:])
    if head is not None and tail is not None:
        end = len(body) - len(body[-_LOOK:]) + tail.start()
        text = memoryview(body)[head.end() : max(end, head.end())]
        try:
            if end >= head.end():
                return _decoded(text, max_bytes)
        except WireError:
            if b"\\" not in bytes(text):  # else it has escapes, as JSON may
                raise
    return _from_object(_parsed(body), max_bytes)


def _parsed(body: bytes | bytearray | memoryview) -> object:
    try:
        return json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise WireError(f"envelope is not JSON: {one_line(str(error), limit=200)}") from error


def _from_object(value: object, max_bytes: int) -> bytes:
    fields = Fields(value, where="envelope")
    if (version := fields.integer("seqgc")) != _VERSION:
        raise WireError(
            f"envelope has version {version}, not {_VERSION}: run one seqgc version everywhere"
        )
    text = fields.values.get("frame")
    if set(fields.values) != {"seqgc", "frame"} or not isinstance(text, str):
        raise WireError("envelope must hold `seqgc` and `frame`, base64, and nothing else")
    return _decoded(text, max_bytes)


def _decoded(text: str | memoryview, max_bytes: int) -> bytes:
    _check_length(len(text), max_bytes)
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise WireError(f"envelope's frame is not base64: {str(error)[:200]}") from error


def _check_length(encoded: int, max_bytes: int) -> None:
    if encoded > _encoded_bytes(max_bytes):
        raise WireError(
            f"envelope of {encoded} characters holds more than the {max_bytes} bytes a frame may "
            "have here: send fewer models per job, a narrower `payload`, or use a store"
        )


def _encoded_bytes(size: int) -> int:
    return (size + 2) // 3 * 4
