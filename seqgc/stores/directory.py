"""A store in a folder that master and workers share, on a local disk or an EFS mount.

Each version of weights is a file ``<root>/<model>@<version>.npy``, and each blob is a file
``<root>/blobs/<key>``. A file is either complete or absent. ``.npy`` files contain their format
version; nothing is ever unpickled.

Files are not synchronised to the disk, because synchronising hundreds of files would delay every
round. The files are needed only while tasks are in flight: a run that is resumed after a power
failure has its checkpoints, and publishes weights in a new folder. Other processes of the same
machine see a file without synchronising. Other machines rely on the close-to-open consistency of
NFS (and therefore EFS): when a file is closed, it is sent to the server. A file is therefore closed
before it gets its name, and it gets its name before any worker hears of it. The digest in each
reference detects damage.
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, ClassVar, Final

import numpy as np

from seqgc._bounded import open_bounded
from seqgc._durable import replacing
from seqgc.errors import StoreError, one_line
from seqgc.ports import FloatArray, WeightRef
from seqgc.stores._objects import ObjectStore, Pause, check_blob

_MOST_BYTES: Final = 1 << 62  # no limit here, because each read has its own limit


class DirectoryStore(ObjectStore):
    """A store of weights and blobs as files in the folder ``root``, which is created if necessary.

    ``pause(seconds)`` waits before an object is read again.

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

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        pause: Pause = time.sleep,
    ) -> None:
        super().__init__(pause=pause)
        self.root: Final = Path(root)

    def sweep(self) -> None:
        """Remove the store's folder if it is empty. It is created again when necessary."""
        for folder in (self.root / "blobs", self.root):
            with suppress(OSError):  # it is not empty, or does not exist
                folder.rmdir()

    def _create(self, name: str, params: FloatArray) -> bool:
        with self._told(name, "written"):
            if (self.root / name).exists():
                return False
        with self._written(name) as file:
            file.write(_header(params.dtype.name, params.size))
            # Not `ndarray.tofile`, which hides errors of the disk.
            file.write(np.ascontiguousarray(params).data)
        return True

    def _replace(self, name: str, data: bytes) -> None:
        with self._written(name) as file:
            file.write(data)

    @contextmanager
    def _written(self, name: str) -> Iterator[IO[bytes]]:
        path = self.root / name
        with self._told(name, "written"):
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path, sync=False) as file:
                yield file
                os.fchmod(file.fileno(), 0o444)  # immutable; other users' workers may read it

    def _opened(self, name: str) -> IO[bytes]:
        return open_bounded(self.root / name, most_bytes=_MOST_BYTES)

    @contextmanager
    def _told(self, name: str, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = f"cannot be {what}: {one_line(error)}"
            raise StoreError(f"{self._shown(name)} {reason}") from error

    def _read(self, name: str, size_bytes: int) -> bytes:
        with self._opened(name) as file:
            return file.read(size_bytes + 1)

    def _read_params(self, name: str, ref: WeightRef) -> FloatArray:
        """Read an array. Its shape and dtype are checked before its numbers are read."""
        header, size_bytes = _header(ref.dtype, ref.size), np.dtype(ref.dtype).itemsize * ref.size
        with self._opened(name) as file:
            if file.read(len(header)) != header:  # parse only an unusual header, which is slow
                file.seek(0)
                _require_header(file, ref)
            data = file.read(size_bytes + 1)
        check_blob(data, digest=ref.digest, size_bytes=size_bytes)
        return np.frombuffer(data, dtype=np.dtype(ref.dtype).newbyteorder("<"))

    def _delete(self, name: str) -> None:
        with self._told(name, "removed"):
            (self.root / name).unlink(missing_ok=True)

    def _shown(self, name: str) -> str:
        return str(self.root / name)


@lru_cache(maxsize=64)
def _header(dtype: str, size: int) -> bytes:
    """Return the header of a ``.npy`` file of ``size`` numbers, as this NumPy writes it."""
    file, kind = io.BytesIO(), np.dtype(dtype).newbyteorder("<").str
    about = {"descr": kind, "fortran_order": False, "shape": (size,)}
    np.lib.format.write_array_header_1_0(file, about)
    return file.getvalue()


def _require_header(file: IO[bytes], ref: WeightRef) -> None:
    """Read the header of a ``.npy`` file; raise `ValueError` if it is of other weights."""
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f".npy version {version}, not (1, 0)")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    if shape != (ref.size,) or dtype != np.dtype(ref.dtype).newbyteorder("<"):
        expected = f"{ref.dtype} of shape ({ref.size},)"
        raise ValueError(f"holds {dtype} of shape {shape} instead of {expected}")
