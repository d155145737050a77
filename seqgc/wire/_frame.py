"""Packing and unpacking of the bytes of a frame. `seqgc.wire` explains the layout."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from seqgc.errors import WireError

Array: TypeAlias = npt.NDArray[Any]

SCHEMA_VERSION = 11
MAX_FRAME_BYTES = 1 << 28  # four ResNet-18 gradients in float32 are 180 MB
_MAX_HEADER_BYTES = 1 << 22
_MAGIC = b"SGCF"
_UNSEALED = 1  # the flag of a frame without a digest
_PREFIX = struct.Struct("<4sHH16s")  # magic, schema version, flags, digest
_LENGTHS = struct.Struct("<IQ")  # of header and body
_BEGIN = _PREFIX.size + _LENGTHS.size  # offset of the header
_ALIGN = 16
_DTYPES = ("<i8", "<u2", "<f2", "<f4", "<f8")


def pack(header: bytes, arrays: Sequence[Array], *, sealed: bool) -> list[bytes | memoryview]:
    """Return the pieces of the frame of a header (JSON) and the arrays of its body."""
    pieces: list[bytes | memoryview] = []
    for array in arrays:
        dtype = array.dtype.newbyteorder("<")
        if dtype.str not in _DTYPES:
            raise WireError(f"an array must be of {', '.join(_DTYPES)}; got {dtype.str}")
        pieces.append(np.ascontiguousarray(array, dtype=dtype).reshape(-1).view(np.uint8).data)
    header += b" " * (-(_BEGIN + len(header)) % _ALIGN)
    body_bytes = sum(array.nbytes for array in arrays)
    _check_lengths(len(header), body_bytes, max_bytes=MAX_FRAME_BYTES)
    lengths = _LENGTHS.pack(len(header), body_bytes)
    digest = bytes(16)
    if sealed:
        hashed = xxhash.xxh3_128(lengths + header)
        for piece in pieces:
            hashed.update(piece)
        digest = hashed.digest()
    prefix = _PREFIX.pack(_MAGIC, SCHEMA_VERSION, 0 if sealed else _UNSEALED, digest)
    return [prefix + lengths + header, *pieces]


def unpack(data: bytes | bytearray, *, sealed: bool, max_bytes: int) -> tuple[memoryview, Body]:
    """Return the header in a frame, and its body."""
    frame = memoryview(data).toreadonly()
    if len(frame) < _BEGIN:
        raise WireError(f"frame of {len(frame)} bytes is cut short; the shortest has {_BEGIN}")
    magic, version, flags, digest = _PREFIX.unpack_from(frame)
    if magic != _MAGIC:
        raise WireError(f"not a seqgc frame: it begins with {magic!r}, not {_MAGIC!r}")
    if version != SCHEMA_VERSION:
        raise WireError(
            f"frame has schema version {version}, this side has {SCHEMA_VERSION}: run the same "
            "seqgc version on master and workers (`seqgc deploy` updates functions)"
        )
    if flags != (expected := 0 if sealed else _UNSEALED):
        raise WireError(f"frame's flags must be {expected} (1: no digest), got {flags}; drop it")
    header_bytes, body_bytes = _LENGTHS.unpack_from(frame, _PREFIX.size)
    _check_lengths(header_bytes, body_bytes, max_bytes=max_bytes)
    if (size := _BEGIN + header_bytes + body_bytes) != len(frame):
        raise WireError(f"frame has {len(frame)} bytes, its prefix announces {size}; drop it")
    if digest != (xxhash.xxh3_128_digest(frame[_PREFIX.size :]) if sealed else bytes(16)):
        raise WireError("frame is damaged: its digest does not match; ask for it again")
    return frame[_BEGIN : _BEGIN + header_bytes], Body(frame[_BEGIN + header_bytes :])


class Body:
    """The body of a frame, from which the arrays are taken in order."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._used = data, 0

    def take(self, dtype: np.dtype[Any], count: int) -> Array:
        """Return the next ``count`` numbers, read-only and if possible as a view of the frame."""
        end = self._used + count * dtype.itemsize
        if end > (size := len(self._data)):
            raise WireError(f"frame has {size} body bytes, its header describes {end} or more")
        array: Array = np.frombuffer(self._data[self._used : end], dtype.newbyteorder("<"))
        self._used = end
        array = array.astype(dtype, copy=False)
        array.flags.writeable = False
        return array

    def finish(self) -> None:
        """Raise `WireError` unless all bytes have been taken."""
        if (size := len(self._data)) != self._used:
            raise WireError(f"frame has {size} body bytes, its header describes {self._used}")


def _check_lengths(header_bytes: int, body_bytes: int, *, max_bytes: int) -> None:
    if header_bytes > _MAX_HEADER_BYTES or _BEGIN + header_bytes + body_bytes > max_bytes:
        raise WireError(
            f"frame of {header_bytes} header and {body_bytes} body bytes is too large; at most "
            f"{_MAX_HEADER_BYTES} and {max_bytes} in all: send fewer models per job"
        )
