"""When stored things may be deleted: not while a late invocation may still read them.

An invocation on a cloud cannot be called back. A straggler whose round has long ended may fetch its
weights minutes later, and if the store no longer had them, that would be reported as a failure.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from seqgc.errors import ParameterError, require_int
from seqgc.ports import BlobStore, FloatArray, WeightRef

__all__ = ["Retention", "RetiringStore"]

_Item = TypeVar("_Item")


class Retention(Generic[_Item]):
    """Says what may be deleted: what was retired ``rounds`` rounds and ``grace_s`` seconds ago.

    Time is an argument: seconds of any clock that does not go back.

    Examples
    --------
    >>> retention = Retention(rounds=2, grace_s=30.0)
    >>> retention.retire("version 0", round=5, now=100.0)
    >>> retention.due(round=7, now=129.0), retention.due(round=6, now=131.0)
    ((), ())
    >>> retention.due(round=7, now=131.0), retention.due(round=7, now=132.0)
    (('version 0',), ())
    """

    def __init__(self, *, rounds: int, grace_s: float) -> None:
        if not 0 <= grace_s < math.inf:
            raise ParameterError("grace_s", "must be finite seconds >= 0", grace_s)
        self._rounds: Final = require_int("rounds", rounds, least=0)
        self._grace_s: Final = grace_s
        self._retired: Final[deque[tuple[_Item, int, float]]] = deque()  # and when each may go

    def retire(self, item: _Item, *, round: int, now: float) -> None:
        """Note that no task of a later round than ``round`` uses the item."""
        self._retired.append((item, round + self._rounds, now + self._grace_s))

    def due(self, *, round: int, now: float) -> tuple[_Item, ...]:
        """Return what may go in round ``round``, once, in the order in which it was retired."""
        due = []
        while self._retired and self._retired[0][1] <= round and self._retired[0][2] <= now:
            due.append(self._retired.popleft()[0])
        return tuple(due)

    def rest(self) -> tuple[_Item, ...]:
        """Return all that has been retired and is not gone yet, once: the run is over."""
        items = tuple(item for item, _, _ in self._retired)
        self._retired.clear()
        return items


class RetiringStore:
    """A store that deletes late: what is discarded or removed stays readable for a while.

    Nothing happens by itself: call `advance` when a round begins, and `close` at the end.
    ``rounds`` and ``grace_s`` are those of `Retention`, by the clock ``now``.

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
        self._store: Final = store
        self._now: Final = now
        self._retention: Final = Retention[WeightRef | str](rounds=rounds, grace_s=grace_s)
        self._retired: Final[set[WeightRef | str]] = set()
        self._round = 0

    def publish(self, model: str, version: int, params: FloatArray) -> WeightRef:
        return self._store.publish(model, version, params)

    def fetch(self, ref: WeightRef) -> FloatArray:
        return self._store.fetch(ref)

    def discard(self, ref: WeightRef) -> None:
        """Let a version go when its time has come."""
        self._retire(ref)

    def put(self, key: str, data: bytes) -> None:
        self._store.put(key, data)

    def get(self, key: str, *, digest: str, size_bytes: int) -> bytes:
        return self._store.get(key, digest=digest, size_bytes=size_bytes)

    def remove(self, key: str) -> None:
        """Let a blob go when its time has come."""
        self._retire(key)

    def advance(self, round: int) -> int:
        """Delete what may go now that ``round`` begins; return how much that was."""
        self._round = max(self._round, round)
        due = self._retention.due(round=self._round, now=self._now())
        for item in due:
            self._forget(item)
        return len(due)

    def close(self) -> None:
        """Delete all that was discarded or removed: nobody reads any more."""
        for item in self._retention.rest():
            self._forget(item)

    def _retire(self, item: WeightRef | str) -> None:
        if item not in self._retired:
            self._retired.add(item)
            self._retention.retire(item, round=self._round, now=self._now())

    def _forget(self, item: WeightRef | str) -> None:
        self._retired.discard(item)
        if isinstance(item, WeightRef):
            self._store.discard(item)
        else:
            self._store.remove(item)
