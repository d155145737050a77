"""The page of a comparison: its sentences and its table."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from seqgc.cli import main
from seqgc.profiles import DelayProfile, write_profile
from seqgc.report import comparison_page
from tests.cli.refused import refused
from tests.comparison.made import comparison_of
from tests.kit import system_calls
from tests.report.test_page import SCRIPT, Reader

FOUND = comparison_of(
    ("asp", "stale", 10.0, 3.0),
    ("uncoded", "exact", 20.0, 1.0),
    (SCRIPT, "approximate", 30.0, 2.0),
    ("ssp:slack=9", "stale", None, None),
)


@pytest.fixture(scope="module")
def page() -> str:
    return comparison_page(FOUND, name=f"{SCRIPT}.npz").html()


def test_it_begins_with_how_delays_are_taken_and_with_what_to_take(page: str) -> None:
    first, *others = Reader(page).text("p").split("\n")[1:]
    assert first == FOUND.premise
    assert (
        others[0]
        == FOUND.advice
        == (
            "asp reaches 0.25 in 10.0 s, with stale gradients, for $3.0000; "
            "uncoded in 20.0 s, exactly."
        )
    )
    names, values = (Reader(page).text(tag).split("\n") for tag in ("dt", "dd"))
    shown = dict(zip(names, values, strict=True))
    assert shown["soonest, exact"] == "20 s"
    assert shown["cheapest"] == "$1"
    assert shown["learning rates"] == "1, 2, 4"


def test_the_table_has_every_row_and_a_notice_those_that_never_get_there(page: str) -> None:
    reader = Reader(page)
    assert reader.text("li") == "Not at the target within 300 clocks of a model: ssp:slack=9."
    cells = reader.text("td").split("\n")
    row = cells.index("ssp:slack=9", cells.index("1.5"))
    assert cells[row : row + 13] == [
        "ssp:slack=9", "stale", "1", "1.25", "1.5", "–", "–", "–", "–", "–", "–", "0.5", "0",
    ]  # fmt: skip


def test_seconds_are_given_from_the_best_seed_to_the_worst(page: str) -> None:
    cells = Reader(page).text("td").split("\n")
    assert cells[len(cells) - 1 - cells[::-1].index("uncoded") :][6:8] == ["20", "20 to 40"]


def test_the_picture_says_in_words_what_is_unbeaten(page: str) -> None:
    (alt,) = Reader(page).alts()
    assert alt.startswith("Dots of 3 defences, from 10 to 30 s")
    assert alt.endswith(": asp; uncoded.")


def test_a_name_is_text_wherever_it_stands(page: str) -> None:
    reader = Reader(page)
    assert "script" not in {tag for tag, _ in reader.elements}
    assert SCRIPT in reader.text("td")
    assert SCRIPT[:30] in "".join(each.text or "" for each in reader.pictures()[0].iter())
    assert f"{SCRIPT}.npz" in reader.text("h1")


def test_one_where_nobody_gets_there_is_a_page_too() -> None:
    found = comparison_of(("asp", "stale", None, None))
    reader = Reader(comparison_page(found, name="p").html())
    assert "No defence reaches a loss of 0.25" in reader.text()
    assert reader.alts() == ["Dots of 0 defences."]


def test_compare_writes_it_beside_what_it_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_profile(DelayProfile.from_times([[1.0, 2.0], [1.5, 1.0]]), path="p.npz")
    words = ["compare", "p.npz", "--alpha", "1", "--lr", "4", "--defence", "uncoded", "-o"]
    assert main([*words, "c.html", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["file"] == "c.html"
    assert facts["advice"] in Reader(Path("c.html").read_text("utf-8")).text("p")
    assert main([*words, "c.csv"]) == 2
    assert "`output` must be the name of an .html file" in capsys.readouterr().err


class NoRoom:
    """A file system on which no file takes its place."""

    fsync = staticmethod(os.fsync)

    @staticmethod
    def replace(source: str, target: str, **_folders: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", source, None, target)


def test_what_was_compared_is_printed_also_where_the_page_cannot_be_written_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_profile(DelayProfile.from_times([[1.0, 2.0], [1.5, 1.0]]), path="p.npz")
    words = ["compare", "p.npz", "--alpha", "1", "--lr", "4", "--defence", "uncoded"]
    with system_calls(NoRoom()):
        assert main([*words, "-o", "c.html"]) == 1
    printed, said = capsys.readouterr()
    assert "reaches 0.25 in" in " ".join(printed.split())
    assert said == "seqgc: c.html: No space left on device\n"
    Path("d.html").mkdir()
    assert "`output` must be a file, not a folder" in refused(capsys, *words, "-o", "d.html")
