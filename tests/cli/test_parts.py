"""Runs whose workers go on by themselves, from the command line: trained, shown, reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seqgc import read_run
from seqgc.cli import main
from tests.cli.kit import Out

RUN = """
scheme = "ssp:slack=1"
jobs_per_round = 1
workers = 2
steps = 3
apply = "clock"
refresh = "late"
[[models]]
name = "a"
module = "mlp"
[[models]]
name = "b"
module = "mlp"
seed = 1
"""


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(RUN)


def test_slack_trains_on_processes_and_functions_alike(capsys: Out) -> None:
    """Read as late as may be, the losses are the same to the last digit."""
    losses = []
    for backend in ("local", "lambda-local"):
        line = ["train", "run.toml", "--backend", backend, "--run", backend, "--json"]
        assert main(line) == 0
        facts = json.loads(capsys.readouterr().out)
        assert (facts["scheme"], facts["jobs"], facts["rounds"]) == ("ssp:slack=1", 6, 6)
        run = read_run(backend)
        assert (run.outcome, run.gaps) == ("finished", ())
        losses.append([row["loss"] for row in facts["models"]])
    assert losses[0] == losses[1]
    assert main(["resume", "local", "--json"]) == 0  # a run that is over is over
    assert [row["loss"] for row in json.loads(capsys.readouterr().out)["models"]] == losses[0]
    assert main(["report", "local", "-o", "page.html"]) == 0
    assert "ssp:slack=1" in Path("page.html").read_text()


def test_shards_are_trained_and_their_progress_is_told(capsys: Out) -> None:
    line = ["train", "run.toml", "--scheme", "asp-dds:M=2", "--optimizer", "sgd", "--run", "dds"]
    assert main([*line, "--apply", "update", "--refresh", "always", "--staleness-aware"]) == 0
    out, err = capsys.readouterr()
    assert "6 in 6 rounds" in " ".join(out.split())
    assert "asp-dds:M=2: 6 of 6 rounds" in err
