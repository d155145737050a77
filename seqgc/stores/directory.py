"""A store in a folder that master and workers share: a local disk, or an EFS mount.

One file per version, ``<root>/<model>@<version>.npy``, and per blob, ``<root>/blobs/<key>``, each
of which appears as a whole or not at all, also in a power cut. ``.npy`` carries its own format
version; nothing is ever unpickled.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, ClassVar, Final

import numpy as np

from seqgc._durable import replacing
from seqgc.ports import FloatArray, WeightRef
from seqgc.stores._content import check_blob
from seqgc.stores._objects import ObjectStore, Pause

__all__ = ["DirectoryStore"]


class DirectoryStore(ObjectStore):
    """Immutable versions of weights, and blobs, as files under ``root``, created if need be.

    ``pause`` waits so many seconds before a further reading.

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
        self.root: Final = Path(root)

    def sweep(self) -> None:
        """Remove the folder if nothing is in it; it comes back when something is stored."""
        for folder in (self.root / "blobs", self.root):
            with suppress(OSError):  # not empty, or not there
                folder.rmdir()

    def _create(self, name: str, params: FloatArray) -> bool:
        if (self.root / name).exists():
            return False
        with self._file(name) as file:
            np.lib.format.write_array(file, params, version=(1, 0), allow_pickle=False)
        return True

    def _replace(self, name: str, data: bytes) -> None:
        with self._file(name) as file:
            file.write(data)

    @contextmanager
    def _file(self, name: str) -> Iterator[IO[bytes]]:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            yield file
            os.fchmod(file.fileno(), 0o444)  # immutable; other users' workers may read it

    def _read(self, name: str, size_bytes: int) -> bytes:
        with (self.root / name).open("rb") as file:
            return file.read(size_bytes + 1)

    def _read_params(self, name: str, ref: WeightRef) -> FloatArray:
        """Read an array, its shape and dtype compared before its numbers are read."""
        with (self.root / name).open("rb") as file:
            version = np.lib.format.read_magic(file)
            if version != (1, 0):
                raise ValueError(f".npy version {version}, not (1, 0)")
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            if shape != (ref.size,) or dtype != np.dtype(ref.dtype).newbyteorder("<"):
                due = f"{ref.dtype} of ({ref.size},)"
                raise ValueError(f"holds {dtype} of shape {shape}, not {due}")
            size_bytes = dtype.itemsize * ref.size
            data = file.read(size_bytes + 1)
        check_blob(data, digest=ref.digest, size_bytes=size_bytes)
        return np.frombuffer(data, dtype=dtype)

    def _delete(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    def _shown(self, name: str) -> str:
        return str(self.root / name)
