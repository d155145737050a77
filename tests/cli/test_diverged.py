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
    assert main(["train", "run.toml", "--run", "r"]) == 0
    out, err = capsys.readouterr()
    assert "wild diverged after step" in err
    (wild,) = (line for line in out.splitlines() if line.startswith("wild"))
    assert "after 2 steps: its results are not finite" in wild
    assert "tame diverged" not in err


def test_a_run_of_nothing_else_ends_with_one_line_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(RUN + WILD)
    assert main(["train", "run.toml", "--run", "r"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("seqgc: wild diverged after")
