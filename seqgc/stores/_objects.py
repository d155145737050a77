"""The base class of stores in a folder or a bucket, and checks that all stores share.

A network file system, or the cache of another machine, may show an incomplete object for a moment.
NFS (and therefore EFS) guarantees that a file is complete if it is opened after its writer has
closed it. However, a client may have cached older attributes and pages, and reading a file that was
replaced raises ESTALE. These effects disappear within a second; damage does not. If an object is
not as expected, it is therefore read again a few times within about half a second before an error
is raised.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Final, TypeAlias, TypeVar

import numpy as np

from seqgc.errors import ParameterError, StoreError, one_line, require_int, require_name
from seqgc.ports import FloatArray, WeightRef

Pause: TypeAlias = Callable[[float], None]
_Content = TypeVar("_Content")

_PAUSES_S: Final = (0.02, 0.1, 0.5)  # before the second, third and fourth reading
_DTYPES = ("float16", "float32", "float64")


class ObjectStore(ABC):
    """A store of weights (immutable versions) and blobs. An object is either complete or absent.

    Weights have one writer, the master, and any number of readers in other processes or on other
    machines. If two writers write the same version, readers detect this by the digest in their
    reference.

    A subclass defines how objects are written, read, deleted and named. ``_suffix`` is the end of
    the names of weights, and ``_reach`` is advice for a reader that cannot see an object.
    """

    _suffix: ClassVar[str]
    _reach: ClassVar[str]

    def __init__(self, *, pause: Pause = time.sleep) -> None:
        self._pause = pause

    def publish(self, model: str, version: int, params: FloatArray) -> WeightRef:
        """Store ``params`` (size,) as a new version, and return the reference.

        When this method returns, every process and machine with access to the store can read the
        weights. They may be lost in a power failure; a resumed run does not need them. Publishing
        the same weights again changes nothing.

        Raises
        ------
        ParameterError
            If this version exists with other content, or an argument cannot be stored.
        StoreError
            If the weights cannot be written.
        """
        ref, copy = refer(model, version, params)
        name = self._name(ref)
        if not self._create(name, copy):
            try:
                self._read_params(name, ref)
            except (ValueError, OSError) as error:
                raise refuse_other_content(ref, stays=self._shown(name)) from error
        return ref

    def fetch(self, ref: WeightRef) -> FloatArray:
        """Return the read-only weights (size,) that a reference names.

        Raises
        ------
        StoreError
            If the weights are missing or damaged, or differ from the reference.
        """
        name = self._name(ref)
        params = self._reread(
            name,
            lambda: self._read_params(name, ref),
            missing=f"publish it, or {self._reach}",
            remedy="delete it and publish the version again",
        )
        native = params.astype(params.dtype.newbyteorder("="), copy=False)
        native.flags.writeable = False
        return native

    def discard(self, ref: WeightRef) -> None:
        """Remove a version if it exists."""
        self._delete(self._name(ref))

    def put(self, key: str, data: bytes) -> None:
        """Store ``data`` under ``key``; raise `StoreError` if this is not possible."""
        self._replace(_blob(key), data)

    def get(self, key: str, *, digest: str, size_bytes: int) -> bytes:
        """Return the bytes stored under ``key``.

        Raises `StoreError` if they are missing, or differ in length or SHA-256.
        """
        name = _blob(key)

        def read() -> bytes:
            data = self._read(name, size_bytes)
            check_blob(data, digest=digest, size_bytes=size_bytes)
            return data

        missing = "it was removed or never stored, or this machine has no permission to read it"
        return self._reread(name, read, missing=missing, remedy="ask the worker again")

    def remove(self, key: str) -> None:
        """Remove the bytes stored under ``key`` if there are any."""
        self._delete(_blob(key))

    def _name(self, ref: WeightRef) -> str:
        check_address(ref.model, ref.version)
        return f"{ref.model}@{ref.version:010d}{self._suffix}"

    def _reread(
        self, name: str, read: Callable[[], _Content], *, missing: str, remedy: str
    ) -> _Content:
        """Call ``read``, up to four times while it raises, with pauses; return its result."""
        pauses = iter(_PAUSES_S)
        while True:
            try:
                return read()
            except FileNotFoundError:  # no pause: readers learn the name only after the writing
                raise StoreError(f"{self._shown(name)} is missing: {missing}") from None
            except Exception as error:  # NumPy's parser raises many types for damaged data
                if (seconds := next(pauses, None)) is None:
                    reason = f"{one_line(error)} ({remedy})"
                    raise StoreError(f"{self._shown(name)} cannot be used: {reason}") from error
                self._pause(seconds)

    @abstractmethod
    def _create(self, name: str, params: FloatArray) -> bool:
        """Write weights, little-endian. If the object exists, change nothing and return False."""

    @abstractmethod
    def _replace(self, name: str, data: bytes) -> None:
        """Write an object; an existing object of this name is replaced."""

    @abstractmethod
    def _read(self, name: str, size_bytes: int) -> bytes:
        """Return at most ``size_bytes + 1`` bytes of an object, or raise `FileNotFoundError`."""

    @abstractmethod
    def _read_params(self, name: str, ref: WeightRef) -> FloatArray:
        """Return the weights of an object, little-endian, after checking them."""

    @abstractmethod
    def _delete(self, name: str) -> None:
        """Remove an object if it exists."""

    @abstractmethod
    def _shown(self, name: str) -> str:
        """Return the full name of an object, for messages."""


def _blob(key: str) -> str:
    check_key(key)
    return f"blobs/{key}"


def check_address(model: str, version: int) -> None:
    """Raise `ParameterError` unless ``model`` is a safe name and ``version`` an integer >= 0."""
    require_name("model", model, most=100)
    require_int("version", version, least=0)


def check_key(key: str) -> None:
    """Raise `ParameterError` unless a key is a safe file name, which cannot leave its folder."""
    require_name("key", key, most=200)


def check_blob(data: bytes | memoryview, *, digest: str, size_bytes: int) -> None:
    """Raise `ValueError` unless bytes have this length and SHA-256."""
    if len(data) != size_bytes:
        raise ValueError(f"has {len(data)} bytes instead of {size_bytes}")
    if (actual := hashlib.sha256(data).hexdigest()) != digest:
        raise ValueError(f"has digest {actual[:12]}… instead of {digest[:12]}…")


def refer(model: str, version: int, params: FloatArray) -> tuple[WeightRef, FloatArray]:
    """Return a reference to ``params`` (size,), and a read-only little-endian copy of the array.

    Raises
    ------
    ParameterError
        If an argument cannot be stored.
    """
    check_address(model, version)
    array = np.asarray(params)
    if array.ndim != 1 or array.dtype.name not in _DTYPES:
        got = f"shape {array.shape}, {array.dtype}"
        raise ParameterError("params", f"must be a vector of {', '.join(_DTYPES)}", got)
    copy = array.astype(array.dtype.newbyteorder("<"), copy=True)
    copy.flags.writeable = False
    ref = WeightRef(
        model=model,
        version=int(version),
        digest=hashlib.sha256(copy.data).hexdigest(),
        dtype=copy.dtype.name,
        size=copy.size,
    )
    return ref, copy


def refuse_other_content(ref: WeightRef, *, stays: str = "") -> ParameterError:
    """Return the error for a version that is published again with other content.

    ``stays`` is the name of the existing object, for the message.
    """
    rule = f"must be new, or published with the same content (model {ref.model!r})"
    remedy = "versions are immutable: publish under the next number"
    remedy += stays and f"; {stays} is unchanged"
    return ParameterError("version", rule, ref.version, remedy)
