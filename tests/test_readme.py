"""What a stranger reads first is so: README, tutorial, and the choice of a scheme."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from seqgc.cli import main
from seqgc.profiles import read_profile
from seqgc.schemes import parse_scheme
from seqgc.training import TrainResult

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
CHOOSING = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")


def test_the_python_in_the_readme_runs_and_is_what_its_picture_shows() -> None:
    failed, attempted = doctest.testfile(str(ROOT / "README.md"), module_relative=False)
    assert attempted >= 8
    assert failed == 0
    picture = (ROOT / "docs" / "images" / "finished_jobs.svg").read_text(encoding="utf-8")
    shown = re.findall(r"([a-z-]+[^<> ]*: [0-9.]+ s)<", picture)
    replayed = re.findall(r"^([a-z-]+\S*: [0-9.]+ s)$", README, flags=re.MULTILINE)
    assert len(replayed) == 3
    assert shown[:3] == replayed


def test_the_readme_is_short_and_names_what_there_is_to_read() -> None:
    assert len(README.splitlines()) <= 110
    for page in (ROOT / "docs").glob("*.md"):
        is_beside = page.stem in (
            "index",
            "own-code",
            "add-scheme",
            "add-defence",
            "add-code",
        )  # others lead there
        assert is_beside or f"docs/{page.name}" in README, page.name


def test_the_tutorial_trains_the_same_on_functions_and_on_local_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = doctest.DocTestParser().get_doctest(TUTORIAL, {}, "tutorial.md", None, 0)
    runner = doctest.DocTestRunner()
    assert runner.run(page, clear_globs=False).failed == 0
    (example,) = (block for block in TUTORIAL.split("```") if "workers.lambda_local(" in block)
    lines = [line[4:] for line in example.splitlines() if line[:4] in (">>> ", "... ")]
    assert len(lines) <= 10
    names: dict[str, object] = {}
    exec("\n".join(lines).replace("lambda_local", "local"), names)
    losses = []
    for result in (page.globs["result"], names["result"]):
        assert isinstance(result, TrainResult)
        losses.append([seen.loss for seen in result.evaluations.values()])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert len(list(Path("runs").iterdir())) == 2


def test_the_loads_and_delays_in_the_choice_of_schemes_are_the_schemes() -> None:
    rows = re.findall(r"^\| `(\S+)` \| (0\.\d+) \| (\d) \|$", CHOOSING, flags=re.MULTILINE)
    assert len(rows) == 4
    for spec, load, delay in rows:
        scheme = parse_scheme(spec, n=256)
        assert scheme.normalized_load == pytest.approx(float(load), abs=5e-7)
        assert scheme.delay == int(delay)


@pytest.mark.timeout(600)  # half a minute on a quiet machine
def test_workers_are_recorded_on_two_cores_and_what_is_found_on_them_can_be_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a stranger types: record, lint, tune and replay, as the page prints them."""
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```\n(seqgc profile -n .*?)```", CHOOSING, flags=re.DOTALL)
    commands = [line.partition("#")[0].split()[1:] for line in block.splitlines()]
    first = [words for words in commands if words[0] in ("profile", "tune", "replay")]
    assert [words[0] for words in first] == ["profile", "profile", "tune", "replay"]
    two = sorted(os.sched_getaffinity(0))[:2]
    for words in first:
        if "-n" not in words:  # where only the master computes
            assert main(words) == 0
            continue
        ended = subprocess.run(
            [sys.executable, "-m", "seqgc", *words, "--delay-scale", "0.01"],  # waits are not new
            preexec_fn=lambda: os.sched_setaffinity(0, two),
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, f"{words}: {ended.stderr}"
    profile = read_profile(tmp_path / "workers.npz")
    assert profile.times.shape == (20, 16)
    assert profile.times.min() > 2e-4, "no worker computes a gradient in less"
    assert profile.meta.alpha > 0
