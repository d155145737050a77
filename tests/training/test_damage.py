"""Files of a run that are damaged: what is older and whole is used, and said; or it is refused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from seqgc.errors import SeqgcError, StoreError
from seqgc.ports import Seen
from seqgc.runs.snapshots import SCHEMA, Snapshot, SnapshotFolder
from seqgc.testing import eventually
from seqgc.training import (
    TrainingPlan,
    checkpointer,
    load_checkpoint,
    resume,
    save_checkpoint,
    train,
)
from tests.kit import SOAK, system_calls
from tests.simulation.seams import Inline
from tests.training.inside import RunState
from tests.training.test_resume import CopyAt, crew, digests, outcome, plan

SPEC = "gc-rep:s=1"
begun = partial(plan, SPEC, steps=2)
pytestmark = pytest.mark.timeout(0 if SOAK else 180)


# ---- a checkpoint --------------------------------------------------------------------------------


@pytest.fixture
def snapshots(tmp_path: Path) -> SnapshotFolder[dict[str, int]]:
    """Two checkpoints, the newer one of 64 KB."""
    folder = SnapshotFolder(tmp_path, dict[str, int])
    for rounds, size in ((3, 8), (7, 17_000)):
        weights = torch.arange(size, dtype=torch.float32)
        files = {
            "m.safetensors": {"weight": weights},
            "flight.safetensors": {"gradient.6": weights[:99]},
        }
        folder.write(Snapshot(rounds=rounds, state={"steps": rounds}, files=files))
    return folder


def damaged(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Every byte flipped in one bit, and the file cut before it; in ``make test`` some of them."""
    rng = np.random.default_rng(len(data))
    for at in range(0 if SOAK else int(rng.integers(97)), len(data), 1 if SOAK else 797):
        flipped = bytearray(data)
        flipped[at] ^= 1 << int(rng.integers(8))
        yield f"byte {at} flipped", bytes(flipped)
        yield f"cut to {at} bytes", data[:at]


def test_whatever_is_damaged_of_a_checkpoint_the_one_before_is_used_and_that_is_said(
    snapshots: SnapshotFolder[dict[str, int]],
) -> None:
    newest = snapshots.root / "7"
    assert sum(file.stat().st_size for file in newest.iterdir()) > 1 << 16
    for file in sorted(newest.iterdir()):
        data = file.read_bytes()
        for what, bad in damaged(data):
            file.write_bytes(bad)
            found, said = snapshots.newest()
            assert (found.rounds, found.state) == (3, {"steps": 3}), f"{file.name}, {what}"
            assert said[0].startswith("checkpoint 7 is damaged: "), f"{file.name}, {what}"
            assert "\n" not in said[0]
        file.write_bytes(data)
    assert snapshots.newest()[0].rounds == 7


def test_a_pipe_that_a_checkpoint_takes_for_an_empty_file_is_not_waited_for(
    snapshots: SnapshotFolder[dict[str, int]],
) -> None:
    state, weights = (snapshots.root / "7" / name for name in ("state.json", "m.safetensors"))
    said, found = json.loads(state.read_bytes()), list[str]()
    said["files"]["m.safetensors"] = [0, hashlib.sha256(b"").hexdigest()]
    blank = json.dumps(said | {"sha256": ""}, separators=(",", ":")).encode()
    sealed = said | {"sha256": hashlib.sha256(blank).hexdigest()}
    state.write_bytes(json.dumps(sealed, separators=(",", ":")).encode())
    weights.unlink()
    os.mkfifo(weights)
    reading = threading.Thread(target=lambda: found.extend(snapshots.newest()[1]), daemon=True)
    reading.start()
    eventually(lambda: found, "the reading")
    assert "checkpoint 7 is damaged" in found[0]
    assert "it is not a regular file" in found[0]


