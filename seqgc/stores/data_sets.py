"""Data sets: arrays that are stored once under a name, and that workers read as needed.

Data sets are stored in places. A place is a folder or an ``s3://bucket/prefix``, and has an inner
folder for each data set. This folder has a file ``x-<digest>.npy`` for each array, and a file
``data.json``, which describes the arrays. Nothing is ever unpickled. An array file never changes. A
new version of a data set has new array files, and ``data.json``, which is written last, lists them.

Each version also has a permanent copy of ``data.json``, ``data-<digest>.json``. When a version is
replaced, its files remain until the next replacement. A run records the digest of its data, so that
it continues with the same data after a resume.

Arrays in a folder are mapped into memory; parts that are not read take no memory. An array in a
bucket is fetched completely, and compared with its digest.

Array files may come from strangers. A header may claim more data than the file has. It may also
claim objects instead of numbers, which numpy would read as memory addresses. The header is
therefore compared with the file before memory is allocated.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, Final, Literal, cast

import msgspec
import numpy as np

from seqgc._bounded import open_bounded, read_bounded
from seqgc.errors import ParameterError, StoreError, one_line
from seqgc.stores.s3 import S3Client, is_absent, open_s3, split_s3

DATA_FILE: Final = "data.json"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_FILE: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_HEAD_BYTES: Final = 4096  # an .npy header of few dimensions is 128 bytes long
_MOST_BYTES: Final = 1 << 20  # of a file data.json
_CHUNK: Final = 1 << 20
NUMBERS: Final = frozenset(("|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<f2", "<f4", "<f8"))
"""The types of numbers that data sets may have, little-endian. PyTorch has the same types."""

_HEADS: Final = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}  # version 3.0 is only for arrays with named fields


class StoredArray(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The description of an array in ``data.json``; ``digest`` is the SHA-256 of its file."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    digest: str

    def __post_init__(self) -> None:
        if self.dtype not in NUMBERS or not self.shape or min(self.shape) < 0:
            what = f"{self.dtype!r:.40} {list(self.shape)!r:.40}"
            raise ValueError(f"must describe arrays of numbers, a row for each point; got {what}")

    @property
    def data_bytes(self) -> int:
        """The number of bytes of the array's numbers."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class _DataFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: int
    arrays: dict[str, StoredArray]
    before: str = ""  # the digest of the version that this one replaced


class StoredData:
    """A stored data set. Its arrays are ``x``, ``y`` and possibly ``x_test`` and ``y_test``.

    ``place`` is the folder or the ``s3://bucket/prefix`` in which it is stored.

    Data sets with the same ``digest`` have equal contents. ``before`` is the digest of the previous
    version in this place; it is empty for the first version.
    """

    def __init__(
        self,
        name: str,
        place: str,
        arrays: Mapping[str, StoredArray],
        client: Callable[[], S3Client] = open_s3,
        *,
        before: str = "",
    ) -> None:
        self.name: Final = name
        self.before: Final = before
        self.place: Final = place
        self.arrays: Final = dict(arrays)
        self._client = client
        digests = "".join(f"{key} {each.digest}\n" for key, each in sorted(arrays.items()))
        self.digest: Final = hashlib.sha256(digests.encode()).hexdigest()

    @property
    def mapped(self) -> bool:
        """True if arrays are mapped from files and take no memory before they are read."""
        return not self.place.startswith("s3:")

    @property
    def file(self) -> str:
        """The name of the permanent file that describes this version."""
        return _permanent_file(self.digest)

    def data_file(self, *, before: str = "") -> bytes:
        """Return the content of ``data.json``. ``before`` is the digest of the previous version."""
        return msgspec.json.encode(_DataFile(schema=1, arrays=self.arrays, before=before))

    def read(self, key: str) -> np.ndarray[Any, Any]:
        """Return the array named ``key``. Changing the array does not change its file.

        Raises
        ------
        StoreError
            If the file is missing or has changed.
        """
        array = self.arrays[key]
        with self._errors_named(array):
            return self._mapped(array) if self.mapped else self._fetched(array)

    def opened(self, key: str) -> IO[bytes]:
        """Open the file of the array named ``key`` for reading. Arrays must be `mapped`.

        Raises
        ------
        StoreError
            If the file is missing, or longer than expected.
        """
        array = self.arrays[key]
        with self._errors_named(array):
            return self._file(array)

    @contextmanager
    def _errors_named(self, array: StoredArray) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            where = f"{self.place}/{self.name}/{array.file}"
            raise StoreError(f"{where} cannot be read: {one_line(error)}") from error

    def _file(self, array: StoredArray) -> IO[bytes]:
        path = Path(self.place, self.name, array.file)
        return open_bounded(path, most_bytes=array.data_bytes + _HEAD_BYTES)

    def _mapped(self, array: StoredArray) -> np.ndarray[Any, Any]:
        with self._file(array) as file:
            return _head(file, array, os.fstat(file.fileno()).st_size).mapped(file, "c")

    def _fetched(self, array: StoredArray) -> np.ndarray[Any, Any]:
        bucket, prefix = split_s3(self.place)
        key = f"{prefix}/{self.name}/{array.file}"
        answer = self._client().get_object(Bucket=bucket, Key=key)
        if (size := answer["ContentLength"]) > array.data_bytes + _HEAD_BYTES:
            expected = f"at most {array.data_bytes + _HEAD_BYTES}"
            raise ValueError(f"it has {size} bytes instead of {expected}")
        data, digest, end = bytearray(size), hashlib.sha256(), 0
        with answer["Body"] as body:
            while chunk := body.read(_CHUNK):
                data[end : end + len(chunk)] = chunk
                digest.update(chunk)
                end += len(chunk)
        if digest.hexdigest() != array.digest:
            raise ValueError("its digest differs from the one in data.json")
        return _head(io.BytesIO(data[:_HEAD_BYTES]), array, len(data)).within(data)


