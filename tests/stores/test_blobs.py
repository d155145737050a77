"""Bytes under a key, in every store that takes them; and readings that get better by themselves."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from botocore.exceptions import ClientError

from seqgc.errors import ParameterError, StoreError
from seqgc.stores import DirectoryStore, InlineStore, S3Store
from tests.stores.registry import BLOB_STORES, BUCKET, bucket, client, no_pause

DATA = bytes(range(256)) * 10
PAUSES_S = (0.02, 0.1, 0.5)  # before each further reading: less than a second in all


def receipt(data: bytes) -> dict[str, Any]:
    return {"digest": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)}


@pytest.mark.parametrize("name", sorted(BLOB_STORES))
def test_what_is_wrong_is_said_in_the_same_words_everywhere(name: str, tmp_path: Path) -> None:
    with BLOB_STORES[name](tmp_path / "blobs-and-weights") as store:
        store.put("k", b"abc")
        with pytest.raises(StoreError, match=r"k.* 3 bytes instead of 4"):
            store.get("k", **receipt(b"abcd"))
        with pytest.raises(StoreError, match=r"k.* digest ba7816bf8f01… instead of "):
            store.get("k", **receipt(b"abd"))
        store.remove("k")
        with pytest.raises(StoreError, match=r"k.*removed"):
            store.get("k", **receipt(b"abc"))
        with pytest.raises(ParameterError, match="`key` must be 1 to 200 letters"):
            store.put("../x", b"")


def test_an_inline_store_has_no_place_for_them() -> None:
    store = InlineStore()
    with pytest.raises(StoreError, match=r"'k' of 2560 bytes.* use a directory \(EFS\) or an S3"):
        store.put("k", DATA)
    with pytest.raises(StoreError, match="inline store keeps no answers"):
        store.get("k", **receipt(DATA))


# ---- weights that travel ------------------------------------------------------------------------


def test_weights_that_do_not_fit_a_request_are_refused_with_size_and_remedy() -> None:
    store = InlineStore()
    assert store.publish("cnn", 0, np.zeros(1_000_000, np.float32)).size == 1_000_000
    resnet = np.zeros(11_227_812, np.float16)
    with pytest.raises(ParameterError, match=r"4715520 bytes .* 6291456; got 22455624 \(use a dir"):
        store.publish("resnet", 0, resnet)
    store.publish("resnet", 0, resnet[:10])  # what was refused is not published


# ---- readings that get better -------------------------------------------------------------------


class Clearing:
    """A pause that after so many turns lets the store be as it should."""

    def __init__(self, turns: int, mend: Any) -> None:
        self.waited: list[float] = []
        self._turns, self._mend = turns, mend

    def __call__(self, seconds: float) -> None:
        self.waited.append(seconds)
        if len(self.waited) == self._turns:
            self._mend()


def damaged(path: Path, content: bytes) -> Any:
    """Put ``content`` in a file's place; return what undoes it."""
    right = path.read_bytes()
    path.chmod(0o644)
    path.write_bytes(content)
    return lambda: path.write_bytes(right)


@pytest.mark.parametrize("turns", [1, len(PAUSES_S)])
@pytest.mark.parametrize("seen", [DATA[:-1], b"", DATA[:-1] + b"?", DATA + b"?"])
def test_a_blob_half_seen_is_read_again(tmp_path: Path, seen: bytes, turns: int) -> None:
    DirectoryStore(tmp_path).put("k", DATA)
    pause = Clearing(turns, damaged(tmp_path / "blobs" / "k", seen))
    assert DirectoryStore(tmp_path, pause=pause).get("k", **receipt(DATA)) == DATA
    assert pause.waited == list(PAUSES_S[:turns])


@pytest.mark.parametrize("cut", [0, 20, 100, 150])
def test_weights_half_seen_are_read_again(tmp_path: Path, cut: int) -> None:
    ref = DirectoryStore(tmp_path).publish("cnn", 0, np.arange(9.0))
    (path,) = tmp_path.iterdir()
    pause = Clearing(2, damaged(path, path.read_bytes()[:cut]))
    store = DirectoryStore(tmp_path, pause=pause)
    np.testing.assert_array_equal(store.fetch(ref), np.arange(9.0))
    assert len(pause.waited) == 2


def test_readings_end_with_the_last_cause(tmp_path: Path) -> None:
    DirectoryStore(tmp_path).put("k", DATA)
    damaged(tmp_path / "blobs" / "k", DATA[:7])
    pause = Clearing(99, None)
    with pytest.raises(StoreError, match=r"blobs/k cannot be used: .* 7 bytes instead of 2560"):
        DirectoryStore(tmp_path, pause=pause).get("k", **receipt(DATA))
    assert len(pause.waited) == len(PAUSES_S)


