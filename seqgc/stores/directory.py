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
from typing import BinaryIO, ClassVar, Final

import numpy as np

from seqgc._durable import replacing
from seqgc.ports import FloatArray, WeightRef
from seqgc.stores._content import digest_of
from seqgc.stores._objects import ObjectStore
from seqgc.stores._rereads import Pause

__all__ = ["DirectoryStore"]


class DirectoryStore(ObjectStore):
    """Immutable versions of weights, and blobs, as files under ``root``, created if need be.

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

    _suffix: ClassVar[str] = ".npy"
    _reach: ClassVar[str] = "mount the master's folder on every worker"

    def __init__(self, root: str | os.PathLike[str], *, pause: Pause = time.sleep) -> None:
        super().__init__(pause=pause)
        self._root: Final = Path(root)

    @property
    def root(self) -> Path:
        """The folder."""
        return self._root

    def sweep(self) -> None:
        """Remove the folder if nothing is in it; it comes back when something is stored."""
        for folder in (self._root / "blobs", self._root):
            with suppress(OSError):  # not empty, or not there
                folder.rmdir()

    def _create(self, name: str, params: FloatArray) -> bool:
        if (path := self._root / name).exists():
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            np.lib.format.write_array(file, params, version=(1, 0), allow_pickle=False)
            os.fchmod(file.fileno(), 0o444)  # immutable; other users' workers may read it
        return True

    def _replace(self, name: str, data: bytes) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(data)
            os.fchmod(file.fileno(), 0o444)

    def _read(self, name: str, size_bytes: int) -> bytes:
        with (self._root / name).open("rb") as file:
            return file.read(size_bytes + 1)

    def _read_params(self, name: str, ref: WeightRef) -> FloatArray:
        with (self._root / name).open("rb") as file:
            params = _read_npy(file, ref)
        if (digest := digest_of(params)) != ref.digest:
            raise ValueError(f"has digest {digest[:12]}… where {ref.digest[:12]}… is due")
        return params

    def _delete(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)

    def _shown(self, name: str) -> str:
        return str(self._root / name)


def _read_npy(file: BinaryIO, ref: WeightRef) -> FloatArray:
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
