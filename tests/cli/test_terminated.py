"""A run that is ended from outside leaves no temporary folder; one that is killed, not for long."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from seqgc.testing import eventually
from tests.cli.kit import closed_rounds

LONG = ["--scheme", "uncoded", "-n", "2", "--models", "1", "--steps", "100000", "--module", "mlp"]
LAMBDA = ["--backend", "lambda-local"]


@contextmanager
def started(folder: Path, run: str) -> Iterator[subprocess.Popen[str]]:
    """A run whose first round is over; it has ended when the block has."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "seqgc", "train", *LONG, *LAMBDA, "--run", run]
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=os.environ | {"TMPDIR": str(temporary)},
        start_new_session=True,
    ) as process:
        try:
            eventually(lambda: closed_rounds(folder / run), "the first round")
            yield process
        finally:
            process.kill()


def end(process: subprocess.Popen[str], number: signal.Signals) -> str:
    """Send a signal, and return what was said."""
    process.send_signal(number)
    return process.communicate(timeout=60)[1]


def test_nothing_temporary_is_left_for_long(tmp_path: Path) -> None:
    with started(tmp_path, "killed") as killed:
        end(killed, signal.SIGKILL)
    assert any((tmp_path / "tmp").iterdir()), "there is nothing to clean up after"
    with started(tmp_path, "terminated") as terminated:
        said = end(terminated, signal.SIGTERM)
    assert said.splitlines()[-1].endswith("continue with: seqgc resume terminated")
    assert terminated.returncode == 128 + signal.SIGTERM
    eventually(lambda: not any((tmp_path / "tmp").iterdir()), "tidying")
    trained = (tmp_path / "terminated" / "checkpoints").glob("*.safetensors")
    assert [path.name for path in trained] == ["model-0.safetensors"]
