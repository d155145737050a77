"""Files that cannot be removed, that somebody removes, or that cannot be looked at for a moment."""

from __future__ import annotations

import errno
import json
import os
from contextlib import closing
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from seqgc.errors import StoreError
from seqgc.ports import Close, Seen, WeightRef
from seqgc.runs.journal import Journal, read_journal
from seqgc.runs.snapshots import SnapshotFolder
from seqgc.stores import MemoryStore, RetiringStore
from seqgc.training import resume, train
from tests.training.test_resume import crew, outcome, plan, whole_checkpoints  # noqa: F401

SPEC = "gc-rep:s=1"


def cannot(name: str, *, calls: range) -> mock._patch[object]:
    """Have these calls of ``os.unlink`` fail for files of which this is a part of the name."""
    unlink, seen = os.unlink, [0]

    def failing(path: str | Path, **where: int) -> None:
        if name in str(path):
            seen[0] += 1
            if seen[0] - 1 in calls:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        unlink(path, **where)

    return mock.patch.object(os, "unlink", failing)


def told(run: Path, event: str) -> list[str]:
    lines = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    return [line["text"] for line in lines if line["event"] == event]


@pytest.mark.parametrize("calls", [range(1, 2), range(10**6)], ids=["once", "always"])
def test_weights_that_cannot_be_removed_cost_no_run(calls: range, tmp_path: Path) -> None:
    expected = outcome(train(plan(SPEC), crew(), run=tmp_path / "expected").run)
    run = tmp_path / "run"
    with cannot("@", calls=calls):
        train(plan(SPEC), crew(), run=run)
    assert outcome(run) == expected
    (said,) = told(run, "warning")
    assert "cannot be removed" in said
    assert said.endswith("tried again later")
    left = sorted((run / "weights").rglob("*@*")) if (run / "weights").exists() else []
    assert bool(left) == (calls.stop > 2), left
    assert outcome(resume(run, plan(SPEC), crew()).run) == expected


def test_a_run_of_which_no_checkpoint_was_written_has_failed_with_its_weights_saved(
    tmp_path: Path,
) -> None:
    expected = train(plan(SPEC), crew(), run=tmp_path / "expected").run
    full = mock.patch.object(
        SnapshotFolder, "write", side_effect=OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    )
    run = tmp_path / "run"
    with full, pytest.raises(StoreError, match=r"without a checkpoint .*File too large") as caught:
        train(plan(SPEC), crew(), run=run)
    assert "\n" not in str(caught.value)
    trained = sorted((expected / "checkpoints").glob("*.safetensors"))
    assert trained
    for file in trained:
        assert (run / "checkpoints" / file.name).read_bytes() == file.read_bytes()


def test_a_retired_version_that_cannot_be_deleted_is_tried_again() -> None:
    class Busy(MemoryStore):
        fails = 2

        def discard(self, ref: WeightRef) -> None:
            if self.fails:
                self.fails -= 1
                raise StoreError("it cannot be removed: slow down")
            super().discard(ref)

    kept = Busy()
    with closing(RetiringStore(kept, rounds=0, grace_s=0.0)) as store:
        refs = [store.publish("m", version, np.ones(2)) for version in range(4)]
        for ref in refs:
            store.discard(ref)
        assert [store.advance(round) for round in (1, 2, 3)] == [0, 0, 4]
    for ref in refs:
        with pytest.raises(StoreError, match="publish"):
            kept.fetch(ref)


@pytest.mark.parametrize("name", ["journal.jsonl", "metrics.csv", "events.jsonl"])
def test_a_log_that_somebody_removes_is_written_again_or_missed(name: str, tmp_path: Path) -> None:
    expected = outcome(train(plan(SPEC), crew(), run=tmp_path / "expected").run)
    run = tmp_path / "run"

    def remove(seen: Seen) -> None:
        if isinstance(seen, Close) and seen.record.round == 1:
            (run / name).unlink()

    seen: list[Seen] = []
    train(plan(SPEC), crew(), run=run, observers=[remove, seen.append])
    assert outcome(run) == expected
    warnings = [str(each.fields["text"]) for each in seen if getattr(each, "kind", "") == "warning"]
    if name == "events.jsonl":
        assert len(warnings) == 1
        assert "the file was removed" in warnings[0]
        return
    assert not warnings
    entries, torn = read_journal(run / "journal.jsonl")
    assert [entries[0].kind, entries[-1].kind, torn] == ["begin", "stop", 0]
    assert outcome(resume(run, plan(SPEC), crew()).run) == expected


def test_a_journal_in_whose_place_there_is_another_file_is_not_written_over(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with closing(Journal(path, master=1)) as journal:
        journal.append("begin")
        path.unlink()
        path.write_text("mine")
        with pytest.raises(StoreError, match="File exists"):
            journal.append("stop")
    assert path.read_text() == "mine"


@pytest.mark.parametrize("times", [2, 10**6])
def test_a_run_outlasts_a_moment_in_which_its_numbers_cannot_be_seen(
    times: int, tmp_path: Path
) -> None:
    exists, left = Path.exists, [0]

    def failing(path: Path) -> bool:
        if path.parent.name == "masters" and left[0]:
            left[0] -= 1
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return exists(path)

    def begin(seen: Seen) -> None:
        if isinstance(seen, Close) and seen.record.round == 1:
            left[0] = times

    run = tmp_path / "run"
    with mock.patch.object(Path, "exists", failing):
        if times == 2:
            train(plan(SPEC), crew(), run=run, observers=[begin])
        else:
            with pytest.raises(StoreError, match=r"masters cannot be read: Stale .*resume .*run"):
                train(plan(SPEC), crew(), run=run, observers=[begin])
    train(plan(SPEC), crew(), run=tmp_path / "expected")
    assert outcome(resume(run, plan(SPEC), crew()).run) == outcome(tmp_path / "expected")
