"""What a run writes lasts, is the same for the same, and ends with whole lines."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from seqgc.errors import ParameterError, SeqgcError
from seqgc.ports import Dispatch, Seen
from seqgc.runs import read_run_header
from seqgc.runs.folder import RunDirectory
from seqgc.runs.journal import Journal, read_journal
from seqgc.training import resume, save_checkpoint, train
from tests.kit import system_calls
from tests.training.test_resume import CopyAt, crew, plan, whole_checkpoints  # noqa: F401 (a fixture)


def test_the_same_weights_are_the_same_bytes(tmp_path: Path) -> None:
    module = torch.nn.Linear(3, 2)
    for number in range(20):
        save_checkpoint(tmp_path / str(number), module)
    assert len({(tmp_path / str(number)).read_bytes() for number in range(20)}) == 1
    first, second = (train(plan("uncoded"), crew(), run=tmp_path / f"run{i}") for i in (0, 1))
    trained = sorted(first.run.glob("checkpoints/*.safetensors"))
    assert trained
    for file in trained:  # not those of a moment: what was being added then depends on the clock
        assert file.read_bytes() == (second.run / file.relative_to(first.run)).read_bytes()


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_who_may_read_a_run_s_weights_is_for_the_umask_to_say(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        run = train(plan("uncoded", steps=2), crew(), run=tmp_path / "run").run
    finally:
        os.umask(before)
    files = [path for path in run.rglob("*") if path.is_file()]
    assert {"state.json", "config.toml", "journal.jsonl", "metrics.csv"} < {f.name for f in files}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o666 & ~mask}


@pytest.mark.parametrize("is_made", [False, True])
def test_a_run_s_own_folder_is_on_the_disk_before_anything_is_sent(
    is_made: bool, tmp_path: Path
) -> None:
    """With the folders above it that are new; or who made it was killed before its name was."""
    synced: list[str] = []

    class Watched:
        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        def fsync(self, descriptor: int) -> None:
            os.fsync(descriptor)
            synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    def look(seen: Seen) -> None:
        if isinstance(seen, Dispatch):
            before.append(set(synced))

    before: list[set[str]] = []
    run = tmp_path.resolve() / "a" / "b" / "run"
    if is_made:
        RunDirectory(run, config="")
    with system_calls(Watched()):
        begin = partial(resume, run) if is_made else partial(train, run=run)
        begin(plan("uncoded"), crew(), observers=[look])
    above = run.parents[: 1 if is_made else 3]
    assert before[0] >= {str(folder) for folder in above}


@pytest.mark.parametrize("spec", ["gc:s=2", "m-sgc:B=1,W=2,lam=2"])
def test_before_the_next_round_leaves_one_sync_has_put_the_last_on_record(
    spec: str, tmp_path: Path
) -> None:
    """That a checkpoint was written beside it is on record, too, once."""
    syncs, rounds = list[int](), list[int]()

    class Counted:
        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        def fsync(self, descriptor: int) -> None:
            os.fsync(descriptor)
            if Path(f"/proc/self/fd/{descriptor}").readlink().name == "journal.jsonl":
                syncs.append(descriptor)  # at once: a checkpoint's files are another thread's

    def look(seen: Seen) -> None:
        if isinstance(seen, Dispatch):
            rounds.append(len(syncs))

    with system_calls(Counted()):
        train(plan(spec, every_s=60.0), crew(), run=tmp_path / "run", observers=[look])
    *others, most = sorted(after - before for before, after in pairwise(rounds))
    assert others == [1] * (len(rounds) - 2)
    assert most <= 2


def test_dealt_rounds_are_on_the_disk_before_a_checkpoint_of_them(tmp_path: Path) -> None:
    """Their gradients have the same bits with any answers, so that no round waits for its line."""
    journal, counts = tmp_path / "run" / "journal.jsonl", list[int]()

    def rounds() -> int:
        return journal.read_bytes().count(b'"kind":"round"')

    class Counted:
        def __getattr__(self, name: str) -> object:
            return getattr(os, name)

        def fsync(self, descriptor: int) -> None:
            os.fsync(descriptor)
            if Path(f"/proc/self/fd/{descriptor}").readlink().name == journal.name:
                counts.append(rounds())

        def replace(self, source: Path, target: Path) -> None:
            if target.name.isdecimal():  # the folder of a checkpoint
                assert int(target.name) <= counts[-1]
                checkpoints.append(int(target.name))
            os.replace(source, target)  # noqa: PTH105

    checkpoints = list[int]()
    with system_calls(Counted()):
        train(plan("deal", every_s=60.0), crew(), run=tmp_path / "run")
    assert counts[-1] == rounds() == checkpoints[-1] > 3
    assert len(counts) < rounds()


@pytest.mark.parametrize("cut", [0, 1, 20, 300])
def test_a_log_that_was_torn_can_be_read_and_goes_on(cut: int, tmp_path: Path) -> None:
    watch = CopyAt(tmp_path / "run", {150})
    train(plan("gc:s=1", every_s=60.0), crew(), run=tmp_path / "run", observers=[watch])
    log = watch.copies[0] / "events.jsonl"
    data = log.read_bytes()
    log.write_bytes(data[: len(data) - cut])
    resume(watch.copies[0], plan("gc:s=1", every_s=60.0), crew())
    kinds = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert kinds.count("run") == kinds.count("resume") == kinds.count("end") == 1
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[kinds.index("resume") :]))
    assert read_run_header(watch.copies[0]).workers == 6, "the first master's lines are lost"


def test_a_log_that_ends_in_nothing_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    """As a file of a terabyte of which nothing is on the disk."""
    run = train(plan("uncoded"), crew(), run=tmp_path / "run").run
    log = run / "events.jsonl"
    whole = log.read_bytes()
    os.truncate(log, len(whole) + 2**40)
    with pytest.raises(ParameterError, match=r"the folder of a run \(events\.jsonl: its last 67"):
        resume(run, plan("uncoded"), crew())
    assert log.stat().st_size == len(whole) + 2**40
    os.truncate(log, len(whole) + 2**20)  # as after a power cut
    resume(run, plan("uncoded"), crew())
    assert log.read_bytes().startswith(whole + b'{"event": "resume"')


def test_whatever_text_a_line_of_the_journal_has_it_is_read_as_written(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    texts = ["a raw byte of a path: \udcff", "\ud83d", "two\nlines\u2028", "\x00\x7f", '"crc":1}']
    with closing(Journal(path, master=1)) as journal:
        for text in texts:
            journal.append("stop", outcome=text)
    entries, torn = read_journal(path)
    assert [entry.fields["outcome"] for entry in entries] == texts
    assert torn == 0


def test_a_run_that_an_error_of_many_lines_has_ended_says_so_in_one(tmp_path: Path) -> None:
    def fail(seen: Seen) -> None:
        if getattr(seen, "round", 0) == 3:
            raise ValueError("/raw/\udcff\n is gone")

    with pytest.raises(ValueError, match="is gone"):
        train(plan("uncoded", steps=2), crew(), run=tmp_path / "run", observers=[fail])
    *_, last = read_journal(tmp_path / "run" / "journal.jsonl")[0]
    assert last.fields["outcome"] == "failed: /raw/\ufffd is gone"
    *_, said = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    assert json.loads(said)["outcome"] == last.fields["outcome"]


def test_a_run_that_was_ended_before_its_journal_began_begins(tmp_path: Path) -> None:
    """Between any two of the steps by which its folder is made."""
    whole = train(plan("uncoded"), crew(), run=tmp_path / "run")
    for torn in (None, b"", b'{"v":1,"n":0,"master":1,"kind":"beg'):
        run = tmp_path / str(torn)[:3] / "run"
        shutil.copytree(whole.run, run)
        for file in (
            *run.glob("checkpoints/*/*"),
            *run.glob("checkpoints/*.*"),
            run / "events.jsonl",
        ):
            file.unlink()
        for folder in run.glob("checkpoints/*"):
            folder.rmdir()
        (run / "metrics.csv").unlink()
        (run / "journal.jsonl").unlink()
        if torn is not None:
            (run / "journal.jsonl").write_bytes(torn)
        assert resume(run, plan("uncoded"), crew()).evaluations == whole.evaluations


def test_a_journal_that_is_lost_is_not_taken_for_one_that_never_began(tmp_path: Path) -> None:
    run = train(plan("uncoded"), crew(), run=tmp_path / "run").run
    (run / "journal.jsonl").unlink()
    with pytest.raises(SeqgcError, match=r"no beginning, although the run has checkpoints \(\d+"):
        resume(run, plan("uncoded"), crew())


class TerminatedAt:
    """Stands for ``os``: a signal's exception amidst the k-th write to the journal, or after it."""

    def __init__(self, write: int, *, whole: bool) -> None:
        self._left, self._whole = write, whole

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def write(self, descriptor: int, data: memoryview) -> int:
        if not os.readlink(f"/proc/self/fd/{descriptor}").endswith("journal.jsonl"):  # noqa: PTH115
            return os.write(descriptor, data)
        self._left -= 1
        written = os.write(descriptor, data if self._left or self._whole else data[:20])
        if self._left == 0:
            raise KeyboardInterrupt
        return written


@pytest.mark.parametrize(("write", "whole"), [(1, False), (4, True)])
def test_a_signal_leaves_no_part_of_a_line(write: int, whole: bool, tmp_path: Path) -> None:
    run = tmp_path / "run"
    expected = train(plan("uncoded"), crew(), run=tmp_path / "whole").evaluations
    with system_calls(TerminatedAt(write, whole=whole)), pytest.raises(KeyboardInterrupt):
        train(plan("uncoded"), crew(), run=run)
    lines = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    numbers = [json.loads(line)["n"] for line in lines if line.endswith(b"\n")]
    assert numbers == list(range(len(lines)))
    assert resume(run, plan("uncoded"), crew()).evaluations == expected
