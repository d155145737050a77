"""A run that is ended from outside leaves no temporary folder; one that is killed, not for long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

LONG = ["--scheme", "uncoded", "-n", "2", "--models", "1", "--steps", "100000", "--module", "mlp"]
LAMBDA = ["--backend", "lambda-local"]


def start(folder: Path, run: str) -> subprocess.Popen[str]:
    """Start a run, and return once its first round is over."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "seqgc", "train", *LONG, *LAMBDA, "--run", run]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=os.environ | {"TMPDIR": str(temporary)},
        start_new_session=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("round 0:"):
            return process
    pytest.fail("the run did not begin")


def end(process: subprocess.Popen[str], number: signal.Signals) -> None:
    process.send_signal(number)
    process.communicate(timeout=60)


def left(folder: Path) -> list[str]:
    give_up_at = time.monotonic() + 20
    while (names := [path.name for path in (folder / "tmp").iterdir()]) and (
        time.monotonic() < give_up_at
    ):
        time.sleep(0.05)
    return names


def test_nothing_temporary_is_left_for_long(tmp_path: Path) -> None:
    killed = start(tmp_path, "killed")
    end(killed, signal.SIGKILL)
    assert any((tmp_path / "tmp").iterdir()), "there is nothing to clean up after"
    terminated = start(tmp_path, "terminated")
    end(terminated, signal.SIGTERM)
    assert terminated.returncode == 128 + signal.SIGTERM
    assert left(tmp_path) == []
    assert sorted(path.name for path in (tmp_path / "terminated" / "checkpoints").iterdir()) == [
        "model-0.safetensors"
    ]
