"""A disk that is full, at any fill level: a run that can be gone on with, or none was begun."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import SOAK
from tests.masters.kit import Nursery, outcome
from tests.masters.test_killed import LINE

LEVELS = 50 if SOAK else 2
DISK_KB = 4096
MOST_KB = 400
"""More than such a run needs."""
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
        pytest.skip("a disk cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_whatever_room_there_is_nothing_is_lost(
    nursery: Nursery, disk: Path, tmp_path: Path
) -> None:
    line = [*LINE, "--scheme", "gc-rep:s=1", "--checkpoint-every-s", "0.05"]
    home = tmp_path / "home"
    home.mkdir()
    assert nursery.master(*line, folder=home).status == 0
    expected = outcome(home / "run")
    run = disk / "run"
    line[line.index("run")] = str(run)
    came: dict[str, int] = {}
    for level in range(LEVELS):
        filler = disk / "filler"
        room_kb = level * MOST_KB // LEVELS
        filler.write_bytes(bytes((DISK_KB - room_kb) << 10))
        first = nursery.master(*line, folder=home)
        assert not first.left, first
        assert "Traceback" not in first.said, f"{room_kb} KB: {first.said}"
        last = first.said.splitlines()[-1]
        filler.unlink()
        if first.status == 0:
            kind = "ended"
        else:
            kind = "resumed"
            assert last.startswith("seqgc: "), f"{room_kb} KB: {first.said}"
            if not (run / "config.toml").exists():
                kind = "none begun"
                assert " rounds, " not in first.said
            else:
                after = nursery.master("resume", str(run), folder=home)
                assert after.status == 0, f"{room_kb} KB: {after.said}\n{first.said}"
        came[kind] = came.get(kind, 0) + 1
        if kind == "resumed":
            assert outcome(run) == expected, f"{room_kb} KB: {first.said}"
        if kind == "ended":
            trained = {key: value for key, value in expected.items() if key.startswith("trained")}
            assert trained.items() <= outcome(run).items(), f"{room_kb} KB: {first.said}"
        subprocess.run(["rm", "-rf", str(run)], check=True)
    print(came)
    assert "none begun" in came
    assert len(came) > 1
