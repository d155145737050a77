"""The page of a run and of a profile: its content, and that it is a valid, harmless page."""

from __future__ import annotations

import base64
import json
import sys
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from seqgc import DelayProfile, plot, read_run
from seqgc.cli import main
from seqgc.errors import ParameterError
from seqgc.profiles import ProfileMeta, write_profile
from seqgc.report import COLOURS, profile_page
from seqgc.report._page import _template
from tests.report.folders import write_run

SCRIPT = "<script>alert(1)</script>\"'>&amp;$\\frac{"
VOID = {"meta", "link", "img"}


class Reader(HTMLParser):
    """What a browser finds in a page: elements with their attributes, and text by element."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self._open[-1] if self._open else "", data))

    def text(self, *tags: str) -> str:
        return "\n".join(data for tag, data in self.texts if not tags or tag in tags)

    def alts(self) -> list[str]:
        return [about["alt"] or "" for tag, about in self.elements if tag == "img"]

    def pictures(self) -> list[ElementTree.Element]:
        """Return the pictures of the page, parsed."""
        uris = [about["src"] or "" for tag, about in self.elements if tag == "img"]
        head = "data:image/svg+xml;base64,"
        assert all(uri.startswith(head) for uri in uris)
        return [ElementTree.fromstring(base64.b64decode(uri.removeprefix(head))) for uri in uris]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs")
    write_run(path / "one", models=(SCRIPT, "other"))
    write_run(path / "two", scheme="gc:s=1", outcome=None)
    return path


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    assert main(["report", str(folder / "one"), "-o", str(folder / "one.html")]) == 0
    return (folder / "one.html").read_text("utf-8")


def test_the_page_of_a_run_says_what_it_was_and_came_to(page: str, folder: Path) -> None:
    reader, run = Reader(page), read_run(folder / "one")
    text = reader.text()
    assert "m-sgc:B=1,W=2,lam=2 on 8 workers" in text
    assert "21 rounds it ended: finished." in text
    names, values = (reader.text(tag).split("\n") for tag in ("dt", "dd"))
    shown = dict(zip(names, values, strict=True))
    assert shown["jobs finished"] == "20"
    assert shown["waited out"] == f"{run.rounds()['waited_out'].sum()} rounds"
    assert shown["mu"] == "1.0"
    assert "optimizer adam" in shown[f"model {SCRIPT}"]


def test_each_picture_has_a_title_words_and_its_table(page: str) -> None:
    reader = Reader(page)
    count = [tag for tag, _ in reader.elements].count
    assert len(reader.pictures()) == count("figure") == count("h3") == count("details") > 1
    assert all(alt.endswith(".") for alt in reader.alts())
    assert reader.alts()[0].startswith("Timeline of 21 rounds, closed ")


def test_text_and_frames_of_a_picture_have_the_colours_of_the_readers_theme(page: str) -> None:
    for picture in Reader(page).pictures():
        _, sheet, *elements = picture.iter()
        light, dark = (sheet.text or "").split("@media (prefers-color-scheme:dark)")
        assert f"--muted:{COLOURS['light']['muted']};" in light
        assert f"--muted:{COLOURS['dark']['muted']};" in dark
        styles = " ".join(each.get("style", "") for each in elements)
        assert "fill: var(--muted)" in styles
        assert not [colour for colour in COLOURS["light"].values() if colour in styles]


def test_nothing_is_asked_for_and_nothing_can_run(page: str) -> None:
    reader = Reader(page)
    tags = {tag for tag, _ in reader.elements}
    assert not tags & {
        "script",
        "iframe",
        "object",
        "embed",
        "base",
        "form",
        "foreignobject",
    }
    for _, about in reader.elements:
        assert not any(name.startswith("on") for name in about)
        for name in ("src", "href", "action"):
            assert (about.get(name) or "#").startswith(("#", "data:"))
    for picture in reader.pictures():
        for each in picture.iter():
            assert each.tag.rpartition("}")[2] not in ("script", "foreignObject", "a")
            for name, value in each.items():
                assert not name.startswith("on")
                assert not name.endswith("href") or value.startswith(("#", "data:image/png;"))
    assert "@import" not in page
    policy = [about for _, about in reader.elements if "http-equiv" in about]
    assert [each["http-equiv"] for each in policy] == ["Content-Security-Policy"]
    assert (policy[0]["content"] or "").startswith("default-src 'none';")


def test_a_name_is_text_wherever_it_stands(page: str) -> None:
    assert "<script" not in page
    reader = Reader(page)
    assert SCRIPT in reader.text("dt")
    assert SCRIPT in reader.text("td")
    texts = [each.text or "" for picture in reader.pictures() for each in picture.iter()]
    assert SCRIPT in texts


def test_several_runs_are_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = folder / "both.html"
    words = ["report", str(folder / "one"), str(folder / "two"), "-o", str(target), "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out) == {"file": str(target)}
    text = Reader(target.read_text("utf-8")).text("td", "th", "h1")
    assert text.startswith("2 runs")
    for word in ("m-sgc:B=1,W=2,lam=2", "gc:s=1", "finished", "not yet"):
        assert word in text


def test_the_page_of_a_profile_has_its_accidents_and_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = np.random.default_rng(0).gamma(2.0, 0.2, (12, 6)) + 0.5
    times[3, 2] = 99.0
    meta = ProfileMeta(alpha=0.1, model="<b>net</b>", provider="lambda")
    profile = DelayProfile.from_times(times, meta=meta)
    _, suits, accidents, recorded = profile_page(profile, name="a.npz", search_s=0.0).sections
    assert " times the bound, which is" in suits.says[0]
    assert suits.says[1].startswith("Searched: ")
    assert len(suits.pictures) == 3
    assert accidents.table is not None
    assert "stall" in {row[1] for row in accidents.table.rows}
    assert recorded.facts["model"] == "<b>net</b>"
    write_profile(profile, path=tmp_path / "p.npz")
    monkeypatch.chdir(tmp_path)
    assert main(["report", "p.npz", "-o", "p.html", "--no-search"]) == 0
    text = Reader(Path("p.html").read_text("utf-8")).text()
    assert "Searched" not in text
    assert "12 rounds of 6 workers." in text


def test_without_an_alpha_the_page_says_why_nothing_was_searched() -> None:
    profile = DelayProfile.from_times([[1.0, 2.0], [1.5, 1.0]])
    _, suits, *_ = profile_page(profile, name="a").sections
    assert suits.says[0].startswith("Schemes were not searched: `alpha` must be given")


@pytest.mark.parametrize(
    ("module", "package"), [("jinja2", "Jinja2"), ("matplotlib", "matplotlib")]
)
def test_without_its_extra_one_line_says_what_to_install(
    module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = profile_page(DelayProfile.from_times([[1.0, 2.0]]), name="a", search_s=None)
    _template.cache_clear()
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ParameterError, match=rf"{package}.*pip install 'seqgc\[plot\]'"):
        page.html()


# ---- colours ------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    channels = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_and_marks_stand_out_in_both_themes(theme: str) -> None:
    colours = COLOURS[theme]
    for text, ground in product(("ink", "muted", "accent", "notice"), ("page", "card")):
        assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for mark in plot.COLORS:
        assert contrast(mark, colours["card"]) >= 3, mark
