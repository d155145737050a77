"""A store in a bucket: whatever number of workers, no mount, and a price per request."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

import numpy as np

from seqgc.errors import ParameterError, StoreError
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

__all__ = ["S3Client", "S3Store", "split_s3"]

_LOCATION = re.compile(
    r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])((?:/[A-Za-z0-9_][A-Za-z0-9._=-]*)*)/?"
)
# Who may not list the bucket, as no worker may, is denied an object that is not there.
_ABSENT = ("404", "NoSuchKey", "NotFound", "403", "AccessDenied")
_PRESENT = ("409", "412", "PreconditionFailed", "ConditionalRequestConflict")
_MAKING = threading.Lock()  # of all stores: a session of boto3's, which they share, takes no two


class S3Client(Protocol):
    """What is used of ``boto3.client("s3")``."""

    def put_object(self, **arguments: Any) -> Any: ...
    def get_object(self, **arguments: Any) -> Any: ...
    def delete_object(self, **arguments: Any) -> Any: ...


def split_s3(location: str) -> tuple[str, str]:
    """Return bucket and prefix (no slash at either end) of ``s3://bucket/prefix``.

    Raises
    ------
    ParameterError
        If it is no such location.

    Examples
    --------
    >>> split_s3("s3://training/run-7/")
    ('training', 'run-7')
    """
    if (match := _LOCATION.fullmatch(location)) is None:
        rule = "must be s3://bucket/prefix, of letters, digits, '_', '-', '=' and '.'"
        raise ParameterError("location", rule, location)
    return match[1], match[2].strip("/")


class S3Store:
    """Immutable versions of weights, and blobs, as objects under ``s3://bucket/prefix``.

    Objects are ``<prefix>/<model>@<version>.bin``, the raw little-endian numbers, and
    ``<prefix>/blobs/<key>``. S3 shows an object as a whole as soon as it is written. Several
    threads may use a store. Pickled, it leaves its client behind and makes another.

    Parameters
    ----------
    location
        ``s3://bucket/prefix``; the bucket exists.
    client
        Makes the client, when it is first needed; boto3's with its usual configuration unless
        given.
    pause
        Waits so many seconds before a further reading.

    Examples
    --------
    >>> S3Store("s3://training/run-7").location
    's3://training/run-7'
    """

    def __init__(
        self,
        location: str,
        *,
        client: Callable[[], S3Client] | None = None,
        pause: Pause = time.sleep,
    ) -> None:
        self._bucket, self._prefix = split_s3(location)
        self._make_client: Callable[[], S3Client] = client or _boto3_client
        self._client: S3Client | None = None
        self._pause: Final = pause

    def __getstate__(self) -> dict[str, object]:
        """Without the client, which holds sockets and locks, and how a given one was made."""
        return self.__dict__ | {"_client": None, "_make_client": _boto3_client}

    @property
    def location(self) -> str:
        """Where the store is."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def publish(self, model: str, version: int, params: FloatArray) -> WeightRef:
        """Write ``params`` (size,); publishing the same again changes nothing.

        Raises
        ------
        ParameterError
            If this version has other content already, or an argument cannot be stored.
        StoreError
            If S3 does not take it.
        """
        check_address(model, version)
        copy = check_params(params)
        ref = refer(model, version, copy)
        key = self._weights_key(model, version)
        try:
            # "Only if it is new": of two writers, one wins, and the other compares.
            self._put(key, copy.tobytes(), IfNoneMatch="*")
        except _AlreadyThereError:
            try:
                self._read_params(ref)
            except (StoreError, ValueError, FileNotFoundError) as error:
                raise refuse_other_content(ref, stays=self._shown(key)) from error
        return ref

    def fetch(self, ref: WeightRef) -> FloatArray:
        """Return the weights (size,) that ``ref`` stands for, read-only.

        Raises
        ------
        StoreError
            If the object is missing, or not the one that ``ref`` was given for.
        """
        key = self._weights_key(ref.model, ref.version)
        shown = self._shown(key)
        try:
            params = with_rereads(
                lambda: self._read_params(ref),
                what=shown,
                remedy="delete the object and publish the version again",
                pause=self._pause,
            )
        except FileNotFoundError:
            raise StoreError(
                f"{shown} is missing: publish it, or give workers the same location, and the right "
                "to read it"
            ) from None
        native = params.astype(params.dtype.newbyteorder("="), copy=False)
        native.flags.writeable = False
        return native

    def discard(self, ref: WeightRef) -> None:
        """Remove a version's object; one that is not there is removed already."""
        self._delete(self._weights_key(ref.model, ref.version))

    def put(self, key: str, data: bytes) -> None:
        """Write ``data`` under a key; what was there is replaced.

        Raises
        ------
        ParameterError
            If the key is not valid (see `check_key`).
        StoreError
            If S3 does not take it.
        """
        self._put(self._blob_key(key), data)

    def get(self, key: str, *, digest: str, size_bytes: int) -> bytes:
        """Return the bytes of this length and SHA-256 that are under a key.

        Raises
        ------
        StoreError
            If the object is missing, or another.
        """
        path = self._blob_key(key)

        def read() -> bytes:
            data = self._read(path, size_bytes)
            check_blob(data, digest=digest, size_bytes=size_bytes)
            return data

        shown = self._shown(path)
        try:
            return with_rereads(read, what=shown, remedy="ask the worker again", pause=self._pause)
        except FileNotFoundError:
            reasons = "it was removed, never put, or may not be read"
            raise StoreError(f"{shown} is missing: {reasons}") from None

    def remove(self, key: str) -> None:
        """Remove a blob's object; one that is not there is removed already."""
        self._delete(self._blob_key(key))

    def _read_params(self, ref: WeightRef) -> FloatArray:
        dtype = np.dtype(ref.dtype).newbyteorder("<")
        data = self._read(self._weights_key(ref.model, ref.version), dtype.itemsize * ref.size)
        check_blob(data, digest=ref.digest, size_bytes=dtype.itemsize * ref.size)
        return np.frombuffer(data, dtype=dtype)

    def _read(self, key: str, size_bytes: int) -> bytes:
        """Return an object's bytes, one more than ``size_bytes`` at most."""
        try:
            body = self._s3().get_object(Bucket=self._bucket, Key=key)["Body"]
        except Exception as error:
            if _code(error) in _ABSENT:
                raise FileNotFoundError(key) from error
            raise
        with body:
            return cast("bytes", body.read(size_bytes + 1))

    def _put(self, key: str, data: bytes, **conditions: str) -> None:
        try:
            self._s3().put_object(Bucket=self._bucket, Key=key, Body=data, **conditions)
        except Exception as error:
            if conditions and _code(error) in _PRESENT:
                raise _AlreadyThereError from error
            reason = " ".join(str(error).split())
            raise StoreError(f"{self._shown(key)} cannot be written: {reason}") from error

    def _delete(self, key: str) -> None:
        try:
            self._s3().delete_object(Bucket=self._bucket, Key=key)
        except Exception as error:
            reason = " ".join(str(error).split())
            raise StoreError(f"{self._shown(key)} cannot be removed: {reason}") from error

    def _s3(self) -> S3Client:
        if self._client is None:
            with _MAKING:
                if self._client is None:
                    self._client = self._make_client()
        return self._client

    def _weights_key(self, model: str, version: int) -> str:
        check_address(model, version)
        return self._under(f"{model}@{version:010d}.bin")

    def _blob_key(self, key: str) -> str:
        check_key(key)
        return self._under(f"blobs/{key}")

    def _under(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def _shown(self, key: str) -> str:
        return f"s3://{self._bucket}/{key}"


class _AlreadyThereError(Exception):
    """An object that was to be new is there already."""


def _code(error: Exception) -> str:
    """Return the code of S3's own error; empty for any other exception."""
    response = getattr(error, "response", None)
    return str(response["Error"].get("Code", "")) if response and "Error" in response else ""


def _boto3_client() -> S3Client:
    import boto3  # lazily: an extra of its own, and slow to import

    return cast("S3Client", boto3.client("s3"))
