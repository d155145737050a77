"""``--log-format json``: whatever is said on stderr is one JSON object a line."""

from __future__ import annotations

import json
import warnings
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from seqgc.cli import main
from seqgc.cli.progress import run_progress
from seqgc.ports import Notice
from tests.cli.inside import command
from tests.cli.kit import TRAIN

Out = pytest.CaptureFixture[str]


def said(capsys: Out) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    for line in lines:
        assert datetime.fromisoformat(line["time"]).utcoffset() is not None
        assert line["level"] in ("info", "warning", "error")
        assert line["message"]
    return lines


def test_a_run_is_told_line_by_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*TRAIN, "--scheme", "uncoded", "-n", "2", "--log-format", "json"]) == 0
    lines = said(capsys)
    last = [line for line in lines if line["event"] == "progress"][-1]
    known = {key: last[key] for key in ("round", "rounds", "jobs", "stragglers", "parked")}
    assert known == {"round": 4, "rounds": 4, "jobs": 4, "stragglers": 0, "parked": 0}
    assert last["jobs_per_minute"] > 0
    assert 0 < last["loss"]["best"] <= last["loss"]["worst"]
    assert last["spent_usd"] is None
    (start,) = [line for line in lines if line["event"] == "start"]
    assert (start["workers"], start["provider"]) == (2, "local")


@pytest.mark.parametrize("asked", [["--log-format", "json"], ["--log-format=json"], []])
def test_the_end_is_told_too_with_its_status(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    if not asked:
        monkeypatch.setenv("SEQGC_LOG_FORMAT", "json")
    for wrong in (["--no-such-option"], ["--steps", "many"], ["--scheme", "gc"]):
        assert main(["train", *wrong, *asked]) == 2
        (line,) = said(capsys)
        assert (line["event"], line["level"], line["status"]) == ("end", "error", 2)
    assert main(["scheme", "gc", "-n", "2", "--log-format", "text"]) == 2  # what is typed wins
    assert capsys.readouterr().err.startswith("seqgc: ")


def test_notices_and_warnings_of_python_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    def lint(**_: object) -> None:
        with run_progress("gc:s=1", total=1) as progress:
            progress(Notice(kind="slowdown", fields={"since": 3, "times": float("inf")}))
        with warnings.catch_warnings(action="always"):
            warnings.warn("old\nnews", stacklevel=1)

    monkeypatch.setattr("sys.stderr.isatty", lambda: True)  # no bar there either
    monkeypatch.setattr(command().commands["scheme"], "callback", lint)
    assert main(["scheme", "gc:s=1", "-n", "2", "--log-format", "json"]) == 0
    slowdown, warning = said(capsys)
    assert (slowdown["level"], slowdown["since"], slowdown["times"]) == ("warning", 3, None)
    assert (warning["event"], warning["message"]) == ("warning", "old\nnews")


def test_every_verb_takes_the_option() -> None:
    verbs = dict(command().commands)
    for group in ("data", "pipeline", "profile"):
        of_it = verbs.pop(group).commands
        verbs |= {f"{group} {name}": verb for name, verb in of_it.items()}
    assert len(verbs) >= 12
    for name, verb in verbs.items():
        assert any("--log-format" in each.opts for each in verb.params), name
    assert main(["scheme", "gc:s=1", "-n", "2", "--log-format", "yaml"]) == 2
