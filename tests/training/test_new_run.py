"""A run's folder is there with all that a run must have, or not there."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from seqgc.cli import main
from seqgc.config import _tables
from seqgc.errors import ParameterError
from seqgc.runs.folder import RunDirectory, remove_unbegun
from tests.kit import system_calls

UNNAMED = ["train", "--models", "1", "--module", "mlp", "--steps", "1", "--backend", "local"]
TRAIN = [*UNNAMED, "-n", "2", "--scheme", "uncoded"]


class FailsAt:
    """Stands for ``os``: its k-th call fails, and before each ``look`` looks."""

    def __init__(self, call: int, *, look: Callable[[], object]) -> None:
        self._left, self._look = call, look

    def __getattr__(self, name: str) -> object:
        self._look()
        self._left -= 1
        if self._left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return getattr(os, name)


def test_a_new_folder_is_whole_or_not_there_and_if_it_fails_nothing_is_left(
    tmp_path: Path,
) -> None:
    """Were the master killed instead of looking around, that would be what it leaves."""
    runs = tmp_path / "runs"
    runs.mkdir()

    def look() -> None:
        if (runs / "one").exists():
            RunDirectory(runs / "one", reopened=True)

    said: list[str] = []
    for call in range(20):
        with system_calls(FailsAt(call, look=look)):
            try:
                run = RunDirectory(runs / "one", config="steps = 1")
                break
            except (OSError, ParameterError) as error:
                said.append(f"{error} {getattr(error, 'filename', '')}")
        if (runs / "one").exists():  # its name was not on the disk yet
            assert RunDirectory(runs / "one", reopened=True).config == "steps = 1"
            (runs / "one").rename(tmp_path / f"{call}")
        assert list(runs.iterdir()) == []
    assert any(text.endswith(f" {runs / 'one' / 'config.toml'}") for text in said)
    assert not any(".part" in text for text in said)
    assert sorted(path.name for path in runs.iterdir()) == ["one"]
    assert run.config == "steps = 1"


@pytest.mark.parametrize("names", [[], ["checkpoints"]])
def test_where_nothing_has_begun_a_restarted_master_begins(
    names: list[str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    for name in ["", *names]:
        Path(run, name).mkdir()
    line = [*TRAIN, "--run", str(run)]
    assert main(line) == 2, "only who says so"
    assert main([*line, "--or-resume"]) == 0
    assert (run / "config.toml").exists()


def test_a_restarted_master_keeps_the_workers_although_it_has_other_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = [*UNNAMED, "--run", str(tmp_path / "run"), "--or-resume"]
    for cores in (2, 1):
        monkeypatch.setattr(_tables, "usable_cores", lambda cores=cores: cores)
        assert main(line) == 0
    assert main([*line, "--workers", "1"]) == 2


@pytest.mark.parametrize("name", ["a" * 300, "absent/.."])
def test_a_name_that_no_folder_can_have_is_refused_before_anything_is_started(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ([], ["--or-resume"]):
        assert main([*TRAIN, "--run", str(tmp_path / name), *more]) == 2
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith("seqgc: `run` must be a folder that can be made")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["checkpoints/12/state.json", "notes.txt", "checkpoints"])
def test_a_folder_that_holds_anything_is_left_alone(name: str, tmp_path: Path) -> None:
    file = tmp_path / "run" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    remove_unbegun(tmp_path / "run")
    remove_unbegun(file)
    remove_unbegun(tmp_path / "absent")
    assert file.read_text() == "mine"
