"""IDX, the format of MNIST's files: a header of big-endian integers, then bytes.

0, 0, type (8: unsigned bytes), number of dimensions; each dimension as 4 bytes; the data.
"""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seqgc.errors import ParameterError

__all__ = ["read_idx", "write_idx"]

Bytes = npt.NDArray[np.uint8]

_UNSIGNED_BYTES = 8
_MOST_BYTES = 1 << 30


def read_idx(path: Path, *, dimensions: int) -> Bytes:
    """Read a file, also one compressed by gzip (``.gz``), of unsigned bytes.

    Raises
    ------
    ParameterError
        If the file has another format, other dimensions, or a length that its header contradicts.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            header = file.read(4 + 4 * dimensions)
            shape = _shape(path, header, dimensions)
            size = math.prod(shape)
            data = file.read(size + 1)
    except (OSError, EOFError) as error:
        raise ParameterError(
            "data", f"must be a file that can be read ({error})", str(path)
        ) from None
    if len(data) != size:
        rule = f"must hold the {size} bytes that its header says, {shape}"
        raise ParameterError("data", rule, f"{path}: {len(data)}{'+' if len(data) > size else ''}")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def write_idx(path: Path, array: Bytes) -> None:
    """Write unsigned bytes as `read_idx` reads them, uncompressed."""
    dimensions = b"".join(size.to_bytes(4, "big") for size in array.shape)
    header = bytes([0, 0, _UNSIGNED_BYTES, array.ndim]) + dimensions
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def _shape(path: Path, header: bytes, dimensions: int) -> tuple[int, ...]:
    if len(header) != 4 + 4 * dimensions or header[:4] != bytes(
        [0, 0, _UNSIGNED_BYTES, dimensions]
    ):
        rule = f"must be IDX, unsigned bytes of {dimensions} dimensions"
        raise ParameterError("data", rule, f"{path}: begins with {header[:4].hex()}")
    shape = tuple(int.from_bytes(header[i : i + 4], "big") for i in range(4, len(header), 4))
    if not 0 < math.prod(shape) <= _MOST_BYTES:
        raise ParameterError("data", f"must hold 1 to {_MOST_BYTES} bytes", f"{path}: {shape}")
    return shape
