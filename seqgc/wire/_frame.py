"""The frame: a fixed prefix, a digest, a JSON header, raw little-endian arrays. No pickle.

::

    offset  bytes
    0       4      magic "SGCF"
    4       2      schema version
    6       2      flags, 0
    8       4      header length h, padding included
    12      8      body length b
    20      32     SHA-256 of bytes 0..19, header and body
    52      h      header: JSON, padded with spaces so that the body starts at a multiple of 16
    52+h    b      body: the arrays, in the header's order, without gaps

The digest covers the header too: a flipped bit in a round number is as wrong as one in a gradient.
All integers are unsigned and little-endian.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from seqgc.errors import WireError
from seqgc.wire._fields import Fields, parse_header

__all__ = [
    "MAX_CODE_CHARACTERS",
    "MAX_FRAME_BYTES",
    "SCHEMA_VERSION",
    "Array",
    "Frame",
    "is_digest",
    "pack",
    "unpack",
]

Array: TypeAlias = npt.NDArray[Any]

SCHEMA_VERSION = 3
MAX_CODE_CHARACTERS = 100
MAX_FRAME_BYTES = 1 << 28  # four ResNet-18 gradients in float32 are 180 MB
_MAX_HEADER_BYTES = 1 << 22
_MAGIC = b"SGCF"
_PREFIX = struct.Struct("<4sHHIQ")
_BEGIN = _PREFIX.size + hashlib.sha256().digest_size  # where the header begins
_ALIGN = 16
_HEX = frozenset("0123456789abcdef")
_DTYPES = {name: np.dtype(name) for name in ("<i8", "<u2", "<f2", "<f4", "<f8")}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frame:
    """One message, before it means anything: addresses, JSON fields, arrays.

    ``code`` names the code that the round uses, ``weights`` is the digest of the weights that the
    message is about; either may be empty.
    """

    kind: str
    run_id: str
    round: int
    worker: int
    attempt: int
    fields: Mapping[str, Any]
    arrays: tuple[Array, ...]
    code: str = ""
    weights: str = ""


def is_digest(text: str) -> bool:
    """Whether ``text`` is a SHA-256 in lower-case hexadecimal."""
    return len(text) == 64 and _HEX.issuperset(text)


def pack(frame: Frame) -> bytes:
    """Return the bytes of a frame.

    Raises
    ------
    WireError
        If an array's dtype has no place on the wire, or the frame is larger than a frame may be,
        or ``code`` or ``weights`` is no such thing.
    """
    _check_subject(frame.code, frame.weights)
    arrays = [_little_endian(array) for array in frame.arrays]
    bodies = [array.reshape(-1).data for array in arrays]  # flat: hashlib takes no other
    header = {
        "kind": frame.kind,
        "run": frame.run_id,
        "round": int(frame.round),  # numpy's integers are not JSON's
        "worker": int(frame.worker),
        "attempt": int(frame.attempt),
        "code": frame.code,
        "weights": frame.weights,
        "fields": dict(frame.fields),
        "arrays": [{"dtype": a.dtype.str, "shape": list(a.shape)} for a in arrays],
    }
    try:
        text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise WireError(f"{frame.kind} message has a field without JSON form: {error}") from error
    text += b" " * (-(_BEGIN + len(text)) % _ALIGN)
    body_bytes = sum(array.nbytes for array in arrays)
    _check_lengths(len(text), body_bytes, max_bytes=MAX_FRAME_BYTES)
    prefix = _PREFIX.pack(_MAGIC, SCHEMA_VERSION, 0, len(text), body_bytes)
    return b"".join([prefix, _digest(prefix, text, *bodies), text, *bodies])


def unpack(
    data: bytes | bytearray, *, run_id: str | None, max_bytes: int = MAX_FRAME_BYTES
) -> Frame:
    """Return the frame in ``data``; its arrays are read-only views of ``data``.

    ``run_id`` None takes any run's: a function that serves whoever may invoke it.

    Raises
    ------
    WireError
        If the frame is damaged, cut short, too large, of another schema version or another run.
    """
    header, body = _split(memoryview(data).toreadonly(), max_bytes)
    run = header.text("run")
    if run_id is not None and run != run_id:
        raise WireError(f"frame belongs to run {run!r}, not {run_id!r}; drop it")
    code = header.text("code", limit=MAX_CODE_CHARACTERS)
    _check_subject(code, weights := header.text("weights"))
    return Frame(
        kind=header.text("kind"),
        run_id=run,
        round=header.integer("round"),
        worker=header.integer("worker"),
        attempt=header.integer("attempt"),
        fields=header.inner("fields").values,
        arrays=_arrays(header.objects("arrays"), body),
        code=code,
        weights=weights,
    )


def _check_subject(code: str, weights: str) -> None:
    if len(code) > MAX_CODE_CHARACTERS:
        rule = f"at most {MAX_CODE_CHARACTERS} characters"
        raise WireError(f"a frame's code id has {rule}; got {len(code)}: shorten it")
    if weights and not is_digest(weights):
        raise WireError(f"a frame's weights digest is a SHA-256 or empty; got {weights[:80]!r}")


def _split(data: memoryview, max_bytes: int) -> tuple[Fields, memoryview]:
    """Check the prefix, the lengths and the digest; return the header and the body."""
    if len(data) < _BEGIN:
        raise WireError(f"frame of {len(data)} bytes is cut short; the shortest has {_BEGIN}")
    magic, version, flags, header_bytes, body_bytes = _PREFIX.unpack_from(data)
    if magic != _MAGIC:
        raise WireError(f"not a seqgc frame: it begins with {magic!r}, not {_MAGIC!r}")
    if version != SCHEMA_VERSION or flags:
        raise WireError(
            f"frame has schema version {version}, flags {flags}; this side speaks version "
            f"{SCHEMA_VERSION}, flags 0: run one seqgc version on master and workers"
        )
    _check_lengths(header_bytes, body_bytes, max_bytes=max_bytes)
    if (due := _BEGIN + header_bytes + body_bytes) != len(data):
        raise WireError(f"frame has {len(data)} bytes where its prefix promises {due}")
    text, body = data[_BEGIN : _BEGIN + header_bytes], data[_BEGIN + header_bytes :]
    if data[_PREFIX.size : _BEGIN] != _digest(data[: _PREFIX.size], text, body):
        raise WireError("frame is damaged: its SHA-256 digest does not match; ask for it again")
    return parse_header(bytes(text)), body


def _check_lengths(header_bytes: int, body_bytes: int, *, max_bytes: int) -> None:
    if header_bytes > _MAX_HEADER_BYTES or _BEGIN + header_bytes + body_bytes > max_bytes:
        raise WireError(
            f"frame of {header_bytes} header and {body_bytes} body bytes is too large; at most "
            f"{_MAX_HEADER_BYTES} and {max_bytes} in all: send fewer models per job"
        )


def _digest(*pieces: bytes | memoryview) -> bytes:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.digest()


def _little_endian(array: Array) -> Array:
    dtype = np.asarray(array).dtype.newbyteorder("<")
    if dtype.str not in _DTYPES:
        raise WireError(f"arrays on the wire are {', '.join(_DTYPES)}; got {dtype.str}")
    # Not ascontiguousarray: it would turn a scalar into a vector.
    return np.asarray(array, dtype=dtype, order="C")


def _arrays(declared: list[Fields], body: memoryview) -> tuple[Array, ...]:
    """Cut the body into arrays; the declared sizes must use it up exactly."""
    arrays, offset = [], 0
    everything = np.frombuffer(body, dtype=np.uint8) if len(body) else np.empty(0, np.uint8)
    for fields in declared:
        name, shape = fields.text("dtype"), fields.integers("shape")
        if (dtype := _DTYPES.get(name)) is None or len(shape) > 2:
            raise WireError(f"frame declares an array of dtype {name!r}, {len(shape)} axes")
        end = offset + math.prod(shape) * dtype.itemsize
        if end > len(body):
            raise WireError(f"frame declares an array up to byte {end} of {len(body)}")
        array = everything[offset:end].view(dtype).reshape(shape)
        array = array.astype(dtype.newbyteorder("="), copy=False)
        array.flags.writeable = False
        arrays.append(array)
        offset = end
    if offset != len(body):
        raise WireError(f"frame has {len(body)} body bytes, its arrays only {offset}")
    return tuple(arrays)
