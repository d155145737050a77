"""Which store a reference means, which it may mean, and which a run should use."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from seqgc.errors import ParameterError
from seqgc.stores import (
    INLINE_LIMIT_BYTES,
    DirectoryStore,
    InlineStore,
    S3Store,
    StorePrices,
    choose_store,
    open_store,
)
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
    with pytest.raises(ParameterError, match="this side has no shared file system mounted"):
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


# ---- the choice ---------------------------------------------------------------------------------

# Reads and writes of about 1 MB cost as much as requests.
EVEN = StorePrices(
    s3_put_usd=1e-6, s3_get_usd=1e-6, efs_write_usd_per_gb=1e-3, efs_read_usd_per_gb=1e-3
)
MB = 10**6


def chosen(weights: int, result: int, *, mount: bool = True, bucket: bool = True) -> str:
    return choose_store(
        weights_bytes=weights,
        result_bytes=result,
        workers=256,
        mount=mount,
        bucket=bucket,
        prices=EVEN,
    )


def test_what_fits_travels_and_needs_no_store() -> None:
    assert chosen(4 * MB, 4 * MB, mount=False, bucket=False) == "inline"
    most = InlineStore().most_bytes
    assert chosen(most, 0) == "inline"
    assert chosen(most + 1, 0) != "inline"
    fits = INLINE_LIMIT_BYTES // 4 * 3 - 5000
    assert chosen(0, fits) == "inline"
    assert chosen(0, fits + 5000) != "inline"


def test_of_two_stores_the_cheaper_is_used_and_at_one_price_the_faster() -> None:
    # 257 requests of a version of 7 MB at a dollar a million, and 257 · 7 MB at 1e-3 a GB.
    assert chosen(7 * MB, 1) == "s3"
    # Results too large to travel, of weights that are small: 512 further transfers either way.
    assert chosen(MB // 10, 7 * MB) == "s3"
    cheap_bytes = StorePrices(
        s3_put_usd=1e-6, s3_get_usd=1e-6, efs_write_usd_per_gb=1e-4, efs_read_usd_per_gb=1e-4
    )
    arguments = {"weights_bytes": 7 * MB, "result_bytes": 7 * MB, "workers": 3}
    assert choose_store(**arguments, mount=True, bucket=True, prices=cheap_bytes) == "directory"
    free = StorePrices(s3_put_usd=0, s3_get_usd=0, efs_write_usd_per_gb=0, efs_read_usd_per_gb=0)
    assert choose_store(**arguments, mount=True, bucket=True, prices=free) == "directory"


def test_a_gigabyte_has_2_to_the_30_bytes() -> None:
    # 8 MiB are an even 1/128 GB: at 128 dollars a GB a transfer costs what a request costs.
    even = StorePrices(
        s3_put_usd=1.0, s3_get_usd=1.0, efs_write_usd_per_gb=128.0, efs_read_usd_per_gb=128.0
    )
    arguments = {"result_bytes": 1, "workers": 3, "mount": True, "bucket": True}
    assert choose_store(**arguments, weights_bytes=2**23, prices=even) == "directory"
    assert choose_store(**arguments, weights_bytes=2**23 + 1, prices=even) == "s3"
    assert even.efs_usd(written_bytes=2**30, read_bytes=0) == 128.0


def test_what_is_not_there_is_not_chosen() -> None:
    assert chosen(7 * MB, 1, bucket=False) == "directory"
    assert chosen(7 * MB, 1, mount=False) == "s3"
    with pytest.raises(ParameterError, match=r"does not fit .*22000000 bytes.* \(deploy with EFS"):
        chosen(22 * MB, 22 * MB, mount=False, bucket=False)


@pytest.mark.parametrize("usd", [-1.0, float("nan"), float("inf")])
def test_a_price_is_a_number(usd: float) -> None:
    with pytest.raises(ParameterError, match="`s3_get_usd` must be finite US dollars >= 0"):
        StorePrices(s3_put_usd=0, s3_get_usd=usd, efs_write_usd_per_gb=0, efs_read_usd_per_gb=0)
