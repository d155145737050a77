"""How the experiments start: what reaches ``seqgc train``, and tables that go on."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.functions import data_folder, start
from experiments.results import Table

FIELDS = ("family", "s", "error")


def make_up(folder: Path) -> None:
    (folder / "images").write_text("made up")


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], list[str]]]:
    """Stand in for ``seqgc``: keep its arguments, and the data that it would find."""
    seen = []

    def seqgc(arguments: list[str]) -> int:
        folder = data_folder()
        found = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        seen.append((arguments, found))
        return 7

    monkeypatch.setattr("seqgc.cli.main", seqgc)
    monkeypatch.setenv("SEQGC_FACTORIES", "")
    monkeypatch.setenv("SEQGC_DATA", "nowhere")
    return seen


def started(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["run", *arguments])
    return start(None, Path("of/paper.toml"), factories="some.factories", make_up=make_up)


def test_the_paper_s_configuration_trains_on_what_is_there(
    monkeypatch: pytest.MonkeyPatch, trained: list[object]
) -> None:
    assert started(monkeypatch, "--dry-run", "--max-usd", "5") == 7
    assert trained == [(["train", "of/paper.toml", "--dry-run", "--max-usd", "5"], [])]
    assert os.environ["SEQGC_FACTORIES"] == "some.factories"
    assert data_folder() == Path("nowhere")


def test_small_trains_on_images_that_are_made_up_and_removed(
    monkeypatch: pytest.MonkeyPatch, trained: list[object]
) -> None:
    assert started(monkeypatch, "--json", "--small") == 7
    assert trained == [(["train", "of/small.toml", "--json"], ["images"])]
    assert os.environ["SEQGC_FACTORIES"] == "some.factories"
    assert not data_folder().exists()


def test_data_lies_on_the_shared_file_system_unless_said_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SEQGC_DATA", raising=False)
    monkeypatch.setenv("SEQGC_MOUNT", "/shared")
    assert data_folder() == Path("/shared/data")
    monkeypatch.setenv("SEQGC_DATA", "/elsewhere")
    assert data_folder() == Path("/elsewhere")


def test_a_table_goes_on_where_it_was_interrupted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table.csv"

    def interrupted() -> Iterator[dict[str, object]]:
        yield {"family": "rep", "s": 3, "error": "0.2"}
        raise KeyboardInterrupt

    first = Table(path, FIELDS, keys=2)
    first.append([{"family": "rep", "s": 1, "error": "0.1"}])
    with pytest.raises(KeyboardInterrupt):
        first.append(interrupted())
    again = Table(path, FIELDS, keys=2)
    assert ("rep", 1) in again
    assert ("rep", 3) not in again, "a case is there as a whole, or not at all"
    again.append([{"family": "rep", "s": 3, "error": "0.3"}])
    assert path.read_text().split() == ["family,s,error", "rep,1,0.1", "rep,3,0.3"]
    assert capsys.readouterr().out.splitlines() == ["rep, 1, 0.1", "rep, 3, 0.3"]
