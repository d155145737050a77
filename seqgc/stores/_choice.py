"""The choice of a run's store, by the bytes that travel and by their cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from seqgc.errors import ParameterError
from seqgc.wire import MESSAGE_LIMIT_BYTES, StoreKind

__all__ = ["INLINE_OUTSIDE_BYTES", "INLINE_ROUND_BYTES", "StoreChoice", "choose_store"]

INLINE_ROUND_BYTES: Final = 64 * 2**20
"""What a master should send of weights in a round, at most, in all its requests together.

To encode, sign and send a megabyte of weights takes it 3 to 5 ms (measured), so this much 0.2 s,
one request after the other; what is in a store is read by all workers at once.
"""

INLINE_OUTSIDE_BYTES: Final = 8 * 2**20
"""The same of a master outside the functions' region: 3.4 s for an uplink of 20 Mbit/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreChoice:
    """A kind of store, and why it is that, in a few words."""

    kind: StoreKind
    reason: str

    def __str__(self) -> str:
        return f"{self.kind} ({self.reason})"


def choose_store(
    *,
    request_bytes: int,
    reply_bytes: int,
    workers: int,
    round_usd: Mapping[StoreKind, float | None],
    limit_bytes: int = MESSAGE_LIMIT_BYTES,
    master_outside: bool = False,
) -> StoreChoice:
    """Return which kind of store a run should use.

    The rule: ``inline`` if a task with its weights fits a request and its results fit a reply,
    since that costs nothing and needs nothing, unless there is a store and all requests of a round
    would exceed `INLINE_ROUND_BYTES`, or from outside `INLINE_OUTSIDE_BYTES`. Else the store in
    which a round costs least; at one price, or where a price is not known, ``directory``, which has
    the shorter latency.

    Parameters
    ----------
    request_bytes, reply_bytes
        Of the largest task as JSON, its weights in it, and of its results.
    workers
        How many requests there are in a round.
    round_usd
        For each store that exists, what a round through it costs, US dollars; None: not known.
    limit_bytes
        Of a request and of a reply.
    master_outside
        Whether the master is outside the functions' region.

    Raises
    ------
    ParameterError
        If only a store could carry the bytes, and there is no store.

    Examples
    --------
    >>> for megabytes in (0.2, 1.4, 30.0):
    ...     size = int(megabytes * 1e6)
    ...     usd = {"directory": 8e-9 * size, "s3": 1e-4}
    ...     print(
    ...         choose_store(request_bytes=size, reply_bytes=size, workers=256, round_usd=usd)
    ...     )
    inline (0.20 MB of request and 0.20 MB of reply fit the 6.29 MB of a message)
    s3 ($0.0001 a round, on the directory $0.0112; messages would add up to 358.40 MB)
    s3 ($0.0001 a round, on the directory $0.2400; more than the 6.29 MB of a message)
    """
    limit = f"the {_mb(limit_bytes)} of a message"
    if max(request_bytes, reply_bytes) <= limit_bytes:
        most_bytes = INLINE_OUTSIDE_BYTES if master_outside else INLINE_ROUND_BYTES
        if workers * request_bytes <= most_bytes or not round_usd:
            sizes = f"{_mb(request_bytes)} of request and {_mb(reply_bytes)} of reply"
            return StoreChoice(kind="inline", reason=f"{sizes} fit {limit}")
        cause = f"messages would add up to {_mb(workers * request_bytes)}"
    else:
        cause = f"more than {limit}"
    if not round_usd:
        rule = f"must be there for a request or reply of more than {limit_bytes} bytes"
        remedy = "deploy with EFS or a bucket, or choose a narrower `payload`"
        size = f"none, for {request_bytes} and {reply_bytes} bytes"
        raise ParameterError("store", rule, size, remedy)
    kind, why = _cheapest(round_usd)
    return StoreChoice(kind=kind, reason=f"{why}; {cause}")


def _cheapest(round_usd: Mapping[StoreKind, float | None]) -> tuple[StoreKind, str]:
    """Return the store, of those that there are, and why."""
    if len(round_usd) == 1:
        (only,) = round_usd
        return only, "the one store in reach"
    directory, s3 = round_usd["directory"], round_usd["s3"]
    if directory is None or s3 is None:
        return "directory", "the quicker one; what they cost here is not known"
    if directory <= s3:
        return "directory", f"${directory:.4f} a round, on s3 ${s3:.4f}"
    return "s3", f"${s3:.4f} a round, on the directory ${directory:.4f}"


def _mb(size: int) -> str:
    return f"{size / 1e6:.2f} MB"
