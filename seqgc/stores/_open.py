"""The choice of a run's store by size and cost, and the opening of a store.

The master and the workers both open the store. Each side may mount the shared file system in
another folder, and has its own rules for allowed locations.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from seqgc.errors import ParameterError
from seqgc.ports import BlobStore
from seqgc.stores.directory import DirectoryStore
from seqgc.stores.memory import InlineStore
from seqgc.stores.s3 import S3Client, S3Store, split_s3
from seqgc.wire import MESSAGE_LIMIT_BYTES, StoreKind, StoreRef

INLINE_ROUND_BYTES: Final = 64 * 2**20
"""The largest number of bytes of weights that a master should send in a round, in all requests.

Encoding, signing and sending takes 3 to 5 ms for each megabyte (measured), so the limit takes about
0.2 s. With a store, in contrast, all workers read at the same time.
"""

INLINE_OUTSIDE_BYTES: Final = 8 * 2**20
"""The same limit for a master outside the functions' region: 3.4 s with an uplink of 20 Mbit/s."""


def unique_name(name: str) -> str:
    """Return a unique name that contains ``name`` and that every store accepts.

    Examples
    --------
    >>> len(unique_name("my run")), unique_name("my run")[:7]
    (19, 'my_run-')
    """
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:80].lstrip(".-") or "run"
    return f"{plain}-{uuid.uuid4().hex[:12]}"


def open_store(
    ref: StoreRef,
    *,
    mount: str | os.PathLike[str] | None = None,
    s3_allowed: Sequence[str] | None = None,
    s3_client: Callable[[], S3Client] | None = None,
) -> BlobStore:
    """Return the store that a reference names on this machine.

    Parameters
    ----------
    mount
        The folder where the shared file system is mounted on this machine, or None. The location
        of a directory store is a path below this folder.
    s3_allowed
        The locations ``s3://bucket/prefix`` that are allowed: a store in S3 must be below one of
        them. None allows all locations. A worker must not pass None, because its reference comes
        in a message.
    s3_client
        A function that returns the client (see `S3Store`).

    Raises
    ------
    ParameterError
        If the location is not below ``mount`` or not allowed, or if there is no mount.

    Examples
    --------
    >>> open_store(StoreRef(kind="directory", location="run-7/weights"), mount="/mnt/seqgc").root
    PosixPath('/mnt/seqgc/run-7/weights')
    >>> open_store(StoreRef(kind="directory", location="../etc"), mount="/mnt/seqgc")
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `location` must be a path below the mount, without '..'; got \
'../etc'
    """
    if ref.kind == "inline":
        return InlineStore()
    if ref.kind == "s3":
        _check_allowed(ref.location, s3_allowed)
        return S3Store(ref.location, client=s3_client)
    return _directory(mount, ref.location)


def _directory(mount: str | os.PathLike[str] | None, location: str) -> DirectoryStore:
    if mount is None:
        rule = "must be in S3 or inline, because no shared file system is mounted here"
        raise ParameterError("location", rule, location, "mount it, and set its mount point")
    path = Path(location)
    if path.is_absolute() or ".." in path.parts or not location.isprintable():
        raise ParameterError("location", "must be a path below the mount, without '..'", location)
    return DirectoryStore(Path(mount, path))


def _check_allowed(location: str, allowed: Sequence[str] | None) -> None:
    bucket, prefix = split_s3(location)
    for each in () if allowed is None else allowed:
        allowed_bucket, above = split_s3(each)
        # Compare whole path components: "run" does not allow "run-2".
        if bucket == allowed_bucket and f"{prefix}/".startswith(f"{above}/" if above else ""):
            return
    if allowed is not None:
        rule = f"must be below {', '.join(allowed) or 'a bucket that this image allows'}"
        raise ParameterError("location", rule, location, "set the variable SEQGC_S3 in the image")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreChoice:
    """The kind of store for a run, and the reason for the choice."""

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
    """Return the kind of store that a run should use.

    The choice is ``inline`` if a task with its weights fits into a request and its results into a
    reply, because this costs nothing and needs no store. There is one exception: if a store exists,
    and all requests of a round together would exceed `INLINE_ROUND_BYTES` (`INLINE_OUTSIDE_BYTES`
    for a master outside the region), the store is better. Otherwise the choice is the cheapest
    store. If prices are equal or unknown, it is ``directory``, which has the shorter latency.

    Parameters
    ----------
    request_bytes, reply_bytes
        Sizes, as JSON, of the largest task with its weights and of its results.
    workers
        Number of requests in a round.
    round_usd
        Cost of a round in US dollars for each store that exists; None if the cost is unknown.
    limit_bytes
        Size limit of a request and of a reply.
    master_outside
        True if the master is outside the functions' region.

    Raises
    ------
    ParameterError
        If the messages are too large to be sent without a store, and no store exists.

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
        rule = f"must exist for a request or reply of more than {limit_bytes} bytes"
        remedy = "deploy with EFS or a bucket, or choose a narrower `payload`"
        size = f"none for {request_bytes} and {reply_bytes} bytes"
        raise ParameterError("store", rule, size, remedy)
    kind, why = _cheapest(round_usd)
    return StoreChoice(kind=kind, reason=f"{why}; {cause}")


def _cheapest(round_usd: Mapping[StoreKind, float | None]) -> tuple[StoreKind, str]:
    """Return the cheapest store and the reason for the choice."""
    if len(round_usd) == 1:
        (only,) = round_usd
        return only, "the only store available"
    directory, s3 = round_usd["directory"], round_usd["s3"]
    if directory is None or s3 is None:
        return "directory", "the faster one; prices are unknown here"
    if directory <= s3:
        return "directory", f"${directory:.4f} a round, on s3 ${s3:.4f}"
    return "s3", f"${s3:.4f} a round, on the directory ${directory:.4f}"


def _mb(size: int) -> str:
    return f"{size / 1e6:.2f} MB"
