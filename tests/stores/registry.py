"""Every store, for the suite that all of them pass. S3 is moto's: AWS itself cannot be had here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import boto3
from moto import mock_aws

from seqgc.ports import BlobStore
from seqgc.stores import DirectoryStore, InlineStore, MemoryStore, S3Store, open_s3

BUCKET = "training"
_SESSION = boto3.session.Session(  # reads the service's description once, for all clients
    region_name="us-east-1", aws_access_key_id="nobody", aws_secret_access_key="nothing"
)


def no_pause(_: float) -> None:
    """Pass for a pause."""


def client() -> Any:
    """Return moto's S3; the credentials are nobody's."""
    return open_s3(_SESSION)


@contextmanager
def directory(folder: Path) -> Iterator[BlobStore]:
    yield DirectoryStore(folder, pause=no_pause)


@contextmanager
def memory(_: Path) -> Iterator[BlobStore]:
    yield MemoryStore()


@contextmanager
def inline(_: Path) -> Iterator[BlobStore]:
    yield InlineStore()


@contextmanager
def bucket(folder: Path) -> Iterator[BlobStore]:
    with mock_aws():
        client().create_bucket(Bucket=BUCKET)
        yield S3Store(f"s3://{BUCKET}/{folder.name}", client=client, pause=no_pause)


STORES: dict[str, Callable[[Path], AbstractContextManager[BlobStore]]] = {
    "directory": directory,
    "inline": inline,
    "memory": memory,
    "s3": bucket,
}
BLOB_STORES = {name: STORES[name] for name in ("directory", "memory", "s3")}
