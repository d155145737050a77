"""Folders and words that nobody should have given: what is there is shown, or one line refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seqgc import DelayProfile
from seqgc.cli import main
from seqgc.profiles import write_profile
from tests.cli.refused import refused
from tests.report.folders import write_run

Out = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def log(*lines: str) -> None:
    Path("run").mkdir()
    Path("run/events.jsonl").write_text("".join(lines))


HEADING = (
    json.dumps({"event": "run", "at_s": 0.0, "schema": 1, "workers": 2, "scheme": "<i>"}) + "\n"
)


def test_a_log_that_is_cut_off_is_drawn_as_far_as_it_goes() -> None:
    whole = write_run(Path("run"), n=3, scheme="gc:s=1", jobs=4) / "events.jsonl"
    data = whole.read_bytes()
    whole.write_bytes(data[: 2 * len(data) // 3])
    Path("run/metrics.csv").write_bytes(b"\xff\xfe,,,\n" * 3)
    Path("run/config.toml").write_bytes(b"a = [[[[")
    assert main(["report", "run", "-o", "p.html"]) == 0
    page = Path("p.html").read_text("utf-8")
    assert "The last line of events.jsonl is incomplete" in page
    assert "The configuration is unknown: config.toml: " in page
    assert "it has not ended yet" in page
    assert "<img" in page


def test_a_run_without_a_closed_round_says_so() -> None:
    log(HEADING, '{"event": "\\u0000<script>", "at_s": 1, "text": "\\u001b[31m<script>"}\n', "{}\n")
    assert main(["report", "run", "-o", "p.html"]) == 0
    page = Path("p.html").read_text("utf-8")
    assert "No round has closed: there is nothing to draw yet." in page
    assert "&lt;i&gt; on 2 workers" in page
    assert "<script" not in page
    assert not {"\0", "\x1b"} & set(page)


def test_another_schema_is_refused(capsys: Out) -> None:
    log(HEADING.replace('"schema": 1', '"schema": 2'))
    assert "events.jsonl has schema 2" in refused(capsys, "report", "run", "-o", "p.html")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("run", "`output` must be given"),
        ("run -o p.csv", "`output` must be the name of an .html file"),
        ("run -o nowhere/p.html", "`output` must be in an existing folder"),
        ("run -o run/folder.html", "`output` must be a file, not a folder"),
        ("run -o /proc/p.html", "`output` must be a file that can be written ("),
        (f"run -o {300 * 'p'}.html", "`output` must be a file that can be written (File name too"),
        ("run -o p.html", "must be the folder of a run"),
        ("a.csv -o p.html", "a.csv"),
        ("p.npz p.npz -o p.html", "`targets` must be folders of runs, or a single delay profile"),
        ("p.npz -o p.html --watch", "`watch` must be left out"),
        ("run run -o p.html --watch", "`watch` must be used with one run"),
        ("run -o p.html --alpha 1", "`alpha` must be left out"),
        ("p.npz -o p.html --alpha -3", "`alpha` must be a finite number >= 0"),
        ("run run run run run run run run run -o p.html", "`targets` must be at most 8 runs"),
        (
            "run p.npz -o p.html",
            "`targets` must be folders of runs, or one delay profile, but not both",
        ),
        ("run nowhere -o p.html", "must be the folder of a run"),
    ],
)
def test_what_cannot_be_drawn_is_one_line(words: str, line: str, capsys: Out) -> None:
    Path("run/folder.html").mkdir(parents=True)
    write_profile(DelayProfile.from_times([[1.0, 2.0]]), path="p.npz")
    said = refused(capsys, "report", *words.split())
    assert line in said
    assert len(said) < 300
