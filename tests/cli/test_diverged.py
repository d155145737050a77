"""What `seqgc train` says of a model that diverges, and of all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqgc.cli import main
from tests.cli.kit import Out

RUN = 'scheme = "gc-rep:s=1"\nworkers = 2\nsteps = 9\n'
TAME = '[[models]]\nname = "tame"\nmodule = "mlp"\nbatch_size = 16\n'
WILD = (
    TAME.replace("tame", "wild")
    + 'optimizer = "sgd"\nlr = 1e6\nmomentum = 1e6\nweight_decay = 1e6\n'
)


def test_its_name_is_told_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(RUN + TAME + WILD)
    assert main(["train", "run.toml", "--run", "r"]) == 1
    out, err = capsys.readouterr()
    assert "wild diverged after step" in err
    (wild,) = (line for line in out.splitlines() if line.startswith("wild"))
    assert "after 2 steps: its results are not finite" in wild
    assert err.splitlines()[-1].startswith("seqgc: wild diverged after 2 steps: its results are")
    assert err.splitlines()[-1].endswith("; the run: r")
    (tame,) = (line for line in out.splitlines() if line.startswith("tame"))
    assert tame.split()[1] == "loss"


def test_on_failure_stop_ends_the_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(RUN + TAME + WILD)
    assert main(["train", "run.toml", "--run", "r", "--on-failure", "stop"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith("seqgc: wild diverged after 2 steps: its results are")
    assert err.splitlines()[-1].endswith("; the run: r")
    steps = [line.split(",")[2:4] for line in Path("r/metrics.csv").read_text().splitlines()[1:]]
    assert ["tame", "1"] in steps
    assert ["tame", "8"] not in steps, "the last of nine"


def test_a_run_of_nothing_else_ends_with_one_line_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(RUN + WILD)
    assert main(["train", "run.toml", "--run", "r"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("seqgc: wild diverged after")
    assert last.endswith("; the run: r")


SPOILT = """
import torch
from torch.utils.data import TensorDataset

def points(count, wrong):
    x, y = torch.ones(count, 1, 8, 8), torch.zeros(count, dtype=torch.long)
    y[wrong] = 10  # the class of none
    return TensorDataset(x, y)

def data():
    return points(100, []), points(100, [61])
"""


def test_a_model_whose_test_data_are_spoilt_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("own_spoilt.py").write_text(SPOILT)
    spoilt = TAME.replace("tame", "spoilt") + 'data = "own_spoilt:data"\n'
    Path("run.toml").write_text(RUN + TAME + spoilt)
    for line in (["train", "run.toml", "--run", "r"], ["resume", "r"]):
        assert main(line) == 1
        out, err = capsys.readouterr()
        last = err.splitlines()[-1]
        assert last.startswith("seqgc: spoilt could not be evaluated: IndexError: Target 10 is")
        assert last.endswith("; the run: r")
        (tame,) = (line for line in out.splitlines() if line.startswith("tame"))
        assert tame.split()[1] == "loss"
        assert "could not be evaluated" in out
