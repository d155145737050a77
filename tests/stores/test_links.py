"""Who may write where a store is leads it nowhere else: not by links, not by what is no file."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seqgc.errors import ParameterError, StoreError
from seqgc.ports import BlobStore
from seqgc.stores import DirectoryStore, open_store, remove_forgotten
from seqgc.testing import eventually
from seqgc.wire import StoreRef
from tests.kit import SOAK
from tests.stores.registry import no_pause

RUN, DATA = "run-0123456789ab", b"a secret"
RECEIPT: dict[str, Any] = {"digest": hashlib.sha256(DATA).hexdigest(), "size_bytes": len(DATA)}
WEIGHTS = np.arange(4.0)


@pytest.fixture
def mount(tmp_path: Path) -> Path:
    """A shared file system, and beside it a store of somebody else's, with what is asked for."""
    (tmp_path / "mount").mkdir()
    private = DirectoryStore(tmp_path / "private")
    private.put("k", DATA)
    private.publish("cnn", 0, WEIGHTS)
    return tmp_path / "mount"


@pytest.fixture
def store(mount: Path) -> DirectoryStore:
    return DirectoryStore(RUN, below=mount, pause=no_pause)


def _whole(run: Path, private: Path) -> None:
    run.symlink_to(private)


def _blobs(run: Path, private: Path) -> None:
    run.mkdir()
    (run / "blobs").symlink_to(private / "blobs")


def _files(run: Path, private: Path) -> None:
    (run / "blobs").mkdir(parents=True)
    (run / "blobs" / "k").symlink_to(private / "blobs" / "k")
    (run / "cnn@0000000000.npy").symlink_to(private / "cnn@0000000000.npy")


@pytest.mark.parametrize("link", [_whole, _blobs, _files])
def test_no_link_leads_out(
    store: DirectoryStore, mount: Path, link: Callable[[Path, Path], None]
) -> None:
    private = mount.parent / "private"
    before = {path: path.read_bytes() for path in private.rglob("*") if path.is_file()}
    ref = DirectoryStore(private).publish("cnn", 0, WEIGHTS)
    link(mount / RUN, private)
    with pytest.raises(StoreError, match="cannot be used"):
        store.get("k", **RECEIPT)
    if link is not _blobs:
        with pytest.raises(StoreError, match="cannot be used"):
            store.fetch(ref)
    for deed in (lambda: store.put("k", b"forged"), lambda: store.put("new", b"")):
        with suppress(StoreError):  # what is no folder; in one that is, the link itself is replaced
            deed()
    for deed in (lambda: store.remove("k"), lambda: store.discard(ref), store.sweep):
        with suppress(StoreError):
            deed()
    remove_forgotten(mount, now=1e12)
    assert {path: path.read_bytes() for path in private.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("location", [RUN, f"deep/{RUN}", f"{RUN}/deep"])
def test_a_reference_is_opened_without_links_too(mount: Path, location: str) -> None:
    (mount / "deep").mkdir()
    for name in (RUN, f"deep/{RUN}"):
        (mount / name).symlink_to(mount.parent / "private")
    with pytest.raises(StoreError, match="k cannot be written"):
        open_store(StoreRef(kind="directory", location=location), mount=mount).put("k", b"")
    assert (mount.parent / "private" / "blobs" / "k").read_bytes() == DATA


def test_a_path_that_changes_while_it_is_walked_leads_nowhere(
    store: DirectoryStore, mount: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("k", b"12345678")
    run, opened = mount / RUN, os.open

    def swapping(path: Any, flags: int, *args: Any, **folder: Any) -> int:
        if path == "blobs" and not run.is_symlink():
            run.rename(mount / "aside")
            run.symlink_to(mount.parent / "private")
        return opened(path, flags, *args, **folder)

    monkeypatch.setattr(os, "open", swapping)
    with pytest.raises(StoreError):
        store.get("k", **RECEIPT)
    assert run.is_symlink(), "it was swapped"


def test_no_folder_is_removed_where_a_link_leads(mount: Path) -> None:
    for folder in (mount / "real/empty", mount.parent / "private/empty"):
        folder.mkdir(parents=True)
    (mount / "deep").symlink_to(mount.parent / "private")
    for way in ("deep", "real"):
        DirectoryStore(f"{way}/empty", below=mount).sweep()
    assert (mount.parent / "private/empty").is_dir()
    assert not (mount / "real/empty").exists()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_neither_read_nor_waited_for(
    store: DirectoryStore, mount: Path, make: Callable[[Path], None]
) -> None:
    (mount / RUN / "blobs").mkdir(parents=True)
    make(mount / RUN / "blobs" / "k")
    make(mount / RUN / "cnn@0000000000.npy")
    ref = DirectoryStore(mount.parent / "private").publish("cnn", 0, WEIGHTS)
    raised: list[Exception] = []

    def read(deed: Callable[[], object]) -> None:
        try:
            deed()
        except StoreError as error:
            raised.append(error)

    for deed in (lambda: store.get("k", **RECEIPT), lambda: store.fetch(ref)):
        threading.Thread(target=read, args=(deed,), daemon=True).start()
    eventually(lambda: len(raised) == 2, "both readings")
    assert all("cannot be used" in str(error) for error in raised)


def test_what_the_caller_vouches_for_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    for store in (DirectoryStore(tmp_path / "link"), DirectoryStore("a", below=tmp_path / "link")):
        store.put("k", DATA)
        assert store.get("k", **RECEIPT) == DATA
        store.remove("k")
        store.sweep()


_LETTERS = [*"ab0.-_/\\\0\n %é~$*:@", "..", "../", "/etc/", "\u202e", "\ud800", "blobs/", RUN]
_COUNT = 100_000 if SOAK else 300


@pytest.mark.timeout(3600)
def test_no_key_model_or_location_leads_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    mount, rng = tmp_path / "mount", random.Random(11)
    mount.mkdir()
    store = DirectoryStore(RUN, below=mount, pause=no_pause)
    letters = [*_LETTERS, f"{tmp_path}/"]  # where what is written would be seen
    for number in range(_COUNT):
        name = "".join(rng.choices(letters, k=rng.choice((1, 2, 3, 8, 250))))
        for deed in (
            lambda: store.put(name, DATA),  # noqa: B023 (called at once)
            lambda: store.publish(name, 0, WEIGHTS),  # noqa: B023
            lambda: store.remove(name),  # noqa: B023
            lambda: _opened(mount, name).put("k", DATA),  # noqa: B023
        ):
            with suppress(ParameterError, StoreError):
                deed()
        if number % 100 == 99:
            assert [each.name for each in tmp_path.iterdir()] == ["mount"]
            shutil.rmtree(mount)
            mount.mkdir()


def _opened(mount: Path, location: str) -> BlobStore:
    return open_store(StoreRef(kind="directory", location=location), mount=mount)
