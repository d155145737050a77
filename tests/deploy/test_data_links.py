"""Data sets where others may write: no link leads out, neither what is written nor what is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqgc.cli import main
from seqgc.deploy import copy_data, put_data, upload_data
from seqgc.errors import ParameterError, StoreError
from seqgc.stores import StoredData, find_data
from tests.deploy.kit import REGION

X, Y = np.arange(6.0).reshape(3, 2), np.arange(3)
SECRET = b"somebody else's"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    np.savez(tmp_path / "s.npz", x=X, y=Y)
    return tmp_path / "s.npz"


@pytest.fixture
def stored(tmp_path: Path, source: Path) -> StoredData:
    """The data set among one's own."""
    return put_data("mine", source, tmp_path / "own")


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    """The functions' file system, and beside it a folder that is none of theirs."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "mount" / "data").mkdir(parents=True)
    return tmp_path / "mount"


def outside(mount: Path) -> Path:
    return mount.parent / "outside"


def put(mount: Path, source: Path, _: StoredData) -> object:
    return put_data("mine", source, mount / "data")


def copy(mount: Path, _: Path, stored: StoredData) -> object:
    return copy_data(stored, Path("data"), below=mount)


def copy_to_place(mount: Path, _: Path, stored: StoredData) -> object:
    return copy_data(stored, mount / "data")


DEEDS = [put, copy, copy_to_place]


@pytest.mark.parametrize("deed", DEEDS)
@pytest.mark.parametrize("there", [True, False])
def test_no_data_set_is_put_where_a_link_leads(
    deed: Callable[..., object], mount: Path, source: Path, stored: StoredData, *, there: bool
) -> None:
    (mount / "data/mine").symlink_to("../../outside" if there else "../../nowhere")
    with pytest.raises(ParameterError, match=r"`name` must .*it is a link: '.*mount/data/mine'"):
        deed(mount, source, stored)
    assert list(outside(mount).iterdir()) == []
    assert not (mount.parent / "nowhere").exists()
    assert (mount / "data/mine").is_symlink()


def test_the_verb_says_which_folder_of_the_mount_is_a_link(
    mount: Path, source: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("SEQGC_DATA", str(mount.parent / "own"))
    monkeypatch.chdir(mount.parent)
    for link in ("mount/data/mine", "mount/data"):
        if Path(link).is_dir():
            Path(link).rmdir()
        Path(link).symlink_to(outside(mount))
        assert main(["data", "put", "mine", str(source), "--mount", "mount"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"it is a link: '{link}'" in line
        assert list(outside(mount).iterdir()) == []
        Path(link).unlink()


@pytest.mark.parametrize("deed", DEEDS)
def test_links_in_its_folder_are_replaced_and_not_written_through(
    deed: Callable[..., object], mount: Path, source: Path, stored: StoredData
) -> None:
    secret, folder = outside(mount) / "secret", mount / "data/mine"
    secret.write_bytes(SECRET)
    folder.mkdir()
    for name in (stored.file, *(each.file for each in stored.arrays.values())):
        (folder / name).symlink_to(secret)
    deed(mount, source, stored)
    assert secret.read_bytes() == SECRET
    assert not any(path.is_symlink() for path in folder.iterdir())
    there = find_data("mine", [str(mount / "data")])
    assert there is not None
    assert there.read("x").tolist() == X.tolist()


@pytest.mark.parametrize("deed", DEEDS)
def test_what_a_link_says_is_there_is_not_believed(
    deed: Callable[..., object], mount: Path, source: Path, stored: StoredData
) -> None:
    folder = mount / "data/mine"
    folder.mkdir()
    (folder / "data.json").symlink_to(mount.parent / "own/mine/data.json")
    with pytest.raises(StoreError, match=r"mine/data\.json cannot be read: .*it is a link: '.*"):
        deed(mount, source, stored)
    assert [path.name for path in folder.iterdir()] == ["data.json"]


@pytest.mark.parametrize("good", [True, False])
def test_a_folder_that_becomes_a_link_meanwhile_leads_nowhere(
    mount: Path, source: Path, stored: StoredData, monkeypatch: pytest.MonkeyPatch, *, good: bool
) -> None:
    folder, aside, opened = mount / "data/mine", mount / "data/aside", os.open
    (outside(mount) / stored.arrays["x"].file).write_bytes(SECRET)
    if not good:
        np.savez(source, x=X, y=np.array(["a"] * 3))

    def swapping(path: Any, *rest: Any, **below: Any) -> int:
        if str(path).startswith(".x-") and not aside.exists():
            folder.rename(aside)
            folder.symlink_to(outside(mount))
        return opened(path, *rest, **below)

    with monkeypatch.context() as swap:
        swap.setattr(os, "open", swapping)
        if good:
            put_data("mine", source, mount / "data")
        else:
            with pytest.raises(ParameterError, match="an array of numbers"):
                put_data("mine", source, mount / "data")
    assert folder.is_symlink(), "it was swapped"
    assert [path.read_bytes() for path in outside(mount).iterdir()] == [SECRET]
    assert len(list(aside.iterdir())) == (4 if good else 0)


@pytest.mark.parametrize("digest", [True, False])
def test_a_link_is_no_absent_data_set(
    mount: Path, tmp_path: Path, stored: StoredData, *, digest: bool
) -> None:
    (mount / "data/mine").symlink_to(tmp_path / "own/mine")
    places = [str(mount / "data"), stored.place]
    with pytest.raises(StoreError, match=r"cannot be read: .*it is a link: '.*mount/data/mine'"):
        find_data("mine", places, digest=stored.digest if digest else "")


def test_what_lies_behind_a_link_is_neither_read_nor_copied(
    account: Any, mount: Path, tmp_path: Path, stored: StoredData
) -> None:
    path = tmp_path / "own/mine" / stored.arrays["x"].file
    path.rename(outside(mount) / "x.npy")
    path.symlink_to(outside(mount) / "x.npy")
    client = account.client("s3")
    client.create_bucket(Bucket="b-1", CreateBucketConfiguration={"LocationConstraint": REGION})
    for deed in (
        lambda: stored.read("x"),
        lambda: copy_data(stored, mount / "data"),
        lambda: upload_data(stored, "s3://b-1/data", session=account),
    ):
        with pytest.raises(StoreError, match=rf"{path.name} cannot be read: .*it is a link"):
            deed()
    assert find_data("mine", [str(mount / "data")]) is None
    assert "Contents" not in client.list_objects_v2(Bucket="b-1")


def test_a_place_may_be_a_link(mount: Path, source: Path, tmp_path: Path) -> None:
    (tmp_path / "place").symlink_to(mount)
    stored = put_data("mine", source, tmp_path / "place")
    assert stored.read("x").tolist() == X.tolist()
    assert copy_data(stored, Path("deep/data"), below=tmp_path / "place") == str(
        tmp_path / "place/deep/data/mine"
    )
    assert (mount / "deep/data/mine/data.json").is_file()
