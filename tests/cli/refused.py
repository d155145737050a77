"""What all refusals have in common."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqgc.cli import main

__all__ = ["refused"]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line that refuses a command line: exit status 2, and nothing else happens.

    The working directory must be the test's own: nothing may change in it.
    """
    before = _files()
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert _files() == before
    return err


def _files() -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in Path().rglob("*")}
