"""What ends a run and what does not, and ``seqgc resume``; tests/masters kills real masters."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from seqgc.cli import main
from tests.cli.kit import signalled
from tests.kit import interrupts

STEPS = 25
LINE = ["--models", "2", "--module", "mlp", "--batch-size", "32", "--steps", str(STEPS), "-n", "4"]
LOCAL = ["--backend", "local", "--scheme", "gc-rep:s=1"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def outcome(run: str) -> tuple[dict[str, bytes], list[list[str]]]:
    """Return the trained weights and every job's losses, without the times."""
    weights = {
        f"{path.name} {name}": tensor.tobytes()
        for path in sorted(Path(run, "checkpoints").glob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }
    rows = list(csv.reader(Path(run, "metrics.csv").read_text().splitlines()))
    return weights, sorted(row[1:] for row in rows)


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_signals_end_a_run_that_can_go_on(
    name: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with signalled(signal.Signals[name], after=5), interrupts():
        assert main(["train", *LINE, *LOCAL, "--run", "r"]) == status
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"seqgc: ended by {name}; ")
    assert last.endswith("continue with: seqgc resume r")
    newest = max(int(path.name) for path in Path("r/checkpoints").glob("[0-9]*"))
    assert newest >= 5, "a last checkpoint"
    assert main(["resume", "r"]) == 0
    assert len(outcome("r")[1]) == 1 + 2 * STEPS


def test_what_cannot_be_resumed_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    for run in ("absent", "empty"):
        assert main(["resume", run]) == 2
        err = capsys.readouterr().err
        assert err.startswith("seqgc: `run` must be the folder of a run (config.toml: No such file")
        assert f"got '{run}'" in err
        assert err.count("\n") == 1


def test_a_reader_who_has_gone_does_not_end_a_run_or_spoil_its_end() -> None:
    reader, gone = os.pipe()
    os.close(reader)
    words = ["train", *LINE, *LOCAL, "--steps", "3", "--run", "lost"]
    command = [sys.executable, "-m", "seqgc", *words]
    ended = subprocess.run(command, check=False, stdout=gone, stderr=subprocess.PIPE)
    os.close(gone)
    assert (ended.returncode, b"Traceback" in ended.stderr) == (0, False)
    assert len(outcome("lost")[1]) == 1 + 2 * 3


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_closed_standard_streams_are_refused(closed: str) -> None:
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "seqgc", "--version"]
    ended = subprocess.run(command, check=False, capture_output=True)
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert closed == "2>&-" or b"must be open" in ended.stderr


@contextmanager
def full_stdout() -> Iterator[None]:
    """A standard output that takes nothing."""
    with Path("/dev/full").open("w") as full, redirect_stdout(full):
        yield
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())  # what is left goes nowhere


@pytest.mark.parametrize(("flags", "status"), [([], 0), (["--json"], 1)])
def test_a_result_that_cannot_be_printed_is_missed_by_who_asked_for_it(
    flags: list[str], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with full_stdout():
        assert main(["train", *LINE, *LOCAL, "--steps", "1", "--run", "r", *flags]) == status
    assert len(outcome("r")[1]) == 1 + 2
    said = capsys.readouterr().err.splitlines()[-1]
    line = "seqgc: standard output, or a file: No space left on device; the run: r"
    assert (said == line) == bool(status)


def test_a_profile_that_is_written_need_not_be_described() -> None:
    line = ["-n", "2", "--rounds", "2", "--loads", "0,1", "--module", "mlp", "-o", "p.npz"]
    with full_stdout():
        assert main(["profile", *line]) == 0
    with full_stdout():
        assert main(["profile", "stats", "p.npz"]) == 1, "that is all it is for"
