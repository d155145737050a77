"""Folders of runs with changed files: gone on with as far as they are whole, or refused in a line.

`SEQGC_SOAK=1` tries 10⁵ with `seqgc resume` and 10⁵ with what reads a run. A resumed run starts
workers, a fifth of a second each, and a page is drawn in half a second: of the files that end in
one of these, fewer are changed.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from seqgc.cli import main
from seqgc.errors import ParameterError
from seqgc.runs import RecordedRun, read_run
from tests.cli.mutations import SOAK, Out, answered, changed, measured
from tests.report.folders import write_run

pytestmark = pytest.mark.timeout(6 * 3600 if SOAK else 180)

COUNTS = {"config.toml": 60_000, "journal.jsonl": 38_000} if SOAK else {"config.toml": 40}
REST = 160 if SOAK else 1  # of each other file
READ = 100_000 if SOAK else 60
DRAWN = 600 if SOAK else 4


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys: Out) -> Path:
    """A run that has ended."""
    small = ["--module", "mlp", "-n", "2", "--models", "1", "--steps", "1", "--scheme", "uncoded"]
    assert main(["train", *small, "--run", "run"]) == 0
    capsys.readouterr()
    return Path("run")


def test_a_changed_run_is_resumed_or_refused(run: Path, capsys: Out) -> None:
    files = sorted(file.relative_to(run) for file in run.rglob("*") if file.is_file())
    assert len(files) > 10
    seen: dict[str, Counter[int]] = {}
    for name in files:
        good, chance = (run / name).read_bytes(), random.Random(str(name))
        statuses = seen.setdefault(name.name, Counter())
        for _ in range(COUNTS.get(str(name), REST)):
            if not Path("bad").exists():
                shutil.copytree(run, "bad")
            bad = changed(good, chance)
            Path("bad", name).write_bytes(bad)
            try:
                status = answered(capsys, "resume", "bad")
            except BaseException as error:
                error.add_note(f"{name}: {bad!r}"[:3000])
                raise
            statuses[status] += 1
            if status == 0:  # it has gone on: the next is changed as it was
                shutil.rmtree("bad")
            else:
                Path("bad", name).write_bytes(good)
        shutil.rmtree("bad", ignore_errors=True)
    print({name: dict(found) for name, found in seen.items()})
    assert set(seen["config.toml"]) >= {2}
    assert set(seen["journal.jsonl"]) >= {2}
    assert set(seen["state.json"]) == {0}, "the one before is used"


def found_in(run: Path) -> tuple[str, RecordedRun | None]:
    try:
        return "", read_run(run)
    except ParameterError as error:
        return str(error), None


def test_a_changed_run_is_read_as_far_as_it_is_whole(capsys: Out) -> None:
    run, seen = write_run(Path("run"), n=3, scheme="gc:s=1", jobs=4), Counter[str]()
    for name, share in (("events.jsonl", 0.6), ("metrics.csv", 0.3), ("config.toml", 0.1)):
        good, chance = (run / name).read_bytes(), random.Random(name)
        for number in range(round(share * READ)):
            (run / name).write_bytes(changed(good, chance))
            line, found = measured(lambda: found_in(run))
            assert len(line) <= 300
            assert line == "" or line.isprintable()
            if found is None:
                seen["refused"] += 1
            else:
                assert all(gap.isprintable() for gap in found.gaps)
                assert len({len(column) for column in found.models().values()}) == 1
                seen["with gaps" if found.gaps else "whole"] += 1
            if number < share * DRAWN:
                status = answered(capsys, "report", "run", "-o", "page.html")
                seen[f"report {status}"] += 1
        (run / name).write_bytes(good)
    print(dict(seen))
    assert seen["with gaps"]
    assert seen["report 0"]
