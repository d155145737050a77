"""A disk that is full, or that fails, ends a run in one line, and the run can be resumed."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path

import pytest

from seqgc.errors import StoreError
from seqgc.ports import Seen
from seqgc.runs.journal import read_journal
from seqgc.testing import eventually
from seqgc.training import resume, train
from tests.kit import system_calls
from tests.training.test_resume import crew, outcome, plan

begun = partial(plan, "gc-rep:s=1", steps=6)
NAMES = [f"m{i}" for i in range(4)]


class Full:
    """Stands for ``os``: from the k-th line of the journal on nothing can be written."""

    def __init__(self, *, line: int) -> None:
        self._lines = line

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def write(self, descriptor: int, data: memoryview) -> int:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115
        self._lines -= path.name == "journal.jsonl"
        if self._lines <= 0:
            os.write(descriptor, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(descriptor, data)


@pytest.mark.parametrize("every_s", [60.0, 1e-9])
def test_a_full_disk_ends_the_run_and_the_checkpoint_before_stands(
    every_s: float, tmp_path: Path
) -> None:
    expected = outcome(train(begun(), crew(), run=tmp_path / "roomy").run)
    run = tmp_path / "run"

    def wait_for_the_first(seen: Seen) -> None:  # it is written in the background
        if getattr(seen, "round", 0) == 9:
            eventually(lambda: any(run.glob("checkpoints/[0-9]*")), "a checkpoint is written")

    with system_calls(Full(line=14)), pytest.raises(StoreError) as caught:
        train(begun(every_s=every_s), crew(), run=run, observers=[wait_for_the_first])
    assert f"the journal {run}/journal.jsonl cannot be written: " in str(caught.value)
    assert "\n" not in str(caught.value)
    (note,) = caught.value.__notes__
    newest = max(run.glob("checkpoints/[0-9]*"), key=lambda path: int(path.name))
    assert note == f"the last checkpoint: {newest}; continue with: seqgc resume {run}"
    assert not list(run.glob("checkpoints/.*")), "nothing that is not whole is left"
    resume(run, begun(every_s=every_s), crew())
    assert outcome(run) == expected


class Refuses:
    """Stands for ``os``: a file cannot take this name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def replace(self, source: Path, target: Path) -> None:
        if target.name == self._name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        source.replace(target)


def test_weights_that_cannot_be_written_keep_nothing_else_back(tmp_path: Path) -> None:
    run, said = tmp_path / "run", list[str]()

    def listen(seen: Seen) -> None:
        if getattr(seen, "kind", "") == "warning":
            said.append(str(seen.fields["text"]))  # type: ignore[union-attr]

    file = run / "checkpoints" / "m1.safetensors"
    what = f"{file} could not be written: Input/output error"
    with system_calls(Refuses(file.name)), pytest.raises(StoreError) as caught:
        train(begun(), crew(), run=run, observers=[listen])
    assert str(caught.value) == what
    assert said == [what]
    written = {path.stem for path in run.glob("checkpoints/*.safetensors")}
    assert written == set(NAMES) - {"m1"}
    assert [e.kind for e in read_journal(run / "journal.jsonl")[0]][-1] == "stop"
    assert '"event": "end"' in (run / "events.jsonl").read_text().splitlines()[-1]
    resume(run, begun(), crew())
    assert file.exists()


class Stubborn:
    """Stands for ``os``: nothing can be written to metrics.csv, but its head, for so many calls."""

    def __init__(self, calls: int) -> None:
        self._left = calls

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def write(self, descriptor: int, data: memoryview) -> int:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115
        if path.name == "metrics.csv" and not bytes(data).startswith(b"seconds") and self._left:
            self._left -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(descriptor, data)


def test_losses_that_never_fit_are_said_and_written_by_a_resumed_run(tmp_path: Path) -> None:
    run, said = tmp_path / "run", list[str]()

    def listen(seen: Seen) -> None:
        if getattr(seen, "kind", "") == "warning":
            said.append(str(seen.fields["text"]))  # type: ignore[union-attr]

    train(begun(), crew(), run=tmp_path / "roomy")
    with system_calls(Stubborn(10**9)), pytest.raises(StoreError) as caught:
        train(begun(), crew(), run=run, observers=[listen])
    why = "losses could not be written: No space left on device"
    assert str(caught.value) == f"{run}/metrics.csv: {4 * 6} {why}"
    (note,) = caught.value.__notes__
    assert note.endswith(f"; continue with: seqgc resume {run}")
    assert said[0].startswith("the MetricsLog of the run cannot be written any more, and is tried")
    assert said[1:] == [str(caught.value)]
    assert (run / "checkpoints" / "m3.safetensors").exists()
    resume(run, begun(), crew())
    assert outcome(run) == outcome(tmp_path / "roomy")


def test_losses_for_which_there_is_room_at_last_are_all_there(tmp_path: Path) -> None:
    whole, run = (tmp_path / name for name in ("roomy", "run"))
    train(begun(), crew(), run=whole)
    with system_calls(Stubborn(2)):  # a round's, and a snapshot's
        train(begun(every_s=60.0), crew(), run=run)
    assert outcome(run)[1] == outcome(whole)[1]


def test_what_ended_the_run_is_said_and_not_what_failed_after_it(tmp_path: Path) -> None:
    def fail(seen: Seen) -> None:
        if getattr(seen, "round", 0) == 9:
            raise ValueError("the first cause")

    run = tmp_path / "run"
    with system_calls(Refuses("m0.safetensors")), pytest.raises(ValueError, match="first cause"):
        train(begun(), crew(), run=run, observers=[fail])
    assert (run / "checkpoints" / "m3.safetensors").exists()
