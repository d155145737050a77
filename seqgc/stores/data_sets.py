"""Data sets: arrays that are kept once under a name, and read where workers are, as they need them.

A place, a folder or an ``s3://bucket/prefix``, has a folder of each data set's name. In it is
``data.json``, which says what the arrays are, and a file of each, ``x-<digest>.npy``, of which
nothing is ever unpickled. The file of a digest never changes: what replaces a data set has other
files, and ``data.json``, which is written last, says which are meant.

Under ``data-<digest>.json`` the same is said for good. What has been replaced stays there, with its
arrays, until it is replaced once more: a run goes on with the contents that it began with, which it
asks for by their digest.

From a folder arrays are mapped into memory: what is not read costs none. From a bucket an array is
fetched as a whole, and compared with its digest.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any, Final, cast

import msgspec
import numpy as np

from seqgc._bounded import open_bounded, read_bounded
from seqgc.errors import ParameterError, StoreError, one_line
from seqgc.stores._npy import NUMBERS, NpyHead, read_head
from seqgc.stores.s3 import S3Client, is_absent, open_s3, split_s3

__all__ = [
    "DATA_FILE",
    "StoredArray",
    "StoredData",
    "data_places",
    "find_data",
    "require_data_name",
]

DATA_FILE: Final = "data.json"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_FILE: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_HEAD_BYTES: Final = 4096  # an .npy header of few dimensions is 128 bytes long
_MOST_BYTES: Final = 1 << 20  # of a data.json
_CHUNK: Final = 1 << 20


class StoredArray(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An array of numbers as ``data.json`` describes it; ``digest`` is the SHA-256 of its file."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    digest: str

    def __post_init__(self) -> None:
        if self.dtype not in NUMBERS or not self.shape or min(self.shape) < 0:
            what = f"{self.dtype!r:.40} {list(self.shape)!r:.40}"
            raise ValueError(f"must be of arrays of numbers, a data point a row; got {what}")

    @property
    def data_bytes(self) -> int:
        """The length of its numbers."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


class _DataFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: int
    arrays: dict[str, StoredArray]
    before: str = ""  # the digest of what it has replaced


class StoredData:
    """A data set in a place: ``x`` and ``y``, and perhaps ``x_test`` and ``y_test``.

    ``digest`` says which contents it has: two of the same digest are equal. ``before`` is that of
    what it has replaced in this place, empty if it is the first.
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
        """True if arrays are mapped from files, and take no memory of their own."""
        return not self.place.startswith("s3:")

    @property
    def file(self) -> str:
        """The name of the file that says for good what its arrays are."""
        return _lasting(self.digest)

    def data_file(self, *, before: str = "") -> bytes:
        """Return what ``data.json`` is to say, where it replaces another data set."""
        return msgspec.json.encode(_DataFile(schema=1, arrays=self.arrays, before=before))

    def read(self, key: str) -> np.ndarray[Any, Any]:
        """Return an array; what is written to it is nobody else's.

        Raises
        ------
        StoreError
            If its file is not there, or is not as it was written.
        """
        array = self.arrays[key]
        with self._told(array):
            return self._mapped(array) if self.mapped else self._fetched(array)

    def opened(self, key: str) -> IO[bytes]:
        """Return an array's file, open for reading, where arrays are `mapped`.

        Raises
        ------
        StoreError
            If it is not there, or is longer than it can be.
        """
        array = self.arrays[key]
        with self._told(array):
            return self._file(array)

    @contextmanager
    def _told(self, array: StoredArray) -> Iterator[None]:
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
            raise ValueError(f"is {size} bytes long")
        data, digest, end = bytearray(size), hashlib.sha256(), 0
        with answer["Body"] as body:
            while chunk := body.read(_CHUNK):
                data[end : end + len(chunk)] = chunk
                digest.update(chunk)
                end += len(chunk)
        if digest.hexdigest() != array.digest:
            raise ValueError("has another digest")
        return _head(io.BytesIO(data[:_HEAD_BYTES]), array, len(data)).within(data)


def _head(file: IO[bytes], array: StoredArray, file_bytes: int) -> NpyHead:
    """Return the header of an array's file, if it says what ``data.json`` does."""
    head = read_head(file, file_bytes=file_bytes)
    if (head.dtype.str, head.shape) != (array.dtype, array.shape):
        raise ValueError(f"holds {head.dtype} {head.shape}, not what it should")
    return head


def _lasting(digest: str) -> str:
    return f"data-{digest[:16]}.json"


def data_places(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return where data sets are looked for: ``SEQGC_DATA``, comma-separated, or a folder of one's
    own.

    Examples
    --------
    >>> data_places({"SEQGC_DATA": "/mnt/seqgc/data, s3://bucket/data"})
    ('/mnt/seqgc/data', 's3://bucket/data')
    """  # noqa: D205
    given = environment.get("SEQGC_DATA", "").split(",")
    if places := tuple(each.strip() for each in given if each.strip()):
        return places
    home = environment.get("XDG_DATA_HOME") or os.path.join(  # noqa: PTH118 (it may be absent)
        environment.get("HOME", "."), ".local", "share"
    )
    return (str(Path(home, "seqgc", "data")),)


def require_data_name(name: str) -> str:
    """Return a data set's name, or raise `ParameterError`: it names folders and objects."""
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
    """Return the data set of a name in the first of ``places`` that has it; None: none has it.

    It is the latest there, or the one of a ``digest``. A place that does not exist, or may not be
    read, is passed over.

    Raises
    ------
    StoreError
        If its ``data.json`` cannot be read, or is none.
    """
    if not _NAME.fullmatch(name):
        return None
    client = cache(client)  # a new one takes long to make
    files = (_lasting(digest), DATA_FILE) if digest else (DATA_FILE,)
    for place in data_places() if places is None else places:
        for file in files:
            try:
                if (text := _text_in(place, name, file, client)) is None:
                    continue
                found = msgspec.json.decode(text, type=_DataFile)
                if found.schema != 1 or not {"x", "y"} <= found.arrays.keys():
                    raise ValueError("is of another version of seqgc")
                if not all(_FILE.fullmatch(each.file) for each in found.arrays.values()):
                    raise ValueError("names files that are elsewhere")
            except (OSError, ValueError, msgspec.MsgspecError) as error:
                where = f"{place}/{name}/{file}"
                raise StoreError(f"{where} cannot be read: {one_line(error)}") from error
            stored = StoredData(name, place, found.arrays, client, before=found.before)
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
    """Return what a file says; None if it is absent, or its place is, or cannot be looked into."""
    try:
        return read_bounded(place / name / file, most_bytes=_MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        if os.access(place, os.R_OK | os.X_OK, effective_ids=True):
            raise
        return None