def test_a_stale_handle_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(tmp_path, pause=no_pause)
    store.put("k", DATA)
    stale, opened = [True], os.open

    def open_(path: Any, *args: Any, **kwargs: Any) -> int:
        if Path(path).name == "k" and stale:
            raise OSError(errno.ESTALE, "Stale file handle", stale.pop())
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", open_)
    assert store.get("k", **receipt(DATA)) == DATA
    assert not stale


def test_what_is_not_there_is_not_waited_for(tmp_path: Path) -> None:
    pause = Clearing(99, None)
    store = DirectoryStore(tmp_path, pause=pause)
    with pytest.raises(StoreError, match="is missing"):
        store.get("k", **receipt(DATA))
    assert not pause.waited


def test_what_s3_denies_is_not_waited_for_either() -> None:
    class Denying:
        """S3 to a role that may read objects and not list them: it says so of what is not there."""

        def get_object(self, **_: Any) -> Any:
            error = ClientError({"Error": {"Code": "AccessDenied"}}, "GetObject")
            raise error

        put_object = delete_object = get_object

    pause = Clearing(99, None)
    store = S3Store("s3://bucket/runs", client=Denying, pause=pause)
    with pytest.raises(StoreError, match="blobs/k is missing: "):
        store.get("k", **receipt(DATA))
    assert not pause.waited


def test_no_more_is_read_than_was_promised(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, pause=no_pause)
    store.put("k", bytes(5_000_000))
    with pytest.raises(StoreError, match="11 bytes instead of 10"):
        store.get("k", digest="0" * 64, size_bytes=10)


# ---- S3 (moto's) --------------------------------------------------------------------------------


def test_objects_lie_below_the_prefix(tmp_path: Path) -> None:
    with bucket(tmp_path / "run-7") as store:
        store.publish("cnn", 3, np.ones(2))
        store.put("k", b"1")
        listed = client().list_objects_v2(Bucket=BUCKET)["Contents"]
        assert {each["Key"]: each["Size"] for each in listed} == {
            "run-7/cnn@0000000003.bin": 16,
            "run-7/blobs/k": 1,
        }


def test_a_pickled_store_reaches_the_same_objects_with_a_client_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with bucket(tmp_path / "run-7") as store:
        ref = store.publish("cnn", 3, np.arange(2.0))
        other = pickle.loads(pickle.dumps(store))
        np.testing.assert_array_equal(other.fetch(ref), np.arange(2.0))


class Slow:
    """Makes S3 clients slowly, and counts: clients, and who makes one at the same time."""

    def __init__(self) -> None:
        self.made = self.making = self.most = 0
        self._second = threading.Event()

    def __call__(self) -> Any:
        self.making += 1
        self.most = max(self.most, self.making)
        if self.making > 1:
            self._second.set()
        self._second.wait(0.02)  # others come meanwhile, if they may
        self.making -= 1
        self.made += 1
        return self

    def delete_object(self, **_: Any) -> None:
        """Delete nothing."""


def test_threads_share_a_stores_client_and_make_those_of_two_one_after_the_other() -> None:
    client = Slow()
    stores = [S3Store(f"s3://{BUCKET}/{name}", client=client) for name in "ab"]
    threads = [threading.Thread(target=stores[k % 2].remove, args=("k",)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (client.made, client.most) == (2, 1)


def test_a_bucket_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with bucket(tmp_path):
        store = S3Store("s3://not-there/run", client=client, pause=no_pause)
        with pytest.raises(
            StoreError, match=r"s3://not-there/run/blobs/k cannot be written: .*NoSuchB"
        ):
            store.put("k", b"1")
        with pytest.raises(
            StoreError, match=r"not-there/run/blobs/k cannot be used: .*NoSuchBucket"
        ):
            store.get("k", **receipt(b"1"))


class Flaky:
    """An S3 whose first readings break off; nothing that moto could do."""

    def __init__(self, bodies: list[bytes | Exception]) -> None:
        self._bodies = bodies

    def get_object(self, **_: str) -> dict[str, object]:
        body = self._bodies.pop(0)
        if isinstance(body, Exception):
            raise body
        return {"Body": io.BytesIO(body)}


def test_a_transfer_that_breaks_off_is_begun_again() -> None:
    flaky: Any = Flaky([ConnectionError("reset"), DATA[:100], DATA])
    store = S3Store("s3://training/run", client=lambda: flaky, pause=no_pause)
    assert store.get("k", **receipt(DATA)) == DATA


@pytest.mark.parametrize(
    "location",
    [
        "",
        "training",
        "s3://",
        "s3://a",
        "s3://UP/x",
        "s3://training/../x",
        "s3://training//x",
        "s3://training/a b",
    ],
)
def test_a_location_must_be_a_bucket_and_a_prefix(location: str) -> None:
    with pytest.raises(ParameterError, match="`location` must be s3://bucket/prefix"):
        S3Store(location)
