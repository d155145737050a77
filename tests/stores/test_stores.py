"""What every store promises, and what a folder adds to it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqgc.errors import ParameterError, StoreError
from seqgc.ports import BlobStore
from seqgc.stores import DirectoryStore
from tests.stores.registry import STORES, no_pause

DTYPES = ["float16", "float32", "float64"]


@pytest.fixture(params=sorted(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BlobStore]:
    with STORES[request.param](tmp_path / "weights") as opened:
        yield opened


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0, 1, 1000])
def test_weights_come_back_bit_for_bit_and_read_only(
    store: BlobStore, dtype: str, size: int
) -> None:
    params = np.linspace(-1, 1, size).astype(dtype)
    ref = store.publish("cnn", 3, params)
    fetched = store.fetch(ref)
    assert (fetched.dtype, fetched.tobytes()) == (params.dtype, params.tobytes())
    assert not fetched.flags.writeable
    assert (ref.model, ref.version, ref.dtype, ref.size) == ("cnn", 3, dtype, size)


def test_byte_order_in_memory_changes_neither_weights_nor_digest(store: BlobStore) -> None:
    params = np.arange(5.0)
    little, big = (params.astype(order) for order in ("<f8", ">f8"))
    ref = store.publish("a", 0, little)
    assert store.publish("a", 0, big) == ref
    assert store.fetch(ref).dtype.isnative


def test_what_the_caller_does_to_its_array_afterwards_changes_nothing(store: BlobStore) -> None:
    params = np.ones(3)
    ref = store.publish("cnn", 0, params)
    params[:] = 7
    np.testing.assert_array_equal(store.fetch(ref), np.ones(3))


def test_publishing_the_same_again_gives_the_same_reference(store: BlobStore) -> None:
    assert store.publish("cnn", 0, np.ones(3)) == store.publish("cnn", 0, np.ones(3))


@pytest.mark.parametrize("other", [np.zeros(3), np.ones(4), np.ones(3, np.float32)])
def test_a_version_never_changes_its_content(store: BlobStore, other: Any) -> None:
    ref = store.publish("cnn", 0, np.ones(3))
    with pytest.raises(ParameterError, match=r"`version` must be new.* got 0 .*next number"):
        store.publish("cnn", 0, other)
    np.testing.assert_array_equal(store.fetch(ref), np.ones(3))


def test_models_and_versions_do_not_mix(store: BlobStore) -> None:
    refs = {
        (model, version): store.publish(model, version, np.array([place, version], float))
        for place, model in enumerate(["a", "b", "a1", "a.1"])
        for version in (0, 1, 10)
    }
    for (model, version), ref in refs.items():
        expected = [["a", "b", "a1", "a.1"].index(model), version]
        np.testing.assert_array_equal(store.fetch(ref), expected)


def test_discarded_weights_are_gone_and_the_others_are_not(store: BlobStore) -> None:
    old, new = (store.publish("cnn", version, np.full(2, float(version))) for version in (0, 1))
    store.discard(old)
    store.discard(old)
    with pytest.raises(StoreError, match="publish"):
        store.fetch(old)
    np.testing.assert_array_equal(store.fetch(new), [1, 1])


@pytest.mark.parametrize("change", [{"digest": "0" * 64}, {"size": 2}, {"dtype": "float32"}])
def test_a_reference_to_other_content_is_refused(store: BlobStore, change: dict[str, Any]) -> None:
    ref = store.publish("cnn", 0, np.ones(3))
    with pytest.raises(StoreError, match="cnn"):
        store.fetch(dataclasses.replace(ref, **change))


NAMES = ["", ".", "..", "../x", "a/b", "/etc", "a\0b", "a b", "-rf", ".hidden", "é", "a\n", "a@1"]


@pytest.mark.parametrize("name", [*NAMES, "x" * 101])
def test_a_name_that_could_leave_the_folder_is_refused(store: BlobStore, name: str) -> None:
    with pytest.raises(ParameterError, match="`model` must be 1 to 100 letters"):
        store.publish(name, 0, np.ones(1))


@pytest.mark.parametrize("version", [-1, 1.0, True, "0"])
def test_a_version_must_be_a_count(store: BlobStore, version: Any) -> None:
    with pytest.raises(ParameterError, match="`version` must be an integer >= 0"):
        store.publish("cnn", version, np.ones(1))


@pytest.mark.parametrize("params", [np.ones((2, 2)), np.ones(2, int), np.array([None])])
def test_only_float_vectors_are_stored(store: BlobStore, params: Any) -> None:
    with pytest.raises(ParameterError, match="`params` must be a vector"):
        store.publish("cnn", 0, params)


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


def test_weights_are_synced_before_they_get_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def noting_fsync(descriptor: int) -> None:
        folder = Path(f"/proc/self/fd/{descriptor}").readlink().is_dir()
        calls.append("sync folder" if folder else "sync file")
        fsync(descriptor)

    def noting_replace(self: Path, target: Path) -> Path:
        calls.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(Path, "replace", noting_replace)
    DirectoryStore(tmp_path).publish("cnn", 0, np.ones(3))
    assert calls == ["sync file", "rename", "sync folder"]


def test_a_write_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        DirectoryStore(tmp_path).publish("cnn", 0, np.ones(3))
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
