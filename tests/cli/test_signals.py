"""A signal ends a verb wherever it comes, and no second one is needed."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import threading
import weakref
from types import FrameType

import pytest
import typer

from seqgc.cli import main
from seqgc.cli.progress import RunProgress
from seqgc.errors import one_line
from tests.cli.inside import busy
from tests.kit import interrupts

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


class Thing:
    pass


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


def wait() -> None:
    assert not threading.Event().wait(10), "the signal is lost"
    raise AssertionError("the signal is lost")


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_comes_where_python_ignores_all_is_not_lost(
    number: signal.Signals, verbs: dict[str, object]
) -> None:
    def do() -> None:
        thing = Thing()
        ref = weakref.ref(thing, lambda _: os.kill(os.getpid(), number))
        del thing
        assert ref() is None
        wait()

    verbs["do"] = do
    with interrupts():
        assert main(["one"]) == 128 + number


def test_a_signal_that_comes_while_another_is_being_ignored_is_not_lost(
    verbs: dict[str, object],
) -> None:
    def another(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code is sys.unraisablehook.__code__:
            sys.setprofile(None)
            told.append(True)
            os.kill(os.getpid(), signal.SIGTERM)

    def do() -> None:
        thing = Thing()
        ref = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGTERM))
        sys.setprofile(another)
        del thing
        assert ref() is None
        wait()

    told: list[bool] = []
    verbs["do"] = do
    assert main(["one"]) == 143
    assert told


def test_a_signal_that_a_library_has_swallowed_is_not_the_last(verbs: dict[str, object]) -> None:
    def do() -> None:
        for _ in range(2):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except BaseException:
                swallowed.append(True)
        os.kill(os.getpid(), signal.SIGTERM)

    swallowed: list[bool] = []
    verbs["do"] = do
    assert main(["one"]) == 143
    assert len(swallowed) == 2


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
        with busy("importing"), RunProgress("gc:s=1", total=1):
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


def test_a_signal_during_the_first_imports_ends_them_at_once() -> None:
    text = (
        "import os, sys\n"
        "class Import:\n"
        "    def __set_name__(self, owner, name): os.kill(os.getpid(), {})\n"
        "    def find_spec(self, name, *_): name == 'seqgc.cli' and type('A', (), {{'b': self}})\n"
        "from seqgc.__main__ import run\n"
        "sys.meta_path.insert(0, Import())\n"
        "sys.exit(run())\n"
    )
    for number in SIGNALS:
        said = b"seqgc: interrupted\n" if number == signal.SIGINT else b""
        with interrupts():
            ended = subprocess.run(
                [sys.executable, "-c", text.format(int(number))], capture_output=True, check=False
            )
        assert (ended.returncode, ended.stderr) == (128 + number, said)


def test_a_second_signal_does_not_disturb_the_end(verbs: dict[str, object]) -> None:
    def do() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
                os.kill(os.getpid(), number)
            done.append(True)

    done: list[bool] = []
    verbs["do"] = do
    with interrupts():
        assert main(["one"]) == 143
    assert done


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_after_the_verb_ends_what_hangs_and_leaves_the_verb_s_status(
    number: signal.Signals,
) -> None:
    """Threads, torch and others take a while to end."""
    text = (
        "import atexit, os, sys, signal\n"
        "hit = lambda: os.kill(os.getpid(), {})\n"
        "atexit.register(hit)\n"  # when all else has ended
        "sys.argv = ['seqgc', {!r}]\n"
        "from seqgc.__main__ import run\n"
        "status = run()\n"
        "if {}: atexit.register(lambda: [hit(), signal.pause()])\n"  # which hangs
        "sys.exit(status)\n"
    )
    for word, status in (("--version", 0), ("--none", 2)):
        for hangs in (False, True):
            with interrupts():
                command = [sys.executable, "-c", text.format(int(number), word, hangs)]
                ended = subprocess.run(command, capture_output=True, check=False, timeout=60)
            assert ended.returncode == status
            assert ended.stdout.startswith(b"seqgc ") or status
            assert ended.stderr.count(b"\n") == (status == 2), ended.stderr


def test_a_signal_while_an_error_is_told_is_told_too(
    verbs: dict[str, object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def do() -> None:
        raise OSError(errno.EIO, "Input/output error")

    def hit(text: str, *, limit: int) -> str:
        os.kill(os.getpid(), signal.SIGTERM)  # which ends this, the first time
        return one_line(text, limit=limit)

    verbs["do"] = do
    monkeypatch.setattr("seqgc.cli._main.one_line", hit)
    assert main(["one"]) == 143
    assert capsys.readouterr().err == "seqgc: ended by SIGTERM\n"
