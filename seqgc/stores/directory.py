"""A store in a folder that master and workers share: a local disk, or an EFS mount.

One file per version, ``<root>/<model>@<version>.npy``, which appears as a whole or not at all, also
in a power cut. ``.npy`` carries its own format version; nothing is ever unpickled.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import numpy as np

from seqgc._durable import replacing
from seqgc._types import FloatArray
from seqgc.errors import ParameterError, StoreError
from seqgc.ports import WeightRef
from seqgc.stores._content import check_address, check_params, digest_of, refer

__all__ = ["DirectoryStore"]


class DirectoryStore:
    """Immutable versions of weights as files under ``root``, which is created if need be.

    There is one writer, the master, and any number of readers, in other processes or on other
    machines. Should two writers race for one version, the digest in the reference tells readers.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = DirectoryStore(folder)
    ...     ref = store.publish("cnn", 0, np.array([1.0, 2.0]))
    ...     DirectoryStore(folder).fetch(ref)
    array([1., 2.])
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(root)

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
            self._refuse_other_content(ref, path)
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
            with path.open("rb") as file:
                params = _read(file, ref)
        except FileNotFoundError:
            raise StoreError(
                f"{path} is missing: publish it, or mount the master's folder on every worker"
            ) from None
        except Exception as error:  # a damaged header makes numpy's parser raise nearly anything
            raise StoreError(f"{path} cannot be read ({error}): {_REMEDY}") from error
        if (found := digest_of(params)) != ref.digest:
            raise StoreError(
                f"{path} has digest {found[:12]}… where {ref.digest[:12]}… is due: {_REMEDY}"
            )
        native = params.astype(params.dtype.newbyteorder("="), copy=False)
        native.flags.writeable = False
        return native

    def discard(self, ref: WeightRef) -> None:
        """Remove a version's file; one that is not there is removed already."""
        self._path(ref.model, ref.version).unlink(missing_ok=True)

    def _path(self, model: str, version: int) -> Path:
        check_address(model, version)
        return self._root / f"{model}@{version:010d}.npy"

    def _refuse_other_content(self, ref: WeightRef, path: Path) -> None:
        try:
            self.fetch(ref)
        except StoreError as error:
            rule = f"must be new, or published with the same content (model {ref.model!r})"
            remedy = f"versions are immutable: publish under the next number; {path} stays"
            raise ParameterError("version", rule, ref.version, remedy) from error


_REMEDY = "delete the file and publish the version again"


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
