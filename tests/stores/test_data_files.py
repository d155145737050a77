"""What files of a data set may say, whoever wrote them: numbers, as many as there are."""

from __future__ import annotations

import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from seqgc.errors import StoreError
from seqgc.stores import find_data
from seqgc.stores.s3 import S3Client

ROWS = np.arange(4.0)


def npy(dtype: str = "<f8", shape: tuple[int, ...] = (4,)) -> bytes:
    """An .npy file of four times eight bytes, whose header says so or something else."""
    head = io.BytesIO()
    described = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(head, described)
    return head.getvalue() + ROWS.tobytes()


def data_json(data: bytes, *, dtype: str = "<f8", shape: tuple[int, ...] = (4,)) -> bytes:
    digest = hashlib.sha256(data).hexdigest()
    array = {"file": "a.npy", "dtype": dtype, "shape": shape, "digest": digest}
    return json.dumps({"schema": 1, "arrays": {"x": array, "y": array}}).encode()


class Bucket:
    """Has one array, and perhaps says that it is longer than it is."""

    def __init__(self, data: bytes, described: bytes, *, length: int | None = None) -> None:
        self._data, self._described, self._length = data, described, length

    def get_object(self, *, Bucket: str, Key: str) -> dict[str, Any]:  # noqa: ARG002
        if Key.endswith(".json"):
            return {"ContentLength": len(self._described), "Body": io.BytesIO(self._described)}
        return {"ContentLength": self._length or len(self._data), "Body": io.BytesIO(self._data)}


def read_from(bucket: Bucket) -> np.ndarray[Any, Any]:
    found = find_data("evil", ["s3://b-1/data"], client=lambda: cast("S3Client", bucket))
    assert found is not None
    return found.read("x")


def test_numbers_are_read_from_a_bucket() -> None:
    assert read_from(Bucket(npy(), data_json(npy()))).tolist() == ROWS.tolist()


def test_a_place_that_may_not_be_read_is_passed_over(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o000)
    is_root = os.geteuid() == 0  # who may read everything
    if is_root:
        os.seteuid(65534)
    try:
        with pytest.raises(PermissionError):
            next(home.iterdir())
        assert find_data("digits", [str(home), str(home / "seqgc" / "data")]) is None
    finally:
        if is_root:
            os.seteuid(0)
        home.chmod(0o700)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("|O", (4,)), ("<f16", (2,)), ("<U2", (4,)), ("no type", (4,)), ("<f8", (-4,)), ("<f8", ())],
)
def test_what_is_said_to_be_no_array_of_numbers_is_refused_at_once(
    dtype: str, shape: tuple[int, ...]
) -> None:
    described = data_json(npy(), dtype=dtype, shape=shape)
    with pytest.raises(StoreError, match=r"data\.json cannot be read: must describe arrays of num"):
        find_data(
            "evil", ["s3://b-1/data"], client=lambda: cast("S3Client", Bucket(b"", described))
        )


@pytest.mark.parametrize("file", ["..", ".", "", "a/b", "/etc/hostname", "a\0b", "a\nb", ".hidden"])
def test_no_array_is_in_a_file_that_could_be_elsewhere(file: str) -> None:
    described = data_json(npy()).replace(b'"a.npy"', json.dumps(file).encode())
    with pytest.raises(StoreError, match=r"data\.json cannot be read: it names files"):
        read_from(Bucket(npy(), described))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (npy("|O"), "must be an array of numbers; got object"),
        (npy("<i8"), "holds int64"),
        (npy(shape=(2, 2)), r"holds float64 \(2, 2\)"),
        (npy(shape=(5,)), "too few for float64"),
        (npy(shape=(-4,)), "too few for float64"),
        (b"\x93NUMPY\3\0", "does not describe an array of numbers"),
        (b"{" * 200, "magic string"),
    ],
)
@pytest.mark.parametrize("mapped", [True, False])
def test_a_file_of_anything_else_is_refused(
    data: bytes, says: str, tmp_path: Path, *, mapped: bool
) -> None:
    with pytest.raises(StoreError, match=says):
        read_from_folder(tmp_path, data) if mapped else read_from(Bucket(data, data_json(data)))


def read_from_folder(place: Path, data: bytes) -> np.ndarray[Any, Any]:
    (place / "evil").mkdir()
    (place / "evil/data.json").write_bytes(data_json(data))
    (place / "evil/a.npy").write_bytes(data)
    found = find_data("evil", [str(place)])
    assert found is not None
    return found.read("x")


def test_no_memory_is_taken_for_a_file_that_is_longer_than_it_should_be() -> None:
    bucket = Bucket(npy(), data_json(npy()), length=1 << 62)
    with pytest.raises(StoreError, match=str(1 << 62)):
        read_from(bucket)


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "evil").mkdir()
    os.mkfifo(tmp_path / "evil/data.json")
    with pytest.raises(StoreError, match="it is not a regular file"):
        find_data("evil", [str(tmp_path)])
    (tmp_path / "evil/data.json").unlink()
    (tmp_path / "evil/data.json").write_bytes(data_json(npy()))
    os.mkfifo(tmp_path / "evil/a.npy")
    found = find_data("evil", [str(tmp_path)])
    assert found is not None
    with pytest.raises(StoreError, match="it is not a regular file"):
        found.read("x")


def test_a_folder_in_the_place_of_a_file_is_named_and_leaves_nothing_open(tmp_path: Path) -> None:
    folder = tmp_path / "evil/data.json"
    folder.mkdir(parents=True)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(5):
        with pytest.raises(StoreError, match=r"Is a directory: '.*evil/data\.json'"):
            find_data("evil", [str(tmp_path)])
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
