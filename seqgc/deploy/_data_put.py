"""Data sets that are put where functions find them, in one form, from files of several."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from seqgc._aws import open_client
from seqgc._durable import replacing
from seqgc.deploy._aws import calls
from seqgc.deploy._data_sources import arrays_of, check_arrays
from seqgc.errors import ParameterError
from seqgc.stores import (
    DATA_FILE,
    StoredArray,
    StoredData,
    find_data,
    is_number,
    open_s3,
    require_data_name,
)

if TYPE_CHECKING:
    from boto3.session import Session

    from seqgc.stores.s3 import S3Client

__all__ = ["copy_data", "put_data", "upload_data"]

_Array: TypeAlias = np.ndarray[Any, Any]

_BLOCK_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class _DataFolder:
    """The folder of a data set."""

    path: Path
    replaced: set[str] = field(default_factory=set)  # names whose files are new, or about to be

    @contextmanager
    def written(self, name: str) -> Iterator[IO[bytes]]:
        """Yield a file that takes the place of the one of a name once it is whole."""

        def note() -> None:
            self.replaced.add(name)

        with replacing(self.path / name, check=note) as file:
            yield file
            os.fchmod(file.fileno(), 0o644)  # functions are another user

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)


def _folder_of(name: str, place: Path) -> _DataFolder:
    """Return the folder of a data set, which is made if need be."""
    path = place / name
    path.mkdir(parents=True, exist_ok=True)
    return _DataFolder(path)


def put_data(name: str, source: Path, place: Path, *, replace: bool = False) -> StoredData:
    """Copy a data set to a folder of data sets; it is there as a whole or not at all.

    ``source`` is an ``.npz`` or ``.safetensors`` file, or a folder of ``.npy`` files, whose arrays
    are ``x`` and ``y`` (or ``x_train`` and ``y_train``), a data point a row, and perhaps ``x_test``
    and ``y_test``. Labels that are whole numbers, one a point, become int64; all else stays.

    Raises
    ------
    ParameterError
        If the source is of another kind, or if the name has other contents already and ``replace``
        is not set.
    """
    require_data_name(name)
    absent = [each for each in (place, *place.parents) if not each.exists()]
    made: list[str] = []
    folder = _folder_of(name, place)
    try:
        before = find_data(name, [str(place)])
        arrays = {key: _written(key, array, folder, made) for key, array in arrays_of(source)}
        check_arrays(arrays, source)
        stored = StoredData(name, str(place), arrays)
        _require_new(stored, before, str(place), replace=replace)
        if not folder.has(stored.file):
            made.append(stored.file)
        _say(stored, before, folder)
    except BaseException:
        for file in made if DATA_FILE not in folder.replaced else ():  # they are meant by now
            folder.remove(file)
        for each in (folder.path, *absent):
            with suppress(OSError):  # not empty
                each.rmdir()
        raise
    _clear(stored, before, folder)
    return stored


def upload_data(
    stored: StoredData, location: str, *, session: Session, replace: bool = False
) -> str:
    """Copy a data set that is in a folder to a bucket, below ``s3://bucket/data``; return where.

    Raises
    ------
    ParameterError
        If the name has other contents there already and ``replace`` is not set.
    StoreError
        If a file is not there.
    DeployError
        If AWS refuses.
    """
    client = open_client(session, "s3")
    bucket, prefix = location.removeprefix("s3://").split("/", 1)
    before = find_data(stored.name, [location], client=lambda: client)
    if before is not None and before.digest == stored.digest:
        return f"{location}/{stored.name}"
    _require_new(stored, before, location, replace=replace)
    with calls(f"copy {stored.name!r} to {location}"):
        for key, array in stored.arrays.items():
            with stored.opened(key) as source:
                client.upload_fileobj(source, bucket, f"{prefix}/{stored.name}/{array.file}")
        for file, text in _said(stored, before):
            client.put_object(Bucket=bucket, Key=f"{prefix}/{stored.name}/{file}", Body=text)
        for old in _outdated(stored, before, client=lambda: client):
            client.delete_object(Bucket=bucket, Key=f"{prefix}/{stored.name}/{old}")
    return f"{location}/{stored.name}"


def copy_data(stored: StoredData, place: Path, *, replace: bool = False) -> str:
    """Copy a data set to the folder of data sets on a file system; return where.

    Raises
    ------
    ParameterError
        If the name has other contents there already and ``replace`` is not set.
    StoreError
        If a file is not there.
    """
    folder = _folder_of(stored.name, place)
    before = find_data(stored.name, [str(place)])
    _require_new(stored, before, str(place), replace=replace)
    for key, array in stored.arrays.items():
        with stored.opened(key) as source, folder.written(array.file) as file:
            shutil.copyfileobj(source, file)
    _say(stored, before, folder)
    _clear(stored, before, folder)
    return str(folder.path)


def _say(stored: StoredData, before: StoredData | None, folder: _DataFolder) -> None:
    """Say what a folder's arrays are, which are there."""
    for name, text in _said(stored, before):
        with folder.written(name) as file:
            file.write(text)


