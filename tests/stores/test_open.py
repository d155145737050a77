"""Which store a reference means, and which it may mean."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from seqgc.errors import ParameterError
from seqgc.stores import DirectoryStore, InlineStore, S3Store, open_store
from seqgc.wire import StoreRef


def test_master_and_worker_meet_below_their_own_mounts(tmp_path: Path) -> None:
    (tmp_path / "efs").mkdir()
    (tmp_path / "mnt").symlink_to(tmp_path / "efs")  # one file system, mounted at two places
    ref = StoreRef(kind="directory", location="run-7/weights")
    master, worker = (open_store(ref, mount=tmp_path / each) for each in ("efs", "mnt"))
    weights = master.publish("cnn", 0, np.arange(3.0))
    np.testing.assert_array_equal(worker.fetch(weights), np.arange(3.0))
    worker.put("k", b"12")
    digest = hashlib.sha256(b"12").hexdigest()
    assert master.get("k", digest=digest, size_bytes=2) == b"12"


@pytest.mark.parametrize("location", ["/etc", "..", "a/../../b", "../a", "a\0b"])
def test_a_reference_does_not_lead_out_of_the_mount(tmp_path: Path, location: str) -> None:
    with pytest.raises(ParameterError, match=r"must be a path below the mount, without '\.\.'"):
        open_store(StoreRef(kind="directory", location=location), mount=tmp_path)


def test_without_a_mount_there_is_no_directory() -> None:
    with pytest.raises(ParameterError, match=r"`location` .*mounted here; got 'a'"):
        open_store(StoreRef(kind="directory", location="a"))


@pytest.mark.parametrize(
    ("location", "allowed", "fine"),
    [
        ("s3://training/run-7", None, True),
        ("s3://training/run-7", ["s3://training"], True),
        ("s3://training/run-7", ["s3://other", "s3://training/run-7"], True),
        ("s3://training/run-7/x", ["s3://training/run-7/"], True),
        ("s3://training/run-70", ["s3://training/run-7"], False),
        ("s3://training", ["s3://training/run-7"], False),
        ("s3://elsewhere/run-7", ["s3://training"], False),
        ("s3://training/run-7", [], False),
    ],
)
def test_a_worker_opens_only_what_its_image_allows(
    location: str, allowed: list[str] | None, fine: bool
) -> None:
    ref = StoreRef(kind="s3", location=location)
    if fine:
        store = open_store(ref, s3_allowed=allowed)
        assert isinstance(store, S3Store)
        assert store.location == location
    else:
        with pytest.raises(ParameterError, match="`location` must be below"):
            open_store(ref, s3_allowed=allowed)


def test_kinds_are_what_they_are_called(tmp_path: Path) -> None:
    assert isinstance(open_store(StoreRef(kind="inline")), InlineStore)
    directory = StoreRef(kind="directory", location="a")
    assert isinstance(open_store(directory, mount=tmp_path), DirectoryStore)
