"""Room for a run's end: whatever fills the disk, and whatever else fails, that is on it."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path

import pytest
import torch

from seqgc.errors import StoreError
from seqgc.ports import Close, Notice, Seen
from seqgc.training import _checkpointer, resume, train
from seqgc.training.journal import read_journal
from tests.kit import system_calls
from tests.simulation.seams import Inline
from tests.training.test_resume import crew, outcome, plan

begun = partial(plan, "gc-rep:s=1", steps=6)
NAMES = [f"m{i}" for i in range(4)]


class Full:
    """Stands for ``os``: from the k-th line of the journal on nothing can be written.

    Until what is kept for the end has been given back; then as before.
    """

    def __init__(self, run: Path, *, line: int, most_checkpoints: int = 9) -> None:
        self._run, self._lines, self._most = run, line, most_checkpoints
        self.failed = 0

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def write(self, descriptor: int, data: memoryview) -> int:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115
        folder = self._run / "checkpoints"
        self._lines -= path.name == "journal.jsonl"
        full = self._lines <= 0 and (folder / ".room").exists()
        if self._lines <= 0 and path.parent.suffix == ".part":
            full |= len(list(folder.glob("[0-9]*"))) > self._most
        if full:
            self.failed += 1
            os.write(descriptor, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(descriptor, data)


@pytest.mark.parametrize(("every_s", "most"), [(60.0, 9), (1e-9, 1)])
def test_a_journal_that_cannot_be_written_stops_the_run_with_a_last_checkpoint(
    every_s: float, most: int, tmp_path: Path
) -> None:
    """Of the last two before it one goes, if there is no room otherwise."""
    expected = outcome(train(begun(), crew(), run=tmp_path / "roomy").run)
    run = tmp_path / "run"
    disk = Full(run, line=14, most_checkpoints=most)
    with system_calls(disk), pytest.raises(StoreError) as caught:
        train(begun(every_s=every_s), crew(), run=run)
    assert disk.failed
    closed = sum(entry.kind == "round" for entry in read_journal(run / "journal.jsonl")[0])
    newest = run / "checkpoints" / str(closed)
    assert f"the journal {run}/journal.jsonl cannot be written: " in str(caught.value)
    assert caught.value.__notes__ == [
        f"the last checkpoint: {newest}; go on with: seqgc resume {run}"
    ]
    others = {path.name for path in (run / "checkpoints").iterdir() if not path.name.isdigit()}
    assert others == {f"{name}.safetensors" for name in NAMES}
    assert len(list(run.glob("checkpoints/[0-9]*"))) == 2
    resume(run, begun(every_s=every_s), crew())
    assert outcome(run) == expected


class Tight:
    """Stands for ``os``: there is room for no checkpoint beside three."""

    def __init__(self, run: Path) -> None:
        self._folder, self.failed = run / "checkpoints", 0

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def write(self, descriptor: int, data: memoryview) -> int:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115
        if path.parent.suffix == ".part" and len(list(self._folder.glob("[0-9]*"))) > 2:
            self.failed += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(descriptor, data)


def test_a_checkpoint_of_no_use_goes_before_one_cannot_be_written(tmp_path: Path) -> None:
    expected = outcome(train(begun(), crew(), run=tmp_path / "roomy").run)
    run, said = tmp_path / "run", list[str]()

    def stop(seen: Seen) -> None:
        if isinstance(seen, Close) and seen.record.round == 20:
            raise InterruptedError

    def listen(seen: Seen) -> None:
        if isinstance(seen, Notice) and seen.kind == "warning":
            said.append(str(seen.fields["text"]))

    with pytest.raises(InterruptedError):
        train(begun(every_s=1e-9), crew(), run=run, observers=[stop])
    newest = max(run.glob("checkpoints/[0-9]*"), key=lambda path: int(path.name))
    newest.rename(newest.with_name("999"))  # of rounds that there never were
    with system_calls(disk := Tight(run)):
        resume(run, begun(every_s=1e-9), crew(), observers=[listen])
    assert disk.failed
    assert not [text for text in said if "could not be written" in text]
    assert outcome(run) == expected


class Refuses:
    """Stands for ``os``: a file cannot take this name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def replace(self, source: str | Path, target: str | Path, **folders: int) -> None:
        if Path(target).name == self._name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.replace(source, target, **folders)  # noqa: PTH105


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
    assert note.endswith(f"; go on with: seqgc resume {run}")
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


@pytest.mark.parametrize("spec", ["gc:s=2", "gc-rep:s=1", "m-sgc:B=1,W=2,lam=2"])
@pytest.mark.parametrize("event", [158, 170])
def test_room_is_kept_for_the_state_that_optimizers_make(
    spec: str, event: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And for the results of jobs in flight; it is not there any more at the end."""
    run, sizes, seen = tmp_path / "run", [0], list[Seen]()

    def look(each: Seen) -> None:
        seen.append(each)
        if (room := run / "checkpoints" / ".room").exists() and room.stat().st_size > sizes[-1]:
            sizes.append(room.stat().st_size)
        if len(seen) == event:
            raise ValueError("amidst a round")

    monkeypatch.setattr(_checkpointer, "ThreadPoolExecutor", Inline)
    with pytest.raises(ValueError, match="amidst"):
        train(plan(spec, every_s=60.0, steps=20), crew(), run=run, observers=[look])
    last = max(run.glob("checkpoints/[0-9]*"), key=lambda folder: int(folder.name))
    written = [*last.iterdir(), *run.glob("checkpoints/*.safetensors")]
    blocks = sum(-(-path.stat().st_size // 4096) for path in written)
    assert len(sizes) == 3, "it was measured once more when all had stepped"
    assert sizes[-1] >= 4096 * blocks
    assert not (run / "checkpoints" / ".room").exists()


def test_that_there_is_no_room_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def listen(seen: Seen) -> None:
        if getattr(seen, "kind", "") == "warning":
            said.append(str(seen.fields["text"]))  # type: ignore[union-attr]

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    result = train(begun(), crew(), run=tmp_path / "run", observers=[listen])
    assert torch.isfinite(torch.tensor([each.loss for each in result.evaluations.values()])).all()
    (text,) = said
    assert "no room for the last checkpoint and the trained weights" in text
