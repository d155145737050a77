"""Weights that travel in each request, and answers in the reply: nothing is stored."""

from __future__ import annotations

from typing import Final, NoReturn

from seqgc.errors import ParameterError, StoreError
from seqgc.ports import FloatArray, WeightRef
from seqgc.stores.memory import MemoryStore
from seqgc.wire import MESSAGE_LIMIT_BYTES

__all__ = ["InlineStore"]

_ENVELOPE_BYTES = 4096  # of a request: the task, addresses, JSON around the frame
_REMEDY = "use a directory (EFS) or an S3 store, or a narrower `payload`"


class InlineStore:
    """Weights kept in the master, which sends them along with each task.

    Parameters
    ----------
    limit_bytes
        Of a request or reply as JSON, where base64 takes four bytes for three.

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
        """How much a request has room for, beside its task."""
        return (self._limit_bytes - _ENVELOPE_BYTES) // 4 * 3

    def publish(self, model: str, version: int, params: FloatArray) -> WeightRef:
        """Keep a copy of ``params`` (size,); publishing the same again changes nothing.

        Raises
        ------
        ParameterError
            If it is too large to travel, this version has other content already, or an argument
            cannot be stored.
        """
        ref = self._memory.publish(model, version, params)
        if (size := self._memory.fetch(ref).nbytes) > self.most_bytes:
            self._memory.discard(ref)
            rule = f"must be at most {self.most_bytes} bytes to travel in a request of"
            raise ParameterError("params", f"{rule} {self._limit_bytes}", size, _REMEDY)
        return ref

    def fetch(self, ref: WeightRef) -> FloatArray:
        """Return the weights (size,) that ``ref`` stands for, read-only.

        Raises
        ------
        StoreError
            If they are not there, or not those that ``ref`` was given for.
        """
        return self._memory.fetch(ref)

    def discard(self, ref: WeightRef) -> None:
        """Forget a version; one that is not there is forgotten already."""
        self._memory.discard(ref)

    def put(self, key: str, data: bytes) -> NoReturn:
        """Refuse: there is no place for an answer that no reply takes."""
        raise StoreError(
            f"an answer of {len(data)} bytes ({key}) is too large for a reply, and there is no "
            f"store to put it into: {_REMEDY}"
        )

    def get(self, key: str, *, digest: str, size_bytes: int) -> NoReturn:
        """Refuse: nothing can have been put."""
        raise StoreError(
            f"no answer of {size_bytes} bytes, digest {digest[:12]}…, is under {key!r}: an inline "
            "store keeps no answers"
        )

    def remove(self, key: str) -> None:
        """Nothing is there to be removed."""