def test_a_checkpoint_of_another_version_is_not_called_damaged(
    snapshots: SnapshotFolder[dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqgc.runs.snapshots.SCHEMA", 99)
    with pytest.raises(StoreError) as caught:
        snapshots.newest()
    why = f"is of another version of seqgc: schema {SCHEMA}, not 99"
    assert str(caught.value).endswith(f"can be used: checkpoint 7 {why}; checkpoint 3 {why}")


@dataclass(frozen=True, kw_only=True)
class Counted:
    """A state of which a part may be left out."""

    steps: int = 0


def test_damage_that_changes_no_meaning_is_damage(tmp_path: Path) -> None:
    """A name that nobody knows is skipped, and what it named is as usual: here, as it was."""
    folder = SnapshotFolder(tmp_path, Counted)
    for rounds in (3, 7):
        folder.write(Snapshot(rounds=rounds, state=Counted(), files={}))
    state = tmp_path / "7" / "state.json"
    state.write_bytes(state.read_bytes().replace(b'"steps"', b'"stdps"'))
    found, said = SnapshotFolder(tmp_path, Counted).newest()
    assert found.rounds == 3
    assert said[0].startswith("checkpoint 7 is damaged: ")


class EndsAt:
    """Stands for ``os``: the master ends at its k-th renaming."""

    def __init__(self, call: int) -> None:
        self._left = call

    def replace(self, source: str, target: str, **folders: int) -> None:
        self._left -= 1
        if self._left < 0:
            raise InterruptedError
        os.replace(source, target, **folders)  # noqa: PTH105

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)


def test_a_checkpoint_that_is_replaced_by_one_of_as_many_rounds_is_never_gone(
    tmp_path: Path,
) -> None:
    """As where workers go on by themselves: there is much between two rounds' ends."""
    for call in range(4):
        folder = SnapshotFolder(tmp_path / str(call), dict[str, int])
        with system_calls(EndsAt(call)), suppress(InterruptedError):
            for count in (1, 2):
                files = {"m.safetensors": {"weight": torch.full((2,), float(count))}}
                folder.write(Snapshot(rounds=0, state={"count": count}, files=files))
        folder.mend()
        if call:
            assert folder.newest()[0].state == {"count": 2 if call == 3 else 1}


def flip(checkpoint: Path) -> None:
    file = max(checkpoint.glob("*.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("why", ["damaged", "of another version", "the journal does not have"])
def test_a_checkpoint_of_no_use_takes_no_place_of_the_two_and_stays_until_it_is_passed(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(folder: SnapshotFolder[dict[str, int]], rounds: int) -> None:
        files = {"m.safetensors": {"weight": torch.zeros(2)}}
        folder.write(Snapshot(rounds=rounds, state={}, files=files))

    master = partial(SnapshotFolder[dict[str, int]], tmp_path, dict[str, int])
    write(master(), 12)
    with monkeypatch.context() as other:
        if why == "of another version":
            other.setattr("seqgc.runs.snapshots.SCHEMA", SCHEMA + 1)
        write(master(), 31)
    if why == "damaged":
        flip(tmp_path / "31")
    found, said = master().newest(fits=lambda found: found.master == 2 or found.rounds == 12)
    assert found.rounds == 12
    assert why in said[0]
    again = master(master=2, since=12)
    for rounds, there in ((12, [31, 12]), (19, [31, 19, 12]), (25, [31, 25, 19])):
        write(again, rounds)
        assert again.numbers == there
    if why == "damaged":
        write(again, 31)
        assert again.numbers == [31, 25]
    write(again, 40)
    assert again.numbers == [40, 31 if why == "damaged" else 25]


def test_trained_weights_that_are_damaged_are_refused(tmp_path: Path) -> None:
    """Or they are what they were: a byte of the header may mean nothing."""
    module, file = torch.nn.Linear(60, 50 if SOAK else 5), tmp_path / "m.safetensors"
    save_checkpoint(file, module)
    data, expected = file.read_bytes(), {k: v.clone() for k, v in module.state_dict().items()}
    refused = 0
    for what, bad in damaged(data * 1):
        file.write_bytes(bad)
        try:
            load_checkpoint(file, module)
        except StoreError as error:
            refused += str(file) in str(error)
            continue
        for name, tensor in module.state_dict().items():
            assert torch.equal(tensor, expected[name]), what
    assert refused


# ---- a run ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, object]:
    """A run with its last two checkpoints, and what it has come to."""
    to = tmp_path_factory.mktemp("ended") / "run"
    run = train(begun(), crew(), run=to, config='note = "a run"\n').run
    assert len(list(run.glob("checkpoints/[0-9]*"))) == 2
    return run, outcome(run)


def resumed(run: Path, of: TrainingPlan | None = None) -> list[str]:
    """Resume a run; return what it has warned of."""
    said: list[str] = []

    def listen(seen: Seen) -> None:
        if getattr(seen, "kind", "") == "warning":
            said.append(str(seen.fields["text"]))  # type: ignore[union-attr]

    resume(run, of or begun(), crew(), observers=[listen])
    return said


def test_the_next_damage_loses_no_run_that_has_gone_on_from_an_older_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "ThreadPoolExecutor", Inline)
    run, whole = tmp_path / "run", begun(steps=6)
    of, copying = replace(whole, models=whole.models[:1]), CopyAt(run, {40})
    expected = outcome(train(of, crew(), run=run, observers=[copying]).run)
    (early,), (last, before) = copying.copies, numbers(run)
    older, _ = numbers(early)
    shutil.rmtree(run / "checkpoints" / str(before))
    shutil.copytree(early / "checkpoints" / str(older), run / "checkpoints" / str(older))
    flip(run / "checkpoints" / str(last))
    again = CopyAt(run, {45})
    resume(run, of, crew(), observers=[again])
    (killed,) = again.copies
    assert numbers(killed)[0] == last
    assert len(numbers(killed)) == 3
    flip(killed / "checkpoints" / str(numbers(killed)[1]))
    resume(killed, of, crew())
    assert outcome(killed) == expected


def numbers(run: Path) -> list[int]:
    return SnapshotFolder(run / "checkpoints", RunState).numbers


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainingPlan, Path]:
    """A run of one model that has ended, with every kind of file, and its plan."""
    whole = begun()
    of_one = replace(whole, models=whole.models[:1])
    to = tmp_path_factory.mktemp("small") / "run"
    return of_one, train(of_one, crew(), run=to, config='note = "a run"\n').run


def flips(data: bytes, seed: int) -> Iterator[tuple[int, bytes]]:
    """One bit after the other that is the other way round, and where: 10⁴, or some of them."""
    rng = np.random.default_rng(seed)
    for _ in range(10_000 if SOAK else 10):
        at, bad = int(rng.integers(len(data))), bytearray(data)
        bad[at] ^= 1 << int(rng.integers(8))
        yield at, bytes(bad)


def test_no_flipped_bit_of_any_file_of_a_checkpoint_is_taken_for_what_was_written(
    small: tuple[TrainingPlan, Path], tmp_path: Path
) -> None:
    """What `resume` begins with: where the newest is damaged the one before, or nothing."""
    for gone in (False, True):
        root = tmp_path / str(gone)
        shutil.copytree(small[1] / "checkpoints", root)
        folder = SnapshotFolder(root, RunState)
        older, newest = sorted(folder.numbers)
        if gone:
            shutil.rmtree(root / str(newest))
            newest = older
        files = sorted((root / str(newest)).iterdir())
        assert {f.name.partition(".")[2] for f in files} >= {"safetensors", "optimizer.safetensors"}
        for file in files:
            data = file.read_bytes()
            for at, bad in flips(data, seed=newest):
                file.write_bytes(bad)
                with pytest.raises(StoreError) if gone else nullcontext() as refusal:
                    found, said = folder.newest()
                    assert found.rounds == older, f"{file.name}, byte {at}"
                text = str(refusal.value) if gone else said[0]
                assert f"checkpoint {newest} is damaged: " in text, f"{file.name}, byte {at}"
            file.write_bytes(data)
        assert folder.newest()[0].rounds == newest


@pytest.mark.parametrize(
    "name", ["config.toml", "journal.jsonl", "metrics.csv", "events.jsonl", "checkpoints/m0"]
)
def test_a_run_with_a_flipped_bit_outside_its_checkpoints_is_refused_or_the_same(
    name: str, small: tuple[TrainingPlan, Path], tmp_path: Path
) -> None:
    """Losses apart that are said to be lost; ``events.jsonl`` is for people, and read by line."""
    (of_one, original), run = small, tmp_path / "run"
    name += ".safetensors" if name.startswith("checkpoints") else ""
    weights, rows = outcome(original)
    refused = 0
    for at, bad in flips((original / name).read_bytes(), seed=3):
        shutil.copytree(original, run)
        (run / name).write_bytes(bad)
        try:
            said = resumed(run, of_one)
        except SeqgcError:
            refused += 1
        else:
            assert digests(run) == weights, f"byte {at}"
            assert said or outcome(run)[1] == rows, f"byte {at}"
            if not name.endswith(("csv", "jsonl")):
                written = (original / name).read_bytes()
                assert (run / name).read_bytes() == written, f"byte {at}"
        shutil.rmtree(run)
    assert (refused > 0) == (name in ("config.toml", "journal.jsonl"))


def test_losses_that_are_lost_are_said(ended: tuple[Path, object], tmp_path: Path) -> None:
    original, _ = ended
    for cut in (0, 30, None):
        run = tmp_path / str(cut)
        shutil.copytree(original, run)
        data = (run / "metrics.csv").read_bytes()
        if cut is None:
            (run / "metrics.csv").unlink()
        else:
            (run / "metrics.csv").write_bytes(data[:cut])
        said = resumed(run)
        assert "metrics.csv was damaged after the last checkpoint" in said[0]
        assert b"\0" not in (run / "metrics.csv").read_bytes()


def test_a_checkpoint_of_rounds_that_the_journal_has_lost_is_not_used(
    ended: tuple[Path, object], tmp_path: Path
) -> None:
    original, expected = ended
    run = tmp_path / "run"
    shutil.copytree(original, run)
    newest = max(int(f.name) for f in original.glob("checkpoints/[0-9]*"))
    lines = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if b'"round":' in line or b'"begin"' in line][:newest]
    (run / "journal.jsonl").write_bytes(b"".join(kept))
    said = resumed(run)
    assert said == [f"checkpoint {newest} has rounds that the journal does not have"]
    assert outcome(run) == expected


@pytest.mark.parametrize("emptied", [False, True])
def test_a_run_that_begins_again_for_want_of_a_checkpoint_says_so(
    ended: tuple[Path, object], tmp_path: Path, emptied: bool
) -> None:
    original, expected = ended
    run = tmp_path / "run"
    shutil.copytree(original, run)
    closed = (run / "journal.jsonl").read_bytes().count(b'"round":')
    shutil.rmtree(run / "checkpoints")
    if emptied:
        (run / "checkpoints").mkdir()
    (said,) = resumed(run)
    assert said == (
        f"the journal has {closed} closed rounds, and {run / 'checkpoints'} has no checkpoint: "
        "the run begins again at its first round"
    )
    assert outcome(run) == expected
