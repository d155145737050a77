"""A disk that is full, at any fill level or from any round on: the last checkpoint is there.

Or the run has said at its start that there is no room for it; or none was begun. The optimizers
have state, which checkpoint 0 is without.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from seqgc.training.journal import read_journal
from tests.kit import SOAK
from tests.masters.kit import End, Nursery, outcome
from tests.masters.test_killed import LINE

DISK_KB = 4096
ROOMS_KB = range(0, 800, 16) if SOAK else (0, 80, 300, 530)
"""From none to more than such a run needs."""
ROUNDS = range(8, 58) if SOAK else (20,)
NO_ROOM = "no room for the last checkpoint"
pytestmark = pytest.mark.timeout(0 if SOAK else 180)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own; who may not mount one cannot run the test."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_KB}k", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a disk cannot be mounted here: only root may, and not in every container")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


class Course:
    """A run on a small disk, as often as one likes, and what it comes to where there is room."""

    def __init__(self, nursery: Nursery, disk: Path, home: Path) -> None:
        self.nursery, self.filler, self.home = nursery, disk / "filler", home
        self.run = disk / "run"
        self.line = [*LINE, "--scheme", "gc-rep:s=1", "--optimizer", "adam"]
        self.line[self.line.index("toy")] = "wide"
        self.line[self.line.index("--steps") + 1] = "40"
        home.mkdir()
        end = nursery.master(*self.line, folder=home)
        assert end.status == 0, end.said
        self.expected = outcome(home / "run")
        self.line[self.line.index("run")] = str(self.run)

    def fill(self, *, leave_kb: int = 0) -> None:
        """Fill the disk at one stroke."""
        with self.filler.open("wb") as file:
            while True:
                about = os.fstatvfs(file.fileno())
                free = about.f_bavail * about.f_frsize - (leave_kb << 10)
                with suppress(OSError):  # the run has taken some of it
                    if free > 0:
                        os.posix_fallocate(file.fileno(), 0, free)
                    return

    def fill_at(self, round: int, *, ended: threading.Event) -> None:
        """Fill the disk once so many rounds are in the journal."""
        journal = self.run / "journal.jsonl"
        while not ended.wait(0.001):
            if journal.exists() and journal.read_bytes().count(b'"kind":"round"') >= round:
                self.fill()
                return

    def judge(self, end: End) -> str:
        """Return what came of a run, and remove it; refuse what should not have come."""
        assert not end.left, end
        assert "Traceback" not in end.said, end.said
        last = end.said.splitlines()[-1]
        self.filler.unlink()
        if end.status and not (self.run / "config.toml").exists():
            assert last.startswith("seqgc: "), end.said
            assert str(self.run) in last, "it names a file"
            assert " rounds, " not in end.said
            kind = "none begun"
        elif end.status:
            kind = self._stopped(end, last)
            after = self.nursery.master("resume", str(self.run), folder=self.home)
            assert after.status == 0, f"{after.said}\n{end.said}"
            assert outcome(self.run) == self.expected, end.said
        else:
            kind = "ended"
            trained = {k: v for k, v in self.expected.items() if k.startswith("trained")}
            assert trained.items() <= outcome(self.run).items(), end.said
        assert not list(self.run.glob("checkpoints/.*")), "nothing that is not whole is left"
        subprocess.run(["rm", "-rf", str(self.run)], check=True)
        return kind

    def _stopped(self, end: End, last: str) -> str:
        assert last.startswith((f"seqgc: {self.run}/", f"seqgc: the journal {self.run}/")), end.said
        assert not list(self.run.glob("checkpoints/.*")), end.said
        entries, _ = read_journal(self.run / "journal.jsonl")
        closed = sum(entry.kind == "round" for entry in entries)
        if NO_ROOM in end.said:
            return "warned"
        if not closed:
            assert "; the last checkpoint: none yet; go on with: seqgc resume" in last, end.said
            return "refused"
        newest = self.run / "checkpoints" / str(closed)
        assert f"; the last checkpoint: {newest}; go on with: seqgc resume" in last, end.said
        assert (newest / "state.json").exists(), end.said
        trained = {file.name for file in self.run.glob("checkpoints/*.safetensors")}
        assert trained == {"model-0.safetensors", "model-1.safetensors"}, end.said
        return "kept"


def test_whatever_room_there_is_nothing_is_lost(
    nursery: Nursery, disk: Path, tmp_path: Path
) -> None:
    course = Course(nursery, disk, tmp_path / "home")
    came: dict[str, list[int]] = {}
    for room_kb in ROOMS_KB:
        course.fill(leave_kb=room_kb)
        kind = course.judge(nursery.master(*course.line, folder=course.home))
        came.setdefault(kind, []).append(room_kb)
    print(came)
    assert "none begun" in came
    assert "warned" in came
    assert "kept" in came


def test_whenever_the_disk_is_filled_the_last_checkpoint_is_there(
    nursery: Nursery, disk: Path, tmp_path: Path
) -> None:
    course = Course(nursery, disk, tmp_path / "home")
    for round in ROUNDS:
        ended = threading.Event()
        others = threading.Thread(target=course.fill_at, args=(round,), kwargs={"ended": ended})
        others.start()
        end = nursery.master(*course.line, folder=course.home)
        ended.set()
        others.join()
        assert course.judge(end) == "kept", f"round {round}: {end.said}"
