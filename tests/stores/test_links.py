"""No name that a store is given leads out of its folder; links are followed."""

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
from seqgc.stores import DirectoryStore, open_store
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
    return DirectoryStore(mount / RUN, pause=no_pause)


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


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    store = DirectoryStore(tmp_path / "link" / "a")
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
    store = DirectoryStore(mount / RUN, pause=no_pause)
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
