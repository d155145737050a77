"""What a stranger reads first is so: README, tutorial, and the choice of a scheme."""

from __future__ import annotations

import doctest
import os
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import seqgc
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


@pytest.fixture(scope="module")
def drawn() -> dict[str, Any]:
    """What the program that makes README's picture defines."""
    return runpy.run_path(str(ROOT / "docs" / "images" / "finished_jobs.py"))


def test_the_means_in_the_readme_are_those_of_100_profiles(drawn: dict[str, Any]) -> None:
    pattern = r"100 such profiles `(\S+)` takes (\d+) s and `(\S+)` (\d+) s"
    ((slow, slow_s, fast, fast_s),) = re.findall(pattern, README)
    profiles = [drawn["generated"](seed) for seed in range(100)]
    # Worker i is in group i mod 16, of which a round needs one answer.
    load = parse_scheme(fast, n=64).normalized_load
    alpha = profiles[0].meta.alpha
    uncoded = [p.times[:60].max(axis=1).sum() + 60 * alpha / 64 for p in profiles]
    groups = [p.times[:60].reshape(60, 4, 16).min(axis=1).max(axis=1).sum() for p in profiles]
    assert slow == "uncoded"
    assert f"{np.mean(uncoded):.0f}" == slow_s
    assert f"{np.mean(groups) + 60 * alpha * load:.0f}" == fast_s
    runs = [drawn["run"](spec, profiles[0]).runtime_s for spec in (slow, fast)]
    assert runs == pytest.approx([uncoded[0], groups[0] + 60 * alpha * load])


def test_what_is_said_of_recorded_workers_is_so(
    recorded_profiles: Path, drawn: dict[str, Any]
) -> None:
    file = recorded_profiles / "cnn-canada-batch2048-load0.000-30rounds-d.csv"
    profiles = drawn["recorded"](file)
    page = (ROOT / "docs" / "profiles.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ to \d+ \| (.*) s \|$", page, flags=re.MULTILINE)
    assert len(rows) == len(profiles) == 4
    for row, profile in zip(rows, profiles, strict=True):
        found = [drawn["run"](spec, profile).runtime_s for spec in drawn["SPECS"]]
        assert row.split(" s | ") == [f"{seconds:.1f}" for seconds in found]
    first = [float(seconds) for seconds in rows[0].split(" s | ")]
    said = re.findall(r"had no\s+stall, (\d+) s and (\d+) s", README)
    assert said == [(f"{first[0]:.0f}", f"{first[2]:.0f}")]


def test_the_readme_is_short_and_names_what_there_is_to_read() -> None:
    assert 60 <= len(README.splitlines()) <= 100
    for page in (ROOT / "docs").glob("*.md"):
        is_beside = page.stem in (
            "index",
            "own-code",
            "add-scheme",
            "add-defence",
            "add-code",
        )  # others lead there
        assert is_beside or f"docs/{page.name}" in README, page.name


@pytest.mark.usefixtures("plugins_are_forgotten")
def test_the_run_in_the_readme_can_be_trained_reported_and_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```\n(seqgc train .*?)```", README, flags=re.DOTALL)
    verbs = [line.partition("#")[0].split()[1:] for line in block.splitlines()]
    assert [words[0] for words in verbs] == ["train", "report", "resume"]
    for words in verbs:
        assert main(words) == 0, words
    assert "gc-rep:s=1" in Path("first.html").read_text(encoding="utf-8")


def test_the_readme_and_the_citations_name_the_version_that_is_installed() -> None:
    assert "dev" not in seqgc.__version__
    for page in (README, TUTORIAL):
        assert f"dist/seqgc-{seqgc.__version__}-py3-none-any.whl" in page
    (named,) = re.findall(r"name extras in brackets \((.*)\)", README)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(re.findall(r"`(\S+)`", named)) <= project["optional-dependencies"].keys()
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= citation.keys()
    assert citation["version"] == seqgc.__version__
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## ([0-9.]+) - (.*)$", changes, flags=re.MULTILINE)
    assert released[0] == (citation["version"], citation["date-released"])
    paper_page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    assert f"version = {{{seqgc.__version__}}}" in paper_page
    paper, *_ = citation["references"]
    authors = (f"{each['family-names']}, {each['given-names']}" for each in paper["authors"])
    for field in (citation["title"], paper["title"], " and ".join(authors), str(paper["year"])):
        assert f"{{{field}}}" in paper_page


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
