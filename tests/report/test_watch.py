"""A page that is written again while its run goes on."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from seqgc import read_run
from seqgc.cli import main
from seqgc.errors import ParameterError
from seqgc.report import run_page, watch
from seqgc.testing import HandWoundClock

HEADING = {"event": "run", "at_s": 0.0, "schema": 1, "workers": 2, "scheme": "gc:s=1"}
LATER = (
    {"event": "note", "at_s": 1.0, "text": "one"},
    {"event": "note", "at_s": 2.0, "text": "two"},
    {"event": "end", "at_s": 3.0, "outcome": "finished"},
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that has just begun."""
    monkeypatch.chdir(tmp_path)
    folder = Path("run")
    folder.mkdir()
    append(folder, HEADING)
    return folder


def append(folder: Path, line: dict[str, object]) -> None:
    with Path(folder, "events.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


def test_the_page_is_written_each_time_the_log_has_grown_and_last_at_its_end(run: Path) -> None:
    clock, lines, pages = HandWoundClock(0.0), list(LATER), list[str]()

    def sleep(seconds: float) -> None:
        """Let the time pass; at every third call the run goes on."""
        clock.sleep(seconds)
        if round(clock.now()) % 3 == 0 and lines:
            append(run, lines.pop(0))

    def make() -> bool:
        recorded = read_run(run)
        ended = recorded.outcome is not None
        run_page({"run": recorded}, refresh_s=None if ended else 2).write("page.html")
        pages.append(Path("page.html").read_text("utf-8"))
        return ended

    watch(run, make, sleep=sleep, clock=clock.now)
    assert len(pages) == 4
    assert [page.count(">note</td>") for page in pages] == [0, 1, 2, 2]
    refreshed = ['http-equiv="refresh" content="2"' in page for page in pages]
    assert refreshed == [True, True, True, False]
    assert [path.name for path in Path().iterdir()] == ["run", "page.html"], (
        "nothing is left behind"
    )


def test_a_page_is_made_in_a_part_of_the_time_however_long_it_takes(run: Path) -> None:
    clock = HandWoundClock()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        append(run, LATER[0])

    def make() -> bool:
        clock.wind(10.0)
        return len(clock.slept) == 2

    watch(run, make, sleep=sleep, clock=clock.now)
    assert clock.slept == [40.0, 40.0]


def test_a_folder_that_goes_away_ends_it_in_one_line(run: Path) -> None:
    with pytest.raises(ParameterError, match="must be the folder of a run"):
        watch(run, lambda: False, sleep=lambda _: Path(run, "events.jsonl").unlink())


def test_a_run_that_has_ended_is_drawn_once(run: Path) -> None:
    append(run, LATER[-1])
    assert main(["report", "run", "-o", "page.html", "--watch"]) == 0
    page = Path("page.html")
    assert "refresh" not in page.read_text("utf-8").split("<body")[0].split("<style")[0]
    assert stat.S_IMODE(page.stat().st_mode) == 0o644


def test_a_page_in_the_browser_is_whole_while_another_is_written(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("page.html").write_text("the one before")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    page = run_page({"run": read_run(run)})
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        page.write("page.html")
    assert Path("page.html").read_text() == "the one before"
    assert sorted(path.name for path in Path().iterdir()) == ["page.html", "run"]
