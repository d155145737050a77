"""Arrays of numbers in .npy files that others have written, of which nothing is unpickled.

A header may promise more than there is, or objects, which are addresses of this process' memory. So
all that it says is compared with the file, before memory is taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import IO, Any, Final, Literal

import numpy as np

__all__ = ["NUMBERS", "NpyHead", "is_number", "read_head"]

NUMBERS: Final = frozenset(("|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<f2", "<f4", "<f8"))
"""Types of numbers that PyTorch has too, as data sets are written: least byte first."""

_HEADS: Final = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}  # 3.0 is for names of fields


def is_number(dtype: np.dtype[Any]) -> bool:
    """Say whether an array of that type, in whatever order of bytes, is one of `NUMBERS`."""
    return dtype.newbyteorder("<").str in NUMBERS


@dataclass(frozen=True, slots=True, kw_only=True)
class NpyHead:
    """The header of an .npy file; the numbers of its array begin at byte ``begin``."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    begin: int

    @property
    def data_bytes(self) -> int:
        """The length of the numbers."""
        return math.prod(self.shape) * self.dtype.itemsize

    def within(self, data: bytearray) -> np.ndarray[Any, Any]:
        """Return the array of a file in memory; the array shares that memory."""
        return np.ndarray(self.shape, self.dtype, data, self.begin, order=self.order)

    def mapped(self, file: IO[bytes], mode: Literal["r", "c"]) -> np.ndarray[Any, Any]:
        """Return the array of an open file; as `numpy.memmap`, which may outlive that."""
        return np.memmap(file, self.dtype, mode, self.begin, self.shape, self.order)


def read_head(file: IO[bytes], *, file_bytes: int) -> NpyHead:
    """Read the header of a file that is ``file_bytes`` long.

    Raises
    ------
    ValueError
        If it is none, of an array of anything but numbers, or of more than there are.

    Examples
    --------
    >>> import io
    >>> file = io.BytesIO()
    >>> np.save(file, np.arange(6.0).reshape(2, 3))
    >>> size = file.tell(); _ = file.seek(0)
    >>> read_head(file, file_bytes=size).shape
    (2, 3)
    """
    try:
        read = _HEADS[np.lib.format.read_magic(file)]
        shape, by_columns, dtype = read(file)
    except (KeyError, RecursionError, MemoryError) as error:
        raise ValueError("its header is not of an array of numbers") from error
    head = NpyHead(dtype=dtype, shape=shape, order="F" if by_columns else "C", begin=file.tell())
    if not is_number(dtype):
        raise ValueError(f"it must be an array of numbers; got {dtype}")
    if min(shape, default=0) < 0 or head.begin + head.data_bytes > file_bytes:
        raise ValueError(f"it has {file_bytes} bytes, too few for {dtype} {shape}")
    return head
