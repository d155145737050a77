"""What runs have left on a shared file system goes, and nobody's live run does."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from seqgc.ports import Task
from seqgc.stores import FORGOTTEN_S, LATE_S, DirectoryStore, occupied, remove_forgotten
from seqgc.wire import TaskMessage

RUN = "gc-s_1-0123456789ab"
NOW = time.time()


def key(round: int) -> str:
    """Return what a function's answer lies under."""
    asked = TaskMessage(task=Task(round=round, worker=2, attempt=0, items=()))
    return asked.receipt(digest="0123456789abcdef" * 4, size_bytes=6).key


LATE, EARLY = key(12), key(3)


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / RUN)


def age(folder: Path, seconds: float) -> None:
    """Let the folder and all that is in it be so old."""
    for path in (folder, *folder.rglob("*")):
        os.utime(path, (NOW - seconds, NOW - seconds), follow_symlinks=False)


def test_a_late_answer_goes_with_its_folder_when_no_function_can_run_any_more(
    store: DirectoryStore, tmp_path: Path
) -> None:
    store.put(LATE, b"answer")
    unfinished = store.root / "blobs" / f".{EARLY}-x1_.tmp"  # of a function that ran out of time
    unfinished.write_bytes(b"ans")
    age(store.root, LATE_S)
    assert LATE_S > 900 + 60, "the longest time-out, and a grace"
    assert remove_forgotten(tmp_path, now=NOW) == 0
    assert {path.name for path in unfinished.parent.iterdir()} == {unfinished.name, LATE}
    assert remove_forgotten(tmp_path, now=NOW + 1) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("youngest", [f"blobs/{LATE}", "blobs", "."])
def test_the_youngest_of_all_tells_the_age(
    youngest: str, store: DirectoryStore, tmp_path: Path
) -> None:
    for each in (LATE, EARLY):
        store.put(each, b"answer")
    age(store.root, 10 * LATE_S)
    os.utime(store.root / youngest, (NOW, NOW))
    assert remove_forgotten(tmp_path, now=NOW + LATE_S) == 0
    assert len(list((store.root / "blobs").iterdir())) == 2


def test_a_folder_with_weights_may_be_a_live_run_s_and_stays_for_a_month(
    store: DirectoryStore, tmp_path: Path
) -> None:
    ref = store.publish("cnn", 0, np.ones(3))
    store.put(LATE, b"answer")
    age(store.root, FORGOTTEN_S)
    assert remove_forgotten(tmp_path, now=NOW) == 0
    np.testing.assert_array_equal(store.fetch(ref), np.ones(3))
    assert remove_forgotten(tmp_path, now=NOW + 1) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wrong_s", [-60 * 86400.0, 60 * 86400.0])
def test_the_folder_of_a_run_that_lives_stays_whatever_the_clocks_say(
    wrong_s: float, store: DirectoryStore, tmp_path: Path
) -> None:
    with occupied(tmp_path, RUN):
        ref = store.publish("cnn", 0, np.ones(3))
        store.put(LATE, b"answer")
        age(store.root, wrong_s)
        assert remove_forgotten(tmp_path, now=NOW + 60 * 86400.0) == 0
        store.discard(ref)
        age(store.root, wrong_s)
        assert remove_forgotten(tmp_path, now=NOW + 60 * 86400.0) == 0
        assert (store.root / "blobs" / LATE).exists()
    assert sorted(path.name for path in store.root.iterdir()) == ["blobs"]


def test_the_folder_of_a_master_that_was_killed_goes(store: DirectoryStore, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with occupied(tmp_path, RUN):
        shutil.copytree(store.root, kept)  # as it is found when its master is no more
    shutil.rmtree(store.root)
    kept.rename(store.root)
    store.publish("cnn", 0, np.ones(3))
    assert "master.lock" in {path.name for path in store.root.iterdir()}
    age(store.root, FORGOTTEN_S)
    assert remove_forgotten(tmp_path, now=NOW + 1) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "odd",
    [
        "notes.txt",
        "cnn@1.npy",
        ".notes.tmp",
        "blobs/photo",
        "blobs/.a.tmp",
        "blobs/sub/x",
        "more/x",
    ],
)
def test_a_folder_in_which_there_is_anything_else_is_left_as_it_is(
    odd: str, store: DirectoryStore, tmp_path: Path
) -> None:
    store.put(LATE, b"answer")
    other = store.root / odd
    other.parent.mkdir(exist_ok=True)
    other.write_text("somebody's")
    age(store.root, 10 * FORGOTTEN_S)
    assert remove_forgotten(tmp_path, now=NOW) == 0
    assert other.exists()
    assert (store.root / "blobs" / LATE).exists()


@pytest.mark.parametrize(
    "name", ["data", "gc-0123456789AB", "gc-0123456789abc", ".gc-0123456789ab"]
)
def test_a_folder_of_another_name_is_none_of_ours(name: str, tmp_path: Path) -> None:
    DirectoryStore(tmp_path / name).put(LATE, b"answer")
    age(tmp_path / name, 10 * FORGOTTEN_S)
    assert remove_forgotten(tmp_path, now=NOW) == 0
    assert (tmp_path / name / "blobs" / LATE).exists()


def test_links_are_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    DirectoryStore(elsewhere / RUN).put(LATE, b"answer")
    mount = tmp_path / "mount"
    (mount / RUN).mkdir(parents=True)
    (mount / RUN / "blobs").symlink_to(elsewhere / RUN / "blobs")
    (mount / f"{RUN[:-1]}c").symlink_to(elsewhere / RUN)
    age(tmp_path, 10 * FORGOTTEN_S)
    assert remove_forgotten(mount, now=NOW) == 0
    assert (elsewhere / RUN / "blobs" / LATE).exists()


def test_what_cannot_be_removed_is_left_for_another_time(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, **_: int) -> None:
        raise PermissionError(13, "Permission denied", name)

    store.put(LATE, b"answer")
    age(store.root, 2 * LATE_S)
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        assert remove_forgotten(tmp_path, now=NOW) == 0
    assert remove_forgotten(tmp_path, now=NOW) == 1


def test_what_cannot_be_listed_is_no_error(tmp_path: Path) -> None:
    assert remove_forgotten(tmp_path / "nowhere") == 0
