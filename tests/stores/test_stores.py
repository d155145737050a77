"""What every store promises, and what a folder adds to it."""

from __future__ import annotations

import dataclasses
import inspect
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqgc import stores
from seqgc.errors import ParameterError, StoreError
from seqgc.ports import BlobStore, FloatArray
from seqgc.stores import DirectoryStore, InlineStore, RetiringStore
from seqgc.testing import BlobStoreContract, StoreContract
from tests.stores.registry import BLOB_STORES, STORES, no_pause


class TestStoresThatTakeBytes(BlobStoreContract):
    @pytest.fixture(params=sorted(BLOB_STORES))
    def store(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlobStore]:
        with BLOB_STORES[request.param](tmp_path / "weights") as opened:
            yield opened


class TestInlineStore(StoreContract):
    @pytest.fixture
    def store(self) -> InlineStore:
        return InlineStore()


def test_every_store_that_there_is_has_its_tests(tmp_path: Path) -> None:
    tested = set()
    for name, open_store in STORES.items():
        with open_store(tmp_path / name) as opened:
            tested.add(type(opened))
    offered = {
        each
        for _, each in inspect.getmembers(stores, inspect.isclass)
        if hasattr(each, "publish") and each is not RetiringStore  # it keeps what is discarded
    }
    assert offered == tested


@pytest.fixture(params=sorted(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlobStore]:
    with STORES[request.param](tmp_path / "weights") as opened:
        yield opened


@pytest.mark.parametrize(
    ("model", "version", "params", "rule"),
    [
        ("cnn", 0, np.zeros(3), r"`version` must be new.* got 0 .*next number"),
        ("a/b", 0, np.ones(1), "`model` must be 1 to 100 letters"),
        ("cnn", -1, np.ones(1), "`version` must be an integer >= 0"),
        ("cnn", 1, np.ones(2, int), "`params` must be a vector"),
    ],
)
def test_what_is_refused_is_said_in_the_same_words_everywhere(
    store: BlobStore, model: str, version: int, params: FloatArray, rule: str
) -> None:
    ref = store.publish("cnn", 0, np.ones(3))
    with pytest.raises(ParameterError, match=rule):
        store.publish(model, version, params)
    store.discard(ref)
    with pytest.raises(StoreError, match="publish"):
        store.fetch(ref)


# ---- the folder ---------------------------------------------------------------------------------


def test_another_process_with_the_same_folder_sees_the_same_weights(tmp_path: Path) -> None:
    ref = DirectoryStore(tmp_path).publish("cnn", 0, np.arange(4.0))
    np.testing.assert_array_equal(DirectoryStore(str(tmp_path)).fetch(ref), np.arange(4.0))


def test_one_read_only_file_per_version_and_nothing_else_is_left(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "new" / "folder")
    ref = store.publish("cnn", 12, np.ones(3))
    store.publish("cnn", 12, np.ones(3))
    (file,) = store.root.iterdir()
    assert file.name == "cnn@0000000012.npy"
    assert file.stat().st_mode & 0o777 == 0o444
    np.testing.assert_array_equal(np.load(file, allow_pickle=False), np.ones(3))
    store.discard(ref)
    assert not list(store.root.iterdir())


def test_weights_are_closed_before_they_get_their_name_and_nobody_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, lengths = os.replace, list[int]()

    def noting_replace(path: Path, target: Path) -> None:
        handles = [each for each in Path("/proc/self/fd").iterdir() if each.exists()]
        assert path not in [each.readlink() for each in handles]  # NFS sends it at the closing
        lengths.append(path.stat().st_size)
        replace(path, target)

    monkeypatch.setattr(os, "fsync", None)
    monkeypatch.setattr(os, "replace", noting_replace)
    store = DirectoryStore(tmp_path)
    store.publish("cnn", 0, np.ones(3))
    store.put("result", b"abc")
    assert lengths == [128 + 3 * 8, 3]


def test_a_write_that_fails_leaves_no_file(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        with pytest.raises(StoreError, match=r"cnn@0000000000.npy cannot be written: .*too large"):
            DirectoryStore(tmp_path).publish("cnn", 0, np.ones(3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


@given(data=st.data())
def test_a_damaged_file_is_named_and_never_used(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    store = DirectoryStore(tmp_path_factory.mktemp("weights"), pause=no_pause)
    params = np.linspace(0, 1, 20)
    ref = store.publish("cnn", 0, params)
    (path,) = store.root.iterdir()
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans(), label="cut"):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.chmod(0o644)
    path.write_bytes(content)
    try:
        fetched = store.fetch(ref)
    except StoreError as error:
        assert str(path) in str(error)  # noqa: PT017 (either is right)
        assert "publish the version again" in str(error)  # noqa: PT017
    else:  # a change that does not matter, to the padding of the header, say
        np.testing.assert_array_equal(fetched, params)


def test_a_missing_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    ref = store.publish("cnn", 0, np.ones(3))
    elsewhere = DirectoryStore(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=r"elsewhere/cnn@0000000000.npy is missing.*mount"):
        elsewhere.fetch(ref)


def test_a_reference_cannot_read_outside_the_folder(tmp_path: Path) -> None:
    ref = DirectoryStore(tmp_path).publish("cnn", 0, np.ones(3))
    inside = DirectoryStore(tmp_path / "inside")
    with pytest.raises(ParameterError, match="`model`"):
        inside.fetch(dataclasses.replace(ref, model="../cnn"))


def test_pickled_objects_are_not_loaded(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, pause=no_pause)
    ref = store.publish("cnn", 0, np.ones(1))
    (path,) = tmp_path.iterdir()
    path.unlink()
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(StoreError, match="holds object"):
        store.fetch(ref)
