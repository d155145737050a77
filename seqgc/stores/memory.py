"""A store inside one process: for tests, and for backends that compute in the master."""

from __future__ import annotations

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

__all__ = ["MemoryStore"]


class MemoryStore:
    """Weights in a dictionary; other processes see nothing of it.

    Examples
    --------
    >>> import numpy as np
    >>> store = MemoryStore()
    >>> ref = store.publish("cnn", 0, np.array([1.0, 2.0]))
    >>> store.fetch(ref)
    array([1., 2.])
    """

    def __init__(self) -> None:
        self._stored: dict[tuple[str, int], tuple[WeightRef, FloatArray]] = {}
        self._blobs: dict[str, bytes] = {}

    def publish(self, model: str, version: int, params: FloatArray) -> WeightRef:
        """Keep a copy of ``params`` (size,); publishing the same again changes nothing.

        Raises
        ------
        ParameterError
            If this version has other content already, or an argument cannot be stored.
        """
        check_address(model, version)
        copy = check_params(params)
        ref = refer(model, version, copy)
        there, _ = self._stored.setdefault((model, ref.version), (ref, copy))
        if there != ref:
            raise refuse_other_content(ref)
        return ref

    def fetch(self, ref: WeightRef) -> FloatArray:
        """Return the weights (size,) that ``ref`` stands for, read-only.

        Raises
        ------
        StoreError
            If they are not there, or not those that ``ref`` was given for.
        """
        there, params = self._stored.get((ref.model, ref.version), (None, None))
        if there is None or params is None:
            raise StoreError(f"no weights of {ref.model!r}, version {ref.version}: publish first")
        if there != ref:
            raise StoreError(
                f"weights of {ref.model!r}, version {ref.version} are {there.digest[:12]}…, not "
                f"{ref.digest[:12]}… as referred to: the reference is another run's"
            )
        return params

    def discard(self, ref: WeightRef) -> None:
        """Forget a version; one that is not there is forgotten already."""
        self._stored.pop((ref.model, ref.version), None)

    def put(self, key: str, data: bytes) -> None:
        """Keep ``data`` under a key; what was there is replaced.

        Raises
        ------
        ParameterError
            If the key is not valid (see `check_key`).
        """
        check_key(key)
        self._blobs[key] = bytes(data)

    def get(self, key: str, *, digest: str, size_bytes: int) -> bytes:
        """Return the bytes of this length and SHA-256 that are under a key.

        Raises
        ------
        StoreError
            If there are none, or they are not these.
        """
        check_key(key)
        if (data := self._blobs.get(key)) is None:
            raise StoreError(f"nothing is stored under {key!r}: it was removed, or never put")
        try:
            check_blob(data, digest=digest, size_bytes=size_bytes)
        except ValueError as error:
            raise StoreError(f"what is stored under {key!r} {error}: ask for it again") from error
        return data

    def remove(self, key: str) -> None:
        """Forget what is under a key; nothing there is forgotten already."""
        check_key(key)
        self._blobs.pop(key, None)
