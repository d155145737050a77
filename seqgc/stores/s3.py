"""A store in a bucket of S3. Workers need no mount, but AWS charges for each request."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

import numpy as np

from seqgc._aws import open_client, open_session
from seqgc.errors import ParameterError, StoreError, one_line
from seqgc.ports import FloatArray, WeightRef
from seqgc.stores._objects import ObjectStore, Pause, check_blob

if TYPE_CHECKING:
    from boto3.session import Session


_LOCATION = re.compile(
    r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])((?:/[A-Za-z0-9_][A-Za-z0-9._=-]*)*)/?"
)
# Workers have no permission to list the bucket, so S3 answers 403 for an object that is absent.
_ABSENT = ("404", "NoSuchKey", "NotFound", "403", "AccessDenied")
_PRESENT = ("409", "412", "PreconditionFailed", "ConditionalRequestConflict")
# Stores share a boto3 session, which must not create clients in parallel.
_MAKING = threading.Lock()


class S3Client(Protocol):
    """The methods of ``boto3.client("s3")`` that stores call."""

    def put_object(self, **arguments: Any) -> Any: ...
    def get_object(self, **arguments: Any) -> Any: ...
    def delete_object(self, **arguments: Any) -> Any: ...


def split_s3(location: str) -> tuple[str, str]:
    """Split ``s3://bucket/prefix`` into the bucket and the prefix, without slashes at its ends."""
    if (match := _LOCATION.fullmatch(location)) is None:
        rule = "must be s3://bucket/prefix, of letters, digits, '_', '-', '=' and '.'"
        raise ParameterError("location", rule, location)
    return match[1], match[2].strip("/")


class S3Store(ObjectStore):
    """A store of weights and blobs as objects under ``s3://bucket/prefix``.

    Weights are objects ``<prefix>/<model>@<version>.bin`` of raw little-endian numbers, and blobs
    are objects ``<prefix>/blobs/<key>``. S3 shows a complete object as soon as it is written.
    Several threads may use a store. An unpickled store creates a new client.

    Parameters
    ----------
    location
        ``s3://bucket/prefix``, in a bucket that exists.
    client
        A function that creates the client when it is first needed; None means `open_s3`.
    pause
        A function that waits a number of seconds before an object is read again.

    Raises
    ------
    ParameterError
        If ``location`` does not have the form ``s3://bucket/prefix``.

    Examples
    --------
    >>> S3Store("s3://training/run-7").location
    's3://training/run-7'
    """

    _suffix: ClassVar[str] = ".bin"
    _reach: ClassVar[str] = "give workers the same location, and the right to read it"

    def __init__(
        self,
        location: str,
        *,
        client: Callable[[], S3Client] | None = None,
        pause: Pause = time.sleep,
    ) -> None:
        super().__init__(pause=pause)
        self._bucket, self._prefix = split_s3(location)
        self._make_client: Callable[[], S3Client] = client or open_s3
        self._client: S3Client | None = None

    def __getstate__(self) -> dict[str, object]:
        """Return the state without the client, which holds sockets and locks."""
        return self.__dict__ | {"_client": None, "_make_client": open_s3}

    @property
    def location(self) -> str:
        """The location ``s3://bucket/prefix`` of the store."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def _create(self, name: str, params: FloatArray) -> bool:
        # S3 writes the object only if it is new. If two masters write it, the later one compares.
        return self._put(name, params.tobytes(), IfNoneMatch="*")

    def _replace(self, name: str, data: bytes) -> None:
        self._put(name, data)

    def _read(self, name: str, size_bytes: int) -> bytes:
        try:
            body = self._s3().get_object(Bucket=self._bucket, Key=self._key(name))["Body"]
        except Exception as error:
            if is_absent(error):
                raise FileNotFoundError(name) from error
            raise
        with body:
            return cast("bytes", body.read(size_bytes + 1))

    def _read_params(self, name: str, ref: WeightRef) -> FloatArray:
        dtype = np.dtype(ref.dtype).newbyteorder("<")
        data = self._read(name, dtype.itemsize * ref.size)
        check_blob(data, digest=ref.digest, size_bytes=dtype.itemsize * ref.size)
        return np.frombuffer(data, dtype=dtype)

    def _delete(self, name: str) -> None:
        try:
            self._s3().delete_object(Bucket=self._bucket, Key=self._key(name))
        except Exception as error:
            reason = f"cannot be removed: {one_line(error)}"
            raise StoreError(f"{self._shown(name)} {reason}") from error

    def _shown(self, name: str) -> str:
        return f"s3://{self._bucket}/{self._key(name)}"

    def _put(self, name: str, data: bytes, **conditions: str) -> bool:
        key = self._key(name)
        try:
            self._s3().put_object(Bucket=self._bucket, Key=key, Body=data, **conditions)
        except Exception as error:
            if conditions and _code(error) in _PRESENT:
                return False
            reason = f"cannot be written: {one_line(error)}"
            raise StoreError(f"{self._shown(name)} {reason}") from error
        return True

    def _s3(self) -> S3Client:
        if self._client is None:
            with _MAKING:
                if self._client is None:
                    self._client = self._make_client()
        return self._client

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name


def is_absent(error: Exception) -> bool:
    """Return True if an error of S3 says that an object does not exist or may not be read."""
    return _code(error) in _ABSENT


def _code(error: Exception) -> str:
    """Return the code of an error of S3, or an empty string for any other exception."""
    response = getattr(error, "response", None)
    return str(response["Error"].get("Code", "")) if response and "Error" in response else ""


def import_s3() -> None:
    """Import the client of S3 if it is installed, so that `open_s3` takes less time later.

    No session, client or credentials are made.
    """
    with suppress(ImportError):
        import boto3.session  # noqa: F401
        import botocore.client  # noqa: F401


def open_s3(session: Session | None = None) -> S3Client:
    """Return a client of S3, by default in a new session."""
    return cast("S3Client", open_client(session or open_session(), "s3"))
