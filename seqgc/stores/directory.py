"""A store in a folder that master and workers share: a local disk, or an EFS mount.

One file per version, ``<root>/<model>@<version>.npy``, and per blob, ``<root>/blobs/<key>``, each
of which appears as a whole or not at all, also in a power cut. ``.npy`` carries its own format
version; nothing is ever unpickled.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from seqgc._durable import replacing
from seqgc.errors import StoreError
from seqgc.ports import FloatArray, WeightRef
from seqgc.stores._content import (
    check_address,
    check_blob,
    check_key,
    check_params,
    digest_of,
    refer,
    refuse_other_content,
)
from seqgc.stores._rereads import Pause, with_rereads

__all__ = ["DirectoryStore"]

_REMEDY = "delete the file and publish the version again"
_BLOB_REMEDY = "ask the worker again"


class DirectoryStore:
    """Immutable versions of weights, and blobs, as files under ``root``, created if need be.

    There is one writer of weights, the master, and any number of readers, in other processes or on
    other machines. Should two writers race for one version, the digest in the reference tells
    readers. A file that is not (yet) what it has to be is read a few times more, for about half a
    second, before it is an error (see `seqgc.stores._rereads`).

    Parameters
    ----------
    root
        The folder.
    pause
        Waits so many seconds before a further reading.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = DirectoryStore(folder)
    ...     ref = store.publish("cnn", 0, np.array([1.0, 2.0]))
    ...     DirectoryStore(folder).fetch(ref)
    array([1., 2.])
    """

    def __init__(self, root: str | os.PathLike[str], *, pause: Pause = time.sleep) -> None:
        self._root: Final = Path(root)
        self._pause: Final = pause

    @property
    def root(self) -> Path:
        """The folder."""
        return self._root

    def publish(self, model: str, version: int, params: FloatArray) -> WeightRef:
        """Write ``params`` (size,) durably; publishing the same again changes nothing.

        Raises
        ------
        ParameterError
            If this version has other content already, or an argument cannot be stored.
        """
        copy = check_params(params)
        path = self._path(model, version)
        ref = refer(model, version, copy)
        if path.exists():
            try:
                _read_params(path, ref)
            except Exception as error:
                raise refuse_other_content(ref, stays=str(path)) from error
            return ref
        self._root.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            np.lib.format.write_array(file, copy, version=(1, 0), allow_pickle=False)
            os.fchmod(file.fileno(), 0o444)  # immutable; other users' workers may read it
        return ref

    def fetch(self, ref: WeightRef) -> FloatArray:
        """Return the weights (size,) that ``ref`` stands for, read-only.

        Raises
        ------
        StoreError
            If the file is missing, damaged, or not the one that ``ref`` was given for.
        """
        path = self._path(ref.model, ref.version)
        try:
            params = with_rereads(
                lambda: _read_params(path, ref), what=str(path), remedy=_REMEDY, pause=self._pause
            )
        except FileNotFoundError:
            raise StoreError(
                f"{path} is missing: publish it, or mount the master's folder on every worker"
            ) from None
        native = params.astype(params.dtype.newbyteorder("="), copy=False)
        native.flags.writeable = False
        return native

    def discard(self, ref: WeightRef) -> None:
        """Remove a version's file; one that is not there is removed already."""
        self._path(ref.model, ref.version).unlink(missing_ok=True)

    def put(self, key: str, data: bytes) -> None:
        """Write ``data`` durably under a key; what was there is replaced.

        Raises
        ------
        ParameterError
            If the key is not valid (see `check_key`).
        """
        path = self._blob(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(data)
            os.fchmod(file.fileno(), 0o444)

    def get(self, key: str, *, digest: str, size_bytes: int) -> bytes:
        """Return the bytes of this length and SHA-256 that are under a key.

        Raises
        ------
        StoreError
            If the file is missing, cut short, or another.
        """
        path = self._blob(key)

        def read() -> bytes:
            with path.open("rb") as file:
                data = file.read(size_bytes + 1)  # no more than was promised, whatever is there
            check_blob(data, digest=digest, size_bytes=size_bytes)
            return data

        try:
            return with_rereads(read, what=str(path), remedy=_BLOB_REMEDY, pause=self._pause)
        except FileNotFoundError:
            raise StoreError(
                f"{path} is missing: it was removed, or its mount is another"
            ) from None

    def remove(self, key: str) -> None:
        """Remove a blob's file; one that is not there is removed already."""
        self._blob(key).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove the folder if nothing is in it; it comes back when something is stored."""
        for folder in (self._root / "blobs", self._root):
            with suppress(OSError):  # not empty, or not there
                folder.rmdir()

    def _path(self, model: str, version: int) -> Path:
        check_address(model, version)
        return self._root / f"{model}@{version:010d}.npy"

    def _blob(self, key: str) -> Path:
        check_key(key)
        return self._root / "blobs" / key


def _read_params(path: Path, ref: WeightRef) -> FloatArray:
    with path.open("rb") as file:
        params = _read(file, ref)
    if (found := digest_of(params)) != ref.digest:
        raise ValueError(f"has digest {found[:12]}… where {ref.digest[:12]}… is due")
    return params


def _read(file: BinaryIO, ref: WeightRef) -> FloatArray:
    """Read an array, its shape and dtype checked against ``ref`` before it is allocated."""
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f".npy version {version}, not (1, 0)")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if shape != (ref.size,) or dtype != np.dtype(ref.dtype).newbyteorder("<"):
        raise ValueError(f"holds {dtype} of shape {shape}, not {ref.dtype} of ({ref.size},)")
    data = file.read(dtype.itemsize * ref.size + 1)
    if len(data) != dtype.itemsize * ref.size:
        raise ValueError("is cut short, or too long")
    return np.frombuffer(data, dtype=dtype)