def _clear(stored: StoredData, before: StoredData | None, folder: _DataFolder) -> None:
    for old in _outdated(stored, before):
        folder.remove(old)


def _said(stored: StoredData, before: StoredData | None) -> list[tuple[str, bytes]]:
    """Return the files that say what a data set is, in the order in which they are written."""
    if before is None:
        return [(stored.file, stored.data_file()), (DATA_FILE, stored.data_file())]
    last = before.before if before.digest == stored.digest else before.digest
    lasting = [(each.file, each.data_file()) for each in (before, stored)]
    return [*lasting, (DATA_FILE, stored.data_file(before=last))]


def _require_new(
    stored: StoredData, before: StoredData | None, place: str, *, replace: bool
) -> None:
    if before is not None and before.digest != stored.digest and not replace:
        rule = f"must be new: other data are there under it, in {place}"
        remedy = "--replace, which keeps those until the next time"
        raise ParameterError("name", rule, stored.name, remedy)


def _outdated(
    stored: StoredData, before: StoredData | None, *, client: Callable[[], S3Client] = open_s3
) -> set[str]:
    """Return the files that nobody needs any more once a data set has been replaced by this one.

    Of the one ``before`` runs may be under way. Of that which it had replaced there are none, or
    they are told that it is gone.
    """
    if before is None or not before.before or before.digest == stored.digest:
        return set()
    place, name = before.place, before.name
    old = find_data(name, [place], digest=before.before, client=client)
    kept = _files(stored) | _files(before)
    return set() if old is None else _files(old) - kept


def _files(stored: StoredData) -> set[str]:
    return {stored.file, *(each.file for each in stored.arrays.values())}


def _written(name: str, array: _Array, folder: _DataFolder, made: list[str]) -> StoredArray:
    """Write an array's file in pieces, whatever memory there is; say what it is."""
    dtype = array.dtype.newbyteorder("<")
    if array.ndim == 0 or not is_number(dtype):
        rule = "must have arrays of numbers, a data point a row"
        raise ParameterError("path", rule, f"{name}: {array.dtype} {array.shape}")
    if name.startswith("y") and array.ndim == 1 and dtype.kind in "iu":
        dtype = np.dtype("<i8")  # what PyTorch's losses take
    temporary = f".{name}-{os.urandom(6).hex()}.tmp"
    made.append(temporary)
    with (folder.path / temporary).open("xb") as file:
        digest = _digest_of(array, dtype, file)
        file.flush()
        os.fchmod(file.fileno(), 0o644)
        os.fsync(file.fileno())
    file_name = f"{name}-{digest[:16]}.npy"
    if not folder.has(file_name):
        made.append(file_name)
    (folder.path / temporary).replace(folder.path / file_name)
    return StoredArray(file=file_name, dtype=dtype.str, shape=array.shape, digest=digest)


def _digest_of(array: _Array, dtype: np.dtype[Any], file: IO[bytes]) -> str:
    """Write an array; return the digest of all that is written."""
    digest = hashlib.sha256()

    class Both:
        def write(self, data: bytes) -> int:
            digest.update(data)
            return file.write(data)

    header = {"descr": dtype.str, "fortran_order": False, "shape": array.shape}
    np.lib.format.write_array_header_1_0(Both(), header)
    rows = max(1, _BLOCK_BYTES // max(1, dtype.itemsize * int(np.prod(array.shape[1:]))))
    for start in range(0, len(array), rows):
        Both().write(np.ascontiguousarray(array[start : start + rows], dtype=dtype).tobytes())
    return digest.hexdigest()
