"""Real masters are killed, and their runs go on: what ``seqgc resume`` is for.

In ``make test`` a few instants; with ``SEQGC_SOAK=1`` a hundred of each kind.
"""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from seqgc.cli import main
from tests.kit import SOAK, interrupts

INSTANTS = 100 if SOAK else 1
STEPS = 25
LINE = ["--models", "2", "--module", "mlp", "--batch-size", "32", "--steps", str(STEPS), "-n", "4"]
KINDS = {
    "local": ["--backend", "local", "--scheme", "gc-rep:s=1"],
    "lambda-local": ["--backend", "lambda-local", "--scheme", "uncoded"],
}


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ended_at(round: int, run: str, options: list[str], number: signal.Signals) -> tuple[int, str]:
    """Train, end the master by a signal once a round has closed; return its status and last line.

    It is sent twice: a second one must change nothing.
    """
    command = [sys.executable, "-m", "seqgc", "train", *LINE, *options, "--run", run]
    with interrupts():
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith(f"round {round}:"):
                break
        process.send_signal(number)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    return process.returncode, err.splitlines()[-1] if err else ""


def outcome(run: str) -> tuple[dict[str, bytes], list[list[str]]]:
    """Return the trained weights and every job's losses, without the times."""
    weights = {
        f"{path.name} {name}": tensor.tobytes()
        for path in sorted(Path(run, "checkpoints").glob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }
    rows = list(csv.reader(Path(run, "metrics.csv").read_text().splitlines()))
    return weights, sorted(row[1:] for row in rows)


@pytest.mark.parametrize("kind", KINDS if SOAK else ["local"])  # tests/masters has more
def test_a_master_that_is_killed_is_replaced_to_the_last_bit(kind: str) -> None:
    options = KINDS[kind]
    assert main(["train", *LINE, *options, "--run", "whole"]) == 0
    expected = outcome("whole")
    assert len(expected[1]) == 1 + 2 * STEPS
    rng = np.random.default_rng(0)
    for instant in range(INSTANTS):
        run = f"killed-{instant}"
        every = ["--checkpoint-every-s", str(rng.choice([0.05, 60.0]))]
        status, _ = ended_at(int(rng.integers(2, 40)), run, [*options, *every], signal.SIGKILL)
        assert status == -signal.SIGKILL
        assert main(["resume", run]) == 0
        assert outcome(run) == expected


@pytest.mark.parametrize(
    ("number", "status", "said"),
    [
        (signal.SIGTERM, 143, "ended by SIGTERM"),
        *([(signal.SIGHUP, 129, "ended by SIGHUP")] if SOAK else []),  # as in tests/masters
    ],
)
def test_signals_end_a_run_that_can_go_on(number: signal.Signals, status: int, said: str) -> None:
    found, last = ended_at(5, "r", KINDS["local"], number)
    assert found == status
    assert last.startswith(f"seqgc: {said}; ")
    assert last.endswith("go on with: seqgc resume r")
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


def test_what_nobody_can_read_does_not_end_a_run_or_spoil_its_end() -> None:
    few = [*LINE, *KINDS["local"], "--steps", "3", "--run"]
    command = [sys.executable, "-m", "seqgc", "train", *few]
    reader, gone = os.pipe()
    os.close(reader)
    with Path("/dev/full").open("w") as full:
        one = subprocess.run([*command, "full"], check=False, stdout=gone, stderr=full)
        other = subprocess.run(
            [*command, "pipe", "--json"], check=False, stdout=subprocess.PIPE, stderr=gone
        )
    os.close(gone)
    assert (one.returncode, other.returncode) == (0, 0)
    assert b'"jobs": 6' in other.stdout
    assert len(outcome("full")[1]) == len(outcome("pipe")[1]) == 1 + 2 * 3


@pytest.mark.parametrize(("flags", "status"), [([], 0), (["--json"], 1)])
def test_a_result_that_cannot_be_printed_is_missed_by_who_asked_for_it(
    flags: list[str], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stdout", full)
        found = main(["train", *LINE, *KINDS["local"], "--steps", "1", "--run", "r", *flags])
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())  # what is left goes nowhere
    assert found == status
    assert len(outcome("r")[1]) == 1 + 2
