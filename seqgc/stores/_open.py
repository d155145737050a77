"""From a reference to a store: each side has its own mount, and its own idea of what is allowed."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from seqgc.errors import ParameterError
from seqgc.ports import BlobStore
from seqgc.stores.directory import DirectoryStore
from seqgc.stores.memory import InlineStore
from seqgc.stores.s3 import S3Client, S3Store, split_s3
from seqgc.wire import StoreRef

__all__ = ["open_store", "unique_name"]


def unique_name(name: str) -> str:
    """Return a name for a run that no other run has, of characters that every store takes.

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
    """Return the store that a reference means on this machine.

    Parameters
    ----------
    mount
        The folder that the shared file system has here, below which the locations of directories
        are; None: there is none.
    s3_allowed
        ``s3://bucket/prefix`` below which locations must be; None: anywhere, which is for a master
        that opens its own reference, not for a worker that opens what it is sent.
    s3_client
        Makes the client (see `S3Store`).

    Raises
    ------
    ParameterError
        If the location is not below ``mount``, not allowed, or there is no mount.

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
        rule = "must be of S3 or inline: this side has no shared file system mounted"
        raise ParameterError("location", rule, location, "mount it, and say where")
    path = Path(location)
    if path.is_absolute() or ".." in path.parts or not location.isprintable():
        raise ParameterError("location", "must be a path below the mount, without '..'", location)
    return DirectoryStore(Path(mount, path))


def _check_allowed(location: str, allowed: Sequence[str] | None) -> None:
    bucket, prefix = split_s3(location)
    for each in () if allowed is None else allowed:
        allowed_bucket, above = split_s3(each)
        # Whole path components: "run" does not allow "run-2".
        if bucket == allowed_bucket and f"{prefix}/".startswith(f"{above}/" if above else ""):
            return
    if allowed is not None:
        rule = f"must be below {', '.join(allowed) or 'a bucket that this image allows'}"
        raise ParameterError("location", rule, location, "set SEQGC_S3 in the image")