def _head(file: IO[bytes], array: StoredArray, file_bytes: int) -> NpyHead:
    """Read the header of an array's file; raise `ValueError` if it differs from ``data.json``."""
    head = read_head(file, file_bytes=file_bytes)
    if (head.dtype.str, head.shape) != (array.dtype, array.shape):
        expected = f"{array.dtype} {array.shape}"
        raise ValueError(f"it holds {head.dtype} {head.shape} instead of {expected}")
    return head


def _permanent_file(digest: str) -> str:
    return f"data-{digest[:16]}.json"


def data_places(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the places that are searched for data sets.

    The environment variable ``SEQGC_DATA`` lists them, separated by commas. Without it, the only
    place is a folder in the user's home.

    Examples
    --------
    >>> data_places({"SEQGC_DATA": "/mnt/seqgc/data, s3://bucket/data"})
    ('/mnt/seqgc/data', 's3://bucket/data')
    """
    words = environment.get("SEQGC_DATA", "").split(",")
    if places := tuple(each.strip() for each in words if each.strip()):
        return places
    home = environment.get("XDG_DATA_HOME") or os.path.join(  # noqa: PTH118 (HOME may be unset)
        environment.get("HOME", "."), ".local", "share"
    )
    return (str(Path(home, "seqgc", "data")),)


def require_data_name(name: str) -> str:
    """Return the name of a data set; raise `ParameterError` if it is not valid."""
    if not _NAME.fullmatch(name):
        raise ParameterError("name", "must be 1 to 64 letters, digits, '_' and '-'", name)
    return name


def find_data(
    name: str,
    places: Sequence[str] | None = None,
    *,
    digest: str = "",
    client: Callable[[], S3Client] = open_s3,
) -> StoredData | None:
    """Return a data set from the first of ``places`` that has it, or None.

    If ``digest`` is given, return the version with this digest, else the latest version. A place
    that does not exist or cannot be read is skipped.

    Raises
    ------
    StoreError
        If the ``data.json`` of the data set cannot be read or is malformed.
    """
    if not _NAME.fullmatch(name):
        return None
    client = cache(client)  # creating a client takes long
    files = (_permanent_file(digest), DATA_FILE) if digest else (DATA_FILE,)
    for place in data_places() if places is None else places:
        for file in files:
            try:
                if (text := _text_in(place, name, file, client)) is None:
                    continue
                content = msgspec.json.decode(text, type=_DataFile)
                if content.schema != 1 or not {"x", "y"} <= content.arrays.keys():
                    raise ValueError("it is from another version of seqgc")
                if not all(_FILE.fullmatch(each.file) for each in content.arrays.values()):
                    raise ValueError("it names files outside its folder")
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                where = f"{place}/{name}/{file}"
                raise StoreError(f"{where} cannot be read: {one_line(error)}") from error
            stored = StoredData(name, place, content.arrays, client, before=content.before)
            if digest in ("", stored.digest):
                return stored
    return None


def _text_in(place: str, name: str, file: str, client: Callable[[], S3Client]) -> bytes | None:
    if not place.startswith("s3:"):
        return _text_of_file(Path(place), name, file)
    bucket, prefix = split_s3(place)
    try:
        answer = client().get_object(Bucket=bucket, Key=f"{prefix}/{name}/{file}")
    except Exception as error:
        if is_absent(error):
            return None
        raise StoreError(f"{place}/{name} cannot be read: {one_line(error)}") from error
    with answer["Body"] as body:
        return cast("bytes", body.read(_MOST_BYTES))


def _text_of_file(place: Path, name: str, file: str) -> bytes | None:
    """Return the content of a file, or None if it is missing or its place cannot be read."""
    try:
        return read_bounded(place / name / file, most_bytes=_MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        if os.access(place, os.R_OK | os.X_OK, effective_ids=True):
            raise
        return None


def is_number(dtype: np.dtype[Any]) -> bool:
    """Return True if a type is one of `NUMBERS`, in either byte order."""
    return dtype.newbyteorder("<").str in NUMBERS


@dataclass(frozen=True, slots=True, kw_only=True)
class NpyHead:
    """The header of an .npy file, whose numbers begin at byte ``begin``."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    order: Literal["C", "F"]
    begin: int

    @property
    def data_bytes(self) -> int:
        """The number of bytes of the array, without the header."""
        return math.prod(self.shape) * self.dtype.itemsize

    def within(self, data: bytearray) -> np.ndarray[Any, Any]:
        """Return the array in ``data``, the content of a file, without copying the numbers."""
        return np.ndarray(self.shape, self.dtype, data, self.begin, order=self.order)

    def mapped(self, file: IO[bytes], mode: Literal["r", "c"]) -> np.ndarray[Any, Any]:
        """Return the array of an open file as a `numpy.memmap`. The file may be closed later."""
        return np.memmap(file, self.dtype, mode, self.begin, self.shape, self.order)


def read_head(file: IO[bytes], *, file_bytes: int) -> NpyHead:
    """Read the header of an .npy file that has ``file_bytes`` bytes.

    Raises
    ------
    ValueError
        If the header is malformed, describes an array that has not only numbers, or claims more
        data than the file has.

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
        raise ValueError("its header does not describe an array of numbers") from error
    head = NpyHead(dtype=dtype, shape=shape, order="F" if by_columns else "C", begin=file.tell())
    if not is_number(dtype):
        raise ValueError(f"it must be an array of numbers; got {dtype}")
    if min(shape, default=0) < 0 or head.begin + head.data_bytes > file_bytes:
        raise ValueError(f"it has {file_bytes} bytes, too few for {dtype} {shape}")
    return head
