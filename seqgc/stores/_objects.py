"""Named objects in a folder or a bucket, of which weights are never replaced.

A network file system, or another machine's cache, may show half of an object for a moment. NFS (and
so EFS) promises that a file opened after its writer closed it is seen whole; attributes and pages
that a client has cached may be older, and a file replaced under an open handle is stale (ESTALE).
All of that passes within a second; damage does not. So what is not (yet) what it has to be is read
a few times more, for about half a second, before it is an error.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Final, TypeAlias, TypeVar

from seqgc.errors import StoreError, one_line
from seqgc.ports import FloatArray, WeightRef
from seqgc.stores._content import (
    check_address,
    check_blob,
    check_key,
    refer,
    refuse_other_content,
)

__all__ = ["ObjectStore", "Pause"]

Pause: TypeAlias = Callable[[float], None]
_Content = TypeVar("_Content")

_PAUSES_S: Final = (0.02, 0.1, 0.5)  # before each further reading


class ObjectStore(ABC):
    """Immutable versions of weights, and blobs, as objects of which each appears as a whole.

    There is one writer of weights, the master, and any number of readers, in other processes or on
    other machines. Should two writers race for one version, the digest in the reference tells
    readers.

    A subclass says how objects are written, read, deleted and called: the ending of the names of
    weights, and what helps where others see an object and this side does not.
    """

    _suffix: ClassVar[str]
    _reach: ClassVar[str]

    def __init__(self, *, pause: Pause = time.sleep) -> None:
        self._pause = pause

    def publish(self, model: str, version: int, params: FloatArray) -> WeightRef:
        """Write ``params`` (size,) for all to read; publishing the same again changes nothing.

        They are whole for whoever is told of them, in any process and on any machine that has the
        store. Whether they outlive a power cut is for the store to say: a run does not need it.

        Raises
        ------
        ParameterError
            If this version has other content already, or an argument cannot be stored.
        StoreError
            If it cannot be written.
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
        """Return the weights (size,) that ``ref`` stands for, read-only.

        Raises
        ------
        StoreError
            If the object is missing, damaged, or not the one that ``ref`` was given for.
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
        """Remove a version; one that is not there is removed already."""
        self._delete(self._name(ref))

    def put(self, key: str, data: bytes) -> None:
        """Write ``data`` for all to read; `StoreError`: it cannot be written."""
        self._replace(_blob(key), data)

    def get(self, key: str, *, digest: str, size_bytes: int) -> bytes:
        """Return what was put; `StoreError`: the object is missing, cut short, or another."""
        name = _blob(key)

        def read() -> bytes:
            data = self._read(name, size_bytes)
            check_blob(data, digest=digest, size_bytes=size_bytes)
            return data

        missing = "it was removed, never put, or may not be read here"
        return self._reread(name, read, missing=missing, remedy="ask the worker again")

    def remove(self, key: str) -> None:
        """Remove a blob; one that is not there is removed already."""
        self._delete(_blob(key))

    def _name(self, ref: WeightRef) -> str:
        check_address(ref.model, ref.version)
        return f"{ref.model}@{ref.version:010d}{self._suffix}"

    def _reread(
        self, name: str, read: Callable[[], _Content], *, missing: str, remedy: str
    ) -> _Content:
        """Return what ``read`` returns, which is called again, after a pause, while it raises."""
        pauses = iter(_PAUSES_S)
        while True:
            try:
                return read()
            except FileNotFoundError:  # it was complete before anybody could know its name
                raise StoreError(f"{self._shown(name)} is missing: {missing}") from None
            except Exception as error:  # damage makes numpy's parser raise nearly anything
                if (seconds := next(pauses, None)) is None:
                    reason = f"{one_line(error)} ({remedy})"
                    raise StoreError(f"{self._shown(name)} cannot be used: {reason}") from error
                self._pause(seconds)

    @abstractmethod
    def _create(self, name: str, params: FloatArray) -> bool:
        """Write weights, little-endian; False, and nothing done, if the name is taken."""

    @abstractmethod
    def _replace(self, name: str, data: bytes) -> None:
        """Write an object, in the place of any other of the name."""

    @abstractmethod
    def _read(self, name: str, size_bytes: int) -> bytes:
        """Return an object's bytes, at most one more than that; `FileNotFoundError`: absent."""

    @abstractmethod
    def _read_params(self, name: str, ref: WeightRef) -> FloatArray:
        """Return the weights of an object, little-endian, compared with the reference."""

    @abstractmethod
    def _delete(self, name: str) -> None:
        """Remove an object, if it is there."""

    @abstractmethod
    def _shown(self, name: str) -> str:
        """Return what people call the object."""


def _blob(key: str) -> str:
    check_key(key)
    return f"blobs/{key}"
