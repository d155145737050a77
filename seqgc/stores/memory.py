"""Stores in the master's memory.

`MemoryStore` is for tests, and for backends that compute in the master. With an `InlineStore`,
each request contains the weights and each reply the answer, so no other storage is needed.
"""

from __future__ import annotations

from typing import Final, NoReturn

from seqgc.errors import ParameterError, StoreError
from seqgc.ports import FloatArray, WeightRef
from seqgc.stores._objects import check_blob, check_key, refer, refuse_other_content
from seqgc.wire import MESSAGE_LIMIT_BYTES

_ENVELOPE_BYTES = 4096  # of a request in addition to the weights
_REMEDY = "use a directory (EFS) or an S3 store, or a narrower `payload`"


class MemoryStore:
    """A store in a dictionary of this process, which other processes cannot read.

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
        """Store a copy of ``params`` (size,) as a new version, and return the reference.

        Raises `ParameterError` if this version exists with other content.
        """
        ref, copy = refer(model, version, params)
        stored, _ = self._stored.setdefault((model, ref.version), (ref, copy))
        if stored != ref:
            raise refuse_other_content(ref)
        return ref

    def fetch(self, ref: WeightRef) -> FloatArray:
        """Return the read-only weights (size,) that a reference names.

        Raises `StoreError` if they are missing or differ from the reference.
        """
        stored, params = self._stored.get((ref.model, ref.version), (None, None))
        name = f"weights of {ref.model!r}, version {ref.version},"
        if stored is None or params is None:
            raise StoreError(f"{name} are missing: publish them first")
        if stored != ref:
            raise StoreError(
                f"{name} have digest {stored.digest[:12]}… instead of {ref.digest[:12]}…: the "
                "reference may be from another run"
            )
        return params

    def discard(self, ref: WeightRef) -> None:
        self._stored.pop((ref.model, ref.version), None)

    def put(self, key: str, data: bytes) -> None:
        check_key(key)
        self._blobs[key] = bytes(data)

    def get(self, key: str, *, digest: str, size_bytes: int) -> bytes:
        check_key(key)
        if (data := self._blobs.get(key)) is None:
            raise StoreError(f"nothing is stored under {key!r}: it was removed, or never stored")
        try:
            check_blob(data, digest=digest, size_bytes=size_bytes)
        except ValueError as error:
            raise StoreError(f"blob {key!r} {error}: ask the worker again") from error
        return data

    def remove(self, key: str) -> None:
        check_key(key)
        self._blobs.pop(key, None)


class InlineStore:
    """A store of weights in the master's memory. Each task that is sent contains its weights.

    ``limit_bytes`` is the size limit of a request as JSON. In JSON, three bytes of weights become
    four characters of base64.

    Examples
    --------
    >>> import numpy as np
    >>> store = InlineStore(limit_bytes=10_000)
    >>> ref = store.publish("cnn", 0, np.ones(500))
    >>> store.publish("cnn", 1, np.ones(1000))
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `params` must be at most 4428 bytes to travel in a request of \
10000; got 8000 (use a directory (EFS) or an S3 store, or a narrower `payload`)
    """

    def __init__(self, *, limit_bytes: int = MESSAGE_LIMIT_BYTES) -> None:
        if limit_bytes <= _ENVELOPE_BYTES:
            raise ParameterError("limit_bytes", f"must be > {_ENVELOPE_BYTES}", limit_bytes)
        self._limit_bytes: Final = limit_bytes
        self._memory: Final = MemoryStore()

    @property
    def most_bytes(self) -> int:
        """The largest number of bytes of weights that fit into a request."""
        return (self._limit_bytes - _ENVELOPE_BYTES) // 4 * 3

    def publish(self, model: str, version: int, params: FloatArray) -> WeightRef:
        """Store a copy of ``params`` (size,) as a new version, and return the reference.

        Raises `ParameterError` if the weights are too large for a request, or if this version
        exists with other content.
        """
        ref = self._memory.publish(model, version, params)
        if (size := self._memory.fetch(ref).nbytes) > self.most_bytes:
            self._memory.discard(ref)
            rule = f"must be at most {self.most_bytes} bytes to travel in a request of"
            raise ParameterError("params", f"{rule} {self._limit_bytes}", size, _REMEDY)
        return ref

    def fetch(self, ref: WeightRef) -> FloatArray:
        return self._memory.fetch(ref)

    def discard(self, ref: WeightRef) -> None:
        self._memory.discard(ref)

    def put(self, key: str, data: bytes) -> NoReturn:
        """Raise `StoreError`, because an inline store does not keep answers."""
        raise StoreError(
            f"the answer {key!r} of {len(data)} bytes is too large for a reply, and an inline "
            f"store keeps no answers: {_REMEDY}"
        )

    def get(self, key: str, *, digest: str, size_bytes: int) -> NoReturn:
        """Raise `StoreError`, because an inline store does not keep answers."""
        raise StoreError(
            f"the answer {key!r} of {size_bytes} bytes, digest {digest[:12]}…, cannot be read: an "
            "inline store keeps no answers"
        )

    def remove(self, key: str) -> None:
        """Do nothing, because an inline store does not keep answers."""
