"""``seqgc resume RUN --workers N``: a run continues on other workers, and remembers them."""

from __future__ import annotations

import signal
import tomllib
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from seqgc.cli import _train, main
from seqgc.config._tables import RunConfig
from tests.cli.kit import Out, events, signalled, weights
from tests.kit import SOAK, interrupts

LINE = ["--models", "2", "--module", "mlp", "--batch-size", "32", "--steps", "12"]
LINE += ["--precision", "float64", "--jobs-per-round", "1"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def interrupted(*words: str, after: int) -> None:
    with signalled(signal.SIGTERM, after=after), interrupts():
        assert main([*words]) == 143


def configured() -> dict[str, object]:
    return tomllib.loads(Path("r/config.toml").read_text())


@pytest.mark.parametrize(
    ("scheme", "functions"),
    [("gc-rep:s=1", ["-n", "6"]), *([("deal", ["-n", "3", "--resident"])] if SOAK else [])],
)
def test_a_run_on_processes_ends_on_other_processes_and_on_functions(
    scheme: str, functions: list[str], capsys: Out
) -> None:
    assert main(["train", *LINE, "--scheme", "uncoded", "-n", "2", "--run", "whole"]) == 0
    interrupted("train", *LINE, "--scheme", scheme, "-n", "4", "--run", "r", after=5)
    assert main(["workers", "r", "1"]) == 0
    interrupted("resume", "r", "--workers", "2", after=11)
    assert configured()["workers"] == 2
    assert not Path("r/workers").exists(), "how many of four should work"
    assert [each for each in events("r") if each["event"] == "workers"] == [], "1 was for four"
    interrupted("resume", "r", after=15)
    capsys.readouterr()
    assert main(["resume", "r", "--backend", "lambda-local", *functions]) == 0
    assert "had 2 workers, and continues with" in capsys.readouterr().err
    assert (configured()["backend"], configured()["workers"]) == ("lambda-local", int(functions[1]))
    np.testing.assert_allclose(weights("r"), weights("whole"), rtol=0, atol=1e-12)
    for verb in (["report", "r", "-o", "r.html"], ["cost", "r"]):
        assert main(verb) == 0


def test_a_number_that_the_code_cannot_have_changes_nothing(capsys: Out) -> None:
    interrupted("train", *LINE, "--scheme", "gc-rep:s=1", "-n", "4", "--run", "r", after=5)
    before = {path: path.read_bytes() for path in Path("r").rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["resume", "r", "--workers", "5"]) == 2
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "`" in each]
    assert line.startswith("seqgc: `s` must ")
    assert "n=5" in line
    assert {path: path.read_bytes() for path in Path("r").rglob("*") if path.is_file()} == before
    assert main(["resume", "r"]) == 0
    assert main(["resume", "r", "-n", "6"]) == 2
    assert "the run is complete" in capsys.readouterr().err
    assert configured()["workers"] == 4


def test_a_restarted_master_keeps_the_workers_to_which_the_run_has_moved(capsys: Out) -> None:
    line = ["train", *LINE, "--scheme", "gc-rep:s=1", "--run", "r"]
    interrupted(*line, "-n", "4", after=5)
    interrupted("resume", "r", "--backend", "lambda-local", "--resident", "-n", "2", after=9)
    capsys.readouterr()
    for option, text in (("--backend=local", "must be lambda-local"), ("--workers=4", "must be 2")):
        assert main([*line, "--or-resume", option]) == 2
        assert f"{text}, as in this run" in capsys.readouterr().err
    make, used = _train.make_workers, list[RunConfig]()

    def record(settings: RunConfig, **options: Any) -> object:
        used.append(settings)
        return make(settings, **options)

    with mock.patch.object(_train, "make_workers", record):
        assert main([*line, "--or-resume"]) == 0
    assert (used[0].backend, used[0].workers, used[0].function.resident) == (
        "lambda-local", 2, True
    )  # fmt: skip
