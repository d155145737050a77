"""The commands of the page on pipelines do what it says, one after the other."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from seqgc.cli import main
from tests.test_commands_in_docs import ROOT, lines

PAGE = ROOT / "docs" / "pipelines.md"


def test_the_commands_of_the_page_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert doctest.testfile(str(PAGE), module_relative=False).failed == 0
    shown = {}
    for words in lines(PAGE):
        assert main(words[1:]) == 0, " ".join(words)
        shown[" ".join(words)] = capsys.readouterr().out
    plans = [out.split()[1] for line, out in shown.items() if "plan vgg16.json" in line]
    assert plans[:2] == ["3-1", "15-1"]
