"""Delayed deletion from a store.

An invocation of a cloud function cannot be cancelled. A straggler may fetch its weights minutes
after its round has ended. If the weights had been deleted by then, the straggler would report a
failure.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from seqgc.errors import ParameterError, StoreError, require_int
from seqgc.ports import BlobStore, FloatArray, WeightRef


class RetiringStore:
    """A store that deletes discarded weights and removed blobs only after some time.

    If a deletion fails, the run continues, and the deletion is tried again until the end of the
    run. An item that is stored again stays until it is discarded or removed again. Call `advance`
    when a round begins, and `close` at the end of the run.

    Parameters
    ----------
    store
        The store that keeps the items.
    rounds, grace_s
        An item stays for at least ``rounds`` rounds and ``grace_s`` seconds after its removal.
    now
        A clock in seconds that never goes back.

    Examples
    --------
    >>> import numpy as np
    >>> from seqgc.stores import MemoryStore
    >>> store = RetiringStore(MemoryStore(), rounds=1, grace_s=0.0)
    >>> ref = store.publish("cnn", 0, np.array([1.0, 2.0]))
    >>> store.discard(ref)
    >>> store.fetch(ref)  # a straggler still finds it
    array([1., 2.])
    >>> store.advance(1)
    1
    """

    def __init__(
        self,
        store: BlobStore,
        *,
        rounds: int,
        grace_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 <= grace_s < math.inf:
            raise ParameterError("grace_s", "must be finite seconds >= 0", grace_s)
        self._store: Final = store
        self._rounds: Final = require_int("rounds", rounds, least=0)
        self._grace_s: Final = grace_s
        self._now: Final = now
        self._round = 0
        # For each item the earliest round and time at which it may be deleted, in order of removal.
        self._retired: Final[dict[WeightRef | str, tuple[int, float]]] = {}

    def publish(self, model: str, version: int, params: FloatArray) -> WeightRef:
        ref = self._store.publish(model, version, params)
        self._retired.pop(ref, None)
        return ref

    def fetch(self, ref: WeightRef) -> FloatArray:
        return self._store.fetch(ref)

    def discard(self, ref: WeightRef) -> None:
        """Mark a version for deletion."""
        self._retire(ref)

    def put(self, key: str, data: bytes) -> None:
        self._store.put(key, data)
        self._retired.pop(key, None)

    def get(self, key: str, *, digest: str, size_bytes: int) -> bytes:
        return self._store.get(key, digest=digest, size_bytes=size_bytes)

    def remove(self, key: str) -> None:
        """Mark a blob for deletion."""
        self._retire(key)

    def advance(self, round: int) -> int:
        """Begin ``round``: delete the items that have stayed long enough; return their number."""
        self._round = round = max(self._round, round)
        now = self._now()
        items = [
            item for item, (first, at) in self._retired.items() if first <= round and at <= now
        ]
        for number, item in enumerate(items):
            if not self._forget(item):
                return number  # try the remaining items again in the next round
        return len(items)

    def close(self) -> None:
        """Delete all items that are marked for deletion."""
        for item in tuple(self._retired):
            self._forget(item)

    def _retire(self, item: WeightRef | str) -> None:
        self._retired.setdefault(item, (self._round + self._rounds, self._now() + self._grace_s))

    def _forget(self, item: WeightRef | str) -> bool:
        """Delete an item; if this fails, move it to the end and return False."""
        times = self._retired.pop(item)
        try:
            if isinstance(item, WeightRef):
                self._store.discard(item)
            else:
                self._store.remove(item)
        except StoreError:
            self._retired[item] = times
            return False
        return True
