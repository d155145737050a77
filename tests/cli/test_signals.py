"""A signal ends a verb in good order, a second one at once."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys

import pytest
import typer

from seqgc.cli import main
from seqgc.cli.progress import run_progress
from seqgc.errors import one_line
from tests.cli.inside import busy
from tests.kit import interrupts

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture
def verbs(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Verbs of a test's own: ``seqgc NAME`` calls what is here."""
    chosen: dict[str, object] = {}
    monkeypatch.setattr("seqgc.cli._main.command", lambda: typer.main.get_command(own))
    own = typer.Typer()

    @own.command()
    def one() -> None:
        chosen["do"]()  # type: ignore[operator]

    @own.command()
    def other() -> None:
        """One command alone has no name."""

    return chosen


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_a_verb_and_its_block_is_cleaned_up(
    number: signal.Signals, verbs: dict[str, object]
) -> None:
    def do() -> None:
        try:
            os.kill(os.getpid(), number)
        finally:
            done.append(True)

    done: list[bool] = []
    verbs["do"] = do
    with interrupts():
        before = signal.getsignal(number)
        assert main(["one"]) == 128 + number
        assert signal.getsignal(number) is before
    assert done


def test_the_end_of_a_terminal_is_often_told_twice(verbs: dict[str, object]) -> None:
    """By the shell, and by the system."""

    def do() -> None:
        try:
            os.kill(os.getpid(), signal.SIGHUP)
        finally:
            os.kill(os.getpid(), signal.SIGHUP)
            done.append(True)

    done: list[bool] = []
    verbs["do"] = do
    with interrupts():
        assert main(["one"]) == 129
    assert done


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_the_process_at_once(number: signal.Signals) -> None:
    text = (
        "import os, sys, typer\n"
        "from seqgc.cli import _main\n"
        "own = typer.Typer()\n"
        "@own.command()\n"
        "def one():\n"
        "    try: os.kill(os.getpid(), {0})\n"
        "    finally: os.kill(os.getpid(), {0}); print('too late')\n"
        "_main.command = lambda: typer.main.get_command(own)\n"
        "sys.exit(_main.main(['--']))\n"
    )
    with interrupts():
        command = [sys.executable, "-c", text.format(int(number))]
        ended = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-number, b"", b"")


class Signalled:
    """A part of a class that gets a signal while that is made: Python 3.11 makes an error of it."""

    def __set_name__(self, owner: type, name: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_of_which_python_makes_another_error_ends_a_verb(verbs: dict[str, object]) -> None:
    verbs["do"] = lambda: type("Made", (), {"part": Signalled()})
    assert main(["one"]) == 143


class Gone(io.StringIO):
    """Where a terminal was."""

    def isatty(self) -> bool:
        return True

    def write(self, _: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


def test_a_terminal_that_goes_away_while_something_is_shown_on_it_spoils_nothing(
    verbs: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def do() -> None:
        with busy("importing"), run_progress("gc:s=1", total=1):
            done.append(True)

    done = list[bool]()
    verbs["do"] = do
    monkeypatch.setattr("sys.stderr", Gone())
    assert main(["one"]) == 0
    assert done


def test_a_signal_is_not_hidden_by_an_error_of_what_cleans_up(
    verbs: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    def do() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            error = OSError(errno.EIO, "Input/output error")
            error.add_note("go on")
            raise error

    verbs["do"] = do
    assert main(["one"]) == 143
    assert capsys.readouterr().err == "seqgc: ended by SIGTERM; go on\n"


def test_ctrl_c_during_the_imports_shows_no_traceback() -> None:
    text = (
        "import os, sys\n"
        "class Import:\n"
        "    def find_spec(self, name, *_): name == 'seqgc.cli' and os.kill(os.getpid(), 2)\n"
        "from seqgc.__main__ import run\n"
        "sys.meta_path.insert(0, Import())\n"
        "sys.argv = ['seqgc', 'scheme', '--help']\n"
        "sys.exit(run())\n"
    )
    with interrupts():
        ended = subprocess.run([sys.executable, "-c", text], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, b"")


def test_a_signal_while_an_error_is_told_is_told_too(
    verbs: dict[str, object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def do() -> None:
        raise OSError(errno.EIO, "Input/output error")

    hits: list[bool] = []

    def hit(text: str, *, limit: int) -> str:
        if not hits:
            hits.append(True)
            os.kill(os.getpid(), signal.SIGTERM)
        return one_line(text, limit=limit)

    verbs["do"] = do
    monkeypatch.setattr("seqgc.cli._main.one_line", hit)
    assert main(["one"]) == 143
    assert capsys.readouterr().err == "seqgc: ended by SIGTERM\n"
