"""What surrounds the program: modules of one's own, variables, who reads what it prints."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import tomli_w

from seqgc.backends import LocalBackend
from seqgc.cli import main
from seqgc.errors import ParameterError
from tests.backends.scripted import Scripted
from tests.cli.kit import TRAIN

Out = pytest.CaptureFixture[str]


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of one's own, in which the program is."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line", [["--help"], ["train", "--help"]])
def test_nobody_who_reads_is_no_fault_of_a_called_code(line: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as nobody:
        command = [sys.executable, "-m", "seqgc", *line]
        ended = subprocess.run(command, stdout=nobody, stderr=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stderr) == (1, b"")


def test_a_format_of_messages_that_there_is_not_is_refused_wherever_it_is_asked_for(
    capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEQGC_LOG_FORMAT", "JSON")
    assert main(["scheme", "gc:s=1", "-n", "4"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "seqgc: `SEQGC_LOG_FORMAT` must be text or json; got 'JSON' (did you mean 'json'?)"
    )
    assert main(["scheme", "gc:s=1", "-n", "4", "--log-format", "text"]) == 0


def test_a_page_is_drawn_whatever_windows_others_draw_in(tmp_path: Path) -> None:
    profile, page = tmp_path / "p.csv", tmp_path / "page.html"
    profile.write_text("1.0,2.0,1.5\n" * 8)
    command = [sys.executable, "-m", "seqgc", "report", profile, "-o", page, "--no-search"]
    environment = os.environ | {"MPLBACKEND": "Qt4Agg"}
    ended = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert page.exists()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            ["report", "runs/frist", "-o", "x.html"],
            "`targets` must be the folder of a run, or an existing delay profile; got 'runs/frist'",
        ),
        ([*TRAIN, "--run", "x" * 300], "(File name too long)"),
    ],
)
def test_a_path_that_is_wrong_says_how(line: list[str], says: str, own: Path, capsys: Out) -> None:
    assert main(line) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert says in said
    assert not any(own.iterdir())


def test_of_many_models_the_one_is_named_that_is_wrong(own: Path, capsys: Out) -> None:
    models = [
        {"name": f"net{i}", "module": "mlp", "batch_size": 16, "optimizer": ["sgd", "sdg"][i == 7]}
        for i in range(9)
    ]
    config = {"scheme": "uncoded", "workers": 2, "steps": 1, "models": models}
    (own / "run.toml").write_text(tomli_w.dumps(config))
    assert main(["train", "run.toml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("seqgc: `optimizer` of model net7 must be one of ")
    assert line.endswith("; got 'sdg' (did you mean 'sgd'?)")


def test_a_daemonic_process_says_that_it_has_no_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    monkeypatch.setitem(config, "daemon", True)
    with pytest.raises(ParameterError, match=r"`workers` cannot be started in a daemonic process"):
        LocalBackend(1, Scripted(folder=tmp_path))


def try_it(folder: Path, told: Connection) -> None:
    try:
        LocalBackend(1, Scripted(folder=folder)).close()
    except ParameterError as error:
        told.send(str(error))
    else:
        told.send("")


def test_a_process_forked_from_one_with_workers_says_that_it_has_none(tmp_path: Path) -> None:
    with LocalBackend(1, Scripted(folder=tmp_path)):
        here, there = multiprocessing.Pipe()
        forked = multiprocessing.get_context("fork").Process(target=try_it, args=(tmp_path, there))
        forked.start()
        there.close()
        assert "must be" not in (said := here.recv())
        forked.join()
    assert "`workers` cannot be started in a process forked from one that has started" in said


TEXTS = """
import json
from seqgc.cli import _main


def texts(command, path):
    yield path, command.help, [getattr(each, "help", "") for each in command.params]
    for name, inner in getattr(command, "commands", {}).items():
        yield from texts(inner, f"{path} {name}")


print(json.dumps(list(texts(_main.command(), "seqgc"))))
"""


def test_help_texts_are_there_without_docstrings() -> None:
    """In one process for all verbs; the ones of this process have their docstrings."""
    asked = [sys.executable, "-OO", "-c", TEXTS]
    stripped = json.loads(subprocess.run(asked, capture_output=True, check=True).stdout)
    here = io.StringIO()
    with contextlib.redirect_stdout(here):
        exec(TEXTS, {})
    assert stripped == json.loads(here.getvalue())
    assert {"seqgc train", "seqgc profile fit", "seqgc data put"} <= {row[0] for row in stripped}
    for path, text, options in stripped:
        assert text, path
        assert all(options), path
