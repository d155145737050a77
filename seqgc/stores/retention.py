"""Late deletion of stored things: a late invocation may still read them.

An invocation on a cloud cannot be called back. A straggler whose round has long ended may fetch its
weights minutes later, and if the store no longer had them, that would be reported as a failure.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from seqgc.errors import ParameterError, StoreError, require_int
from seqgc.ports import BlobStore, FloatArray, WeightRef

__all__ = ["RetiringStore"]


class RetiringStore:
    """A store that deletes late: what is discarded or removed stays readable for a while.

    What cannot be deleted then ends no run: it is tried again, and at last left behind.

    What is stored again meanwhile is wanted again, and stays until it is let go once more.
    Nothing happens by itself: call `advance` when a round begins, and `close` at the end.

    Parameters
    ----------
    store
        Where things are.
    rounds, grace_s
        For so many rounds and seconds, both, a thing stays.
    now
        Seconds of a clock that does not go back.

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
        # In which round, and from when on, each may go; in the order in which they were let go.
        self._retired: Final[dict[WeightRef | str, tuple[int, float]]] = {}

    def publish(self, model: str, version: int, params: FloatArray) -> WeightRef:
        ref = self._store.publish(model, version, params)
        self._retired.pop(ref, None)
        return ref

    def fetch(self, ref: WeightRef) -> FloatArray:
        return self._store.fetch(ref)

    def discard(self, ref: WeightRef) -> None:
        """Let a version go when its time has come."""
        self._retire(ref)

    def put(self, key: str, data: bytes) -> None:
        self._store.put(key, data)
        self._retired.pop(key, None)

    def get(self, key: str, *, digest: str, size_bytes: int) -> bytes:
        return self._store.get(key, digest=digest, size_bytes=size_bytes)

    def remove(self, key: str) -> None:
        """Let a blob go when its time has come."""
        self._retire(key)

    def advance(self, round: int) -> int:
        """Delete what may go now that ``round`` begins; return how much that was."""
        self._round = round = max(self._round, round)
        now = self._now()
        due = [item for item, (first, at) in self._retired.items() if first <= round and at <= now]
        for number, item in enumerate(due):
            if not self._forget(item):
                return number  # the others are due next time as well
        return len(due)

    def close(self) -> None:
        """Delete all that was discarded or removed: nobody reads any more."""
        for item in tuple(self._retired):
            self._forget(item)

    def _retire(self, item: WeightRef | str) -> None:
        self._retired.setdefault(item, (self._round + self._rounds, self._now() + self._grace_s))

    def _forget(self, item: WeightRef | str) -> bool:
        """Delete an item; if that cannot be it is the last one to be tried again."""
        due = self._retired.pop(item)
        try:
            if isinstance(item, WeightRef):
                self._store.discard(item)
            else:
                self._store.remove(item)
        except StoreError:
            self._retired[item] = due
            return False
        return True
