"""What a folder and a bucket share: named objects, of which weights are never replaced."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import ClassVar

from seqgc.errors import StoreError
from seqgc.ports import FloatArray, WeightRef
from seqgc.stores._content import (
    check_address,
    check_blob,
    check_key,
    check_params,
    refer,
    refuse_other_content,
)
from seqgc.stores._rereads import Pause, with_rereads

__all__ = ["ObjectStore"]


class ObjectStore(ABC):
    """Immutable versions of weights, and blobs, as objects of which each appears as a whole.

    There is one writer of weights, the master, and any number of readers, in other processes or on
    other machines. Should two writers race for one version, the digest in the reference tells
    readers. What is not (yet) what it has to be is read a few times more, for about half a second,
    before it is an error (see `seqgc.stores._rereads`).

    A subclass says how objects are written, read, deleted and called: the ending of the names of
    weights, and what helps where others see an object and this side does not.
    """

    _suffix: ClassVar[str]
    _reach: ClassVar[str]

    def __init__(self, *, pause: Pause = time.sleep) -> None:
        self._pause = pause

    def publish(self, model: str, version: int, params: FloatArray) -> WeightRef:
        """Write ``params`` (size,) durably; publishing the same again changes nothing.

        Raises
        ------
        ParameterError
            If this version has other content already, or an argument cannot be stored.
        StoreError
            If it cannot be written.
        """
        check_address(model, version)
        copy = check_params(params)
        ref = refer(model, version, copy)
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
        shown = self._shown(name)
        try:
            params = with_rereads(
                lambda: self._read_params(name, ref),
                what=shown,
                remedy="delete it and publish the version again",
                pause=self._pause,
            )
        except FileNotFoundError:
            raise StoreError(f"{shown} is missing: publish it, or {self._reach}") from None
        native = params.astype(params.dtype.newbyteorder("="), copy=False)
        native.flags.writeable = False
        return native

    def discard(self, ref: WeightRef) -> None:
        """Remove a version; one that is not there is removed already."""
        self._delete(self._name(ref))

    def put(self, key: str, data: bytes) -> None:
        """Write ``data`` durably under a key; what was there is replaced.

        Raises
        ------
        ParameterError
            If the key is not valid (see `check_key`).
        StoreError
            If it cannot be written.
        """
        self._replace(_blob(key), data)

    def get(self, key: str, *, digest: str, size_bytes: int) -> bytes:
        """Return the bytes of this length and SHA-256 that are under a key.

        Raises
        ------
        StoreError
            If the object is missing, cut short, or another.
        """
        name = _blob(key)

        def read() -> bytes:
            data = self._read(name, size_bytes)
            check_blob(data, digest=digest, size_bytes=size_bytes)
            return data

        shown, remedy = self._shown(name), "ask the worker again"
        try:
            return with_rereads(read, what=shown, remedy=remedy, pause=self._pause)
        except FileNotFoundError:
            reasons = "it was removed, never put, or may not be read here"
            raise StoreError(f"{shown} is missing: {reasons}") from None

    def remove(self, key: str) -> None:
        """Remove a blob; one that is not there is removed already."""
        self._delete(_blob(key))

    def _name(self, ref: WeightRef) -> str:
        check_address(ref.model, ref.version)
        return f"{ref.model}@{ref.version:010d}{self._suffix}"

    @abstractmethod
    def _create(self, name: str, params: FloatArray) -> bool:
        """Write weights, little-endian, durably; False, and nothing done, if the name is taken."""

    @abstractmethod
    def _replace(self, name: str, data: bytes) -> None:
        """Write an object durably, in the place of any other of the name."""

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
