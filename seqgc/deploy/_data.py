"""Functions that store data sets, in one format, where the workers can read them.

`put_data` reads a data set from files of several formats, and writes one ``.npy`` file for each
array and an index to a folder. `upload_data` and `copy_data` copy this folder to a bucket or to a
file system. When a data set is replaced, its old files stay until the next replacement, because
runs may still be using them.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias
from zipfile import ZipFile, ZipInfo

import numpy as np

from seqgc._aws import open_client
from seqgc._bounded import open_bounded
from seqgc._durable import replacing
from seqgc.deploy._aws import calls
from seqgc.errors import ParameterError, one_line
from seqgc.stores import (
    DATA_FILE,
    StoredArray,
    StoredData,
    find_data,
    is_number,
    open_s3,
    read_head,
    require_data_name,
)

if TYPE_CHECKING:
    from boto3.session import Session

    from seqgc.stores.s3 import S3Client

_Array: TypeAlias = np.ndarray[Any, Any]

_BLOCK_BYTES: Final = 64 << 20
_NAMES: Final = {"x_train": "x", "y_train": "y", "X": "x", "X_train": "x", "X_test": "x_test"}
_FORMS: Final = "x and y, optionally x_test and y_test: .npz, .safetensors, or a folder of .npy"
_MOST_BYTES: Final = 1 << 62  # of a source file: no limit


@dataclass(frozen=True, slots=True)
class _DataFolder:
    """The folder of a data set. ``replaced`` has the names of all files that were written here."""

    path: Path
    replaced: set[str] = field(default_factory=set)

    @contextmanager
    def written(self, name: str) -> Iterator[IO[bytes]]:
        """Yield a new file, which replaces the file of this name when the block ends."""
        with replacing(self.path / name, check=lambda: self.replaced.add(name)) as file:
            yield file
            os.fchmod(file.fileno(), 0o644)  # functions run as another user

    def has(self, name: str) -> bool:
        return (self.path / name).exists()

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)


def _folder_of(name: str, place: Path) -> _DataFolder:
    path = place / name
    path.mkdir(parents=True, exist_ok=True)
    return _DataFolder(path)


def put_data(name: str, source: Path, place: Path, *, replace: bool = False) -> StoredData:
    """Copy a data set to the folder ``place / name``, completely or not at all.

    ``source`` is an ``.npz`` or ``.safetensors`` file, or a folder of ``.npy`` files. It has the
    arrays ``x`` and ``y`` (or ``x_train`` and ``y_train``), one data point in each row, and
    optionally ``x_test`` and ``y_test``. Labels with one integer for each point are converted to
    int64. All other arrays keep their type.

    Raises
    ------
    ParameterError
        If the source is not valid, or if other data already have this name and ``replace`` is
        false.
    """
    require_data_name(name)
    new_folders = [each for each in (place, *place.parents) if not each.exists()]
    new_files: list[str] = []
    folder = _folder_of(name, place)
    try:
        previous = find_data(name, [str(place)])
        arrays = {
            key: _write_array(key, array, folder, new_files) for key, array in _read_source(source)
        }
        _check_arrays(arrays, source)
        stored = StoredData(name, str(place), arrays)
        _require_same(stored, previous, str(place), replace=replace)
        if not folder.has(stored.file):
            new_files.append(stored.file)
        _write_index(stored, previous, folder)
    except BaseException:
        for file in new_files if DATA_FILE not in folder.replaced else ():
            folder.remove(file)  # but not if the new index already refers to the file
        for each in (folder.path, *new_folders):
            with suppress(OSError):  # not empty
                each.rmdir()
        raise
    _remove_outdated(stored, previous, folder)
    return stored


def upload_data(
    stored: StoredData, location: str, *, session: Session, replace: bool = False
) -> str:
    """Copy a data set from its folder to ``location`` (``s3://bucket/data``); return its new URL.

    Raises
    ------
    ParameterError
        If other data already have this name there and ``replace`` is false.
    StoreError
        If a file is missing.
    DeployError
        If AWS returns an error.
    """
    client = open_client(session, "s3")
    bucket, prefix = location.removeprefix("s3://").split("/", 1)
    previous = find_data(stored.name, [location], client=lambda: client)
    if previous is not None and previous.digest == stored.digest:
        return f"{location}/{stored.name}"
    _require_same(stored, previous, location, replace=replace)
    with calls(f"copy {stored.name!r} to {location}"):
        for key, array in stored.arrays.items():
            with stored.opened(key) as source:
                client.upload_fileobj(source, bucket, f"{prefix}/{stored.name}/{array.file}")
        for file, text in _index_files(stored, previous):
            client.put_object(Bucket=bucket, Key=f"{prefix}/{stored.name}/{file}", Body=text)
        for old in _outdated(stored, previous, client=lambda: client):
            client.delete_object(Bucket=bucket, Key=f"{prefix}/{stored.name}/{old}")
    return f"{location}/{stored.name}"


def copy_data(stored: StoredData, place: Path, *, replace: bool = False) -> str:
    """Copy a data set from its folder to a new folder in ``place``; return the path of the copy.

    Raises
    ------
    ParameterError
        If other data already have this name there and ``replace`` is false.
    StoreError
        If a file is missing.
    """
    folder = _folder_of(stored.name, place)
    previous = find_data(stored.name, [str(place)])
    _require_same(stored, previous, str(place), replace=replace)
    for key, array in stored.arrays.items():
        with stored.opened(key) as source, folder.written(array.file) as file:
            shutil.copyfileobj(source, file)
    _write_index(stored, previous, folder)
    _remove_outdated(stored, previous, folder)
    return str(folder.path)


def _write_index(stored: StoredData, previous: StoredData | None, folder: _DataFolder) -> None:
    """Write the files that list a data set's arrays. The arrays must have been written already."""
    for name, text in _index_files(stored, previous):
        with folder.written(name) as file:
            file.write(text)


def _remove_outdated(stored: StoredData, previous: StoredData | None, folder: _DataFolder) -> None:
    for name in _outdated(stored, previous):
        folder.remove(name)


def _index_files(stored: StoredData, previous: StoredData | None) -> list[tuple[str, bytes]]:
    """Return the names and contents of the index files, in the order of writing.

    An index file lists the arrays of a data set.
    """
    if previous is None:
        return [(stored.file, stored.data_file()), (DATA_FILE, stored.data_file())]
    replaced = previous.before if previous.digest == stored.digest else previous.digest
    permanent = [(each.file, each.data_file()) for each in (previous, stored)]
    return [*permanent, (DATA_FILE, stored.data_file(before=replaced))]


def _require_same(
    stored: StoredData, previous: StoredData | None, place: str, *, replace: bool
) -> None:
    if previous is not None and previous.digest != stored.digest and not replace:
        rule = f"must be new: {place} has other data under this name"
        remedy = "--replace keeps the other data until the next replacement"
        raise ParameterError("name", rule, stored.name, remedy)


def _outdated(
    stored: StoredData, previous: StoredData | None, *, client: Callable[[], S3Client] = open_s3
) -> set[str]:
    """Return the files that are not needed any more after ``stored`` has replaced ``previous``.

    They belong to the data set before ``previous``; a run that still uses it stops with an error.
    The files of ``previous`` stay, because runs may be using them.
    """
    if previous is None or not previous.before or previous.digest == stored.digest:
        return set()
    old = find_data(previous.name, [previous.place], digest=previous.before, client=client)
    return set() if old is None else _files(old) - _files(stored) - _files(previous)


def _files(stored: StoredData) -> set[str]:
    return {stored.file, *(each.file for each in stored.arrays.values())}


def _write_array(
    name: str, array: _Array, folder: _DataFolder, new_files: list[str]
) -> StoredArray:
    """Write the file of an array in blocks; append the names of new files to ``new_files``."""
    dtype = array.dtype.newbyteorder("<")
    if array.ndim == 0 or not is_number(dtype):
        rule = "must have arrays of numbers, one data point in each row"
        raise ParameterError("path", rule, f"{name}: {array.dtype} {array.shape}")
    if name.startswith("y") and array.ndim == 1 and dtype.kind in "iu":
        dtype = np.dtype("<i8")  # PyTorch's losses require int64
    temporary = f".{name}-{os.urandom(6).hex()}.tmp"
    new_files.append(temporary)
    with (folder.path / temporary).open("xb") as file:
        digest = _write_numbers(array, dtype, file)
        file.flush()
        os.fchmod(file.fileno(), 0o644)
        os.fsync(file.fileno())
    file_name = f"{name}-{digest[:16]}.npy"
    if not folder.has(file_name):
        new_files.append(file_name)
    (folder.path / temporary).replace(folder.path / file_name)
    return StoredArray(file=file_name, dtype=dtype.str, shape=array.shape, digest=digest)


def _write_numbers(array: _Array, dtype: np.dtype[Any], file: IO[bytes]) -> str:
    """Write an array in numpy's format; return the digest of the file."""
    digest = hashlib.sha256()

    class HashedFile:
        def write(self, data: bytes) -> int:
            digest.update(data)
            return file.write(data)

    header = {"descr": dtype.str, "fortran_order": False, "shape": array.shape}
    hashed = HashedFile()
    np.lib.format.write_array_header_1_0(hashed, header)
    rows = max(1, _BLOCK_BYTES // max(1, dtype.itemsize * int(np.prod(array.shape[1:]))))
    for start in range(0, len(array), rows):
        hashed.write(np.ascontiguousarray(array[start : start + rows], dtype=dtype).tobytes())
    return digest.hexdigest()


def _read_source(source: Path) -> Iterator[tuple[str, _Array]]:
    """Yield pairs of the name in the data set and the array, one at a time, from a source."""
    names = set[str]()
    try:
        for own_name, array in _arrays_as_named(source):
            name = _NAMES.get(own_name, own_name)
            if name not in ("x", "y", "x_test", "y_test") or name in names:
                rule = f"must have {_FORMS}"
                raise ParameterError("path", rule, f"{source}: {own_name}")
            names.add(name)
            yield name, array
    except Exception as error:  # numpy and zipfile raise many types for damaged files
        if isinstance(error, ParameterError):
            raise
        rule = f"must have {_FORMS} ({one_line(error)})"
        raise ParameterError("path", rule, str(source)) from error


def _arrays_as_named(source: Path) -> Iterator[tuple[str, _Array]]:
    if source.is_dir():
        for path in sorted(source.glob("*.npy")):
            with open_bounded(path, most_bytes=_MOST_BYTES) as file:
                head = read_head(file, file_bytes=os.fstat(file.fileno()).st_size)
                yield path.stem, head.mapped(file, "r")
    elif source.suffix == ".npz":
        with open_bounded(source, most_bytes=_MOST_BYTES) as file, ZipFile(file) as archive:
            for member in archive.infolist():
                yield member.filename.removesuffix(".npy"), _unpacked(archive, member)
    elif source.suffix == ".safetensors":
        yield from _tensors(source)
    else:
        raise ValueError("unknown kind of file" if source.exists() else "no such file")


def _unpacked(archive: ZipFile, member: ZipInfo) -> _Array:
    """Return an array of an archive. Check its header before memory is allocated."""
    with archive.open(member) as file:
        read_head(file, file_bytes=member.file_size)
    with archive.open(member) as file:
        array: _Array = np.lib.format.read_array(file, allow_pickle=False)
    return array


def _tensors(source: Path) -> Iterator[tuple[str, _Array]]:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        rule = "needs safetensors, which is not installed"
        raise ParameterError("path", rule, str(source), "pip install safetensors") from None
    try:
        with (
            open_bounded(source, most_bytes=_MOST_BYTES) as file,  # refuses a pipe, which blocks
            # Opened by descriptor, because another process may replace the file by name.
            safe_open(f"/dev/fd/{file.fileno()}", framework="numpy") as tensors,
        ):
            for name in tensors.keys():  # noqa: SIM118 (`tensors` is not a mapping)
                yield name, tensors.get_tensor(name)
    except (SafetensorError, TypeError) as error:  # TypeError: numpy has no bfloat16
        raise ValueError(one_line(error)) from error


def _check_arrays(arrays: Mapping[str, StoredArray], source: Path) -> None:
    """Raise a `ParameterError` if the arrays of a source do not form a data set."""
    for part in ("", "_test"):
        x, y = (arrays.get(f"{key}{part}") for key in ("x", "y"))
        if x is None and y is None and part:
            continue
        if x is None or y is None:
            names = ", ".join(arrays) or "no array"
            raise ParameterError("path", f"must have {_FORMS}", f"{source}: {names}")
        if x.shape[0] != y.shape[0] or x.shape[0] == 0:
            rule = f"must have as many rows in x{part} as in y{part}, and at least one"
            raise ParameterError("path", rule, f"{source}: {x.shape[0]} and {y.shape[0]}")
        for key, each in (("x", x), ("y", y)):
            if each.shape[1:] != arrays[key].shape[1:] or each.dtype != arrays[key].dtype:
                rule = f"must have rows of the same shape and type in {key}{part} as in {key}"
                raise ParameterError("path", rule, f"{source}: {each.dtype} {each.shape}")
