"""Temporary folders outlive their process for a while, and never go while it lives."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from seqgc._durable import mark_in_use, temporary_folder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_goes_once_nobody_holds_its_mark(temporary: Path) -> None:
    names = "seqgc-shared-1", "seqgc-dask-1", "pymp-1"
    marks = []
    for name in names:  # of three masters: a lock belongs to a descriptor, not to a process number
        (temporary / name).mkdir()
        marks.append(mark_in_use(temporary / name))
    (temporary / "not-ours").mkdir()
    with temporary_folder("seqgc-tls-") as folder:
        there = {path.name for path in temporary.iterdir()}
        assert there == {*names, "not-ours", folder.name}, "all of them are in use"
        os.close(marks[0])  # as the system does with what a killed process held
        os.close(marks[2])
        with temporary_folder("seqgc-tls-") as other:
            there = {path.name for path in temporary.iterdir()}
            assert there == {names[1], "not-ours", folder.name, other.name}
    os.close(marks[1])
