"""The exit status says how a verb ended; `--help` and the documentation have the same table."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from seqgc.cli import main
from seqgc.deploy import DeployError
from seqgc.errors import (
    BudgetError,
    CallbackError,
    DamageError,
    ModelError,
    ParameterError,
    ProfileError,
    StoreError,
    WorkerError,
)
from tests.cli.inside import MEANINGS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


def stop() -> Exception:
    os.kill(os.getpid(), signal.SIGTERM)
    return AssertionError("the signal is lost")


@pytest.mark.parametrize(
    ("fails", "status"),
    [
        (lambda: WorkerError("gone"), 1),
        (lambda: ModelError({"a": "diverged"}), 1),
        (lambda: StoreError("unreadable"), 1),
        (lambda: CallbackError("Logger.on_step", "raised OSError: no such logger"), 1),
        (lambda: DeployError("refused"), 1),
        (lambda: OSError(28, "No space left on device"), 1),
        (MemoryError, 1),
        (SystemExit, 1),  # a user's own code has ended the program, and all is not done
        (lambda: SystemExit(4), 1),
        (lambda: BaseException("of another kind"), 1),
        (KeyboardInterrupt, 130),
        (lambda: ParameterError("n", "must be >= 1", 0), 2),
        (lambda: ProfileError("no profile"), 2),
        (lambda: DamageError("damaged"), 2),
        (lambda: BudgetError("stopped", round=3, spent_usd=1.0), 3),
        (stop, 143),
    ],
)
def test_each_way_to_end_has_its_status(
    monkeypatch: pytest.MonkeyPatch, fails: Callable[[], BaseException], status: int
) -> None:
    own = typer.Typer()

    @own.command()
    def one() -> None:
        raise fails()

    monkeypatch.setattr("seqgc.cli._main.command", lambda: typer.main.get_command(own))
    assert main(["--"]) == status
    known = {int(word) for words in MEANINGS for word in words.split(", ")}
    assert status in known


def test_help_and_documentation_have_the_same_table(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ([], ["train"], ["resume"]):
        assert main([*verb, "--help"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        for status, meaning in MEANINGS.items():
            assert f"{status}: {meaning}" in shown
    rows = re.findall(r"^\| ([\d, ]+) \| (.+) \|$", PAGE.read_text(), flags=re.MULTILINE)
    assert dict(rows) == MEANINGS
