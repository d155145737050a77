"""Pages in Chromium: no error, no request, texts that stand out, and nothing out of its card."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from seqgc import explain, read_run
from seqgc.profiles import named_profile
from seqgc.report import Page, comparison_page, explanation_page, profile_page, run_page
from tests.comparison.made import comparison_of
from tests.report.browser import CHROMIUM, Browser, browser
from tests.report.folders import write_run
from tests.runs.logs import write_run as write_log

# The least contrast of a text with the ground below it, by WCAG 2.
CONTRAST = """(() => {
  const rgb = text => (text.match(/[0-9.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = text => rgb(text).slice(0, 3).map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = e => {
    for (; e; e = e.parentElement) {
      const found = getComputedStyle(e).backgroundColor, parts = rgb(found);
      if (parts.length < 4 || parts[3] > 0) return found;
    }
    return "rgb(255, 255, 255)";
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let least = 99;
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || ["title", "desc"].includes(e.tagName)) continue;
    const style = getComputedStyle(e);
    const pair = [light(e.closest("svg") ? style.fill : style.color), light(ground(e))].sort();
    least = Math.min(least, (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05));
  }
  return least;
})()"""


# What sticks out: texts of a picture (whose image is put into the page to measure it), parts of a
# card, and the page. Parts that scroll within their card may be wider.
STICKS_OUT = """(() => {
  const found = [], slack = 1;
  const beyond = (inner, outer) => Math.max(inner.right - outer.right, outer.left - inner.left);
  const above = (inner, outer) => Math.max(inner.bottom - outer.bottom, outer.top - inner.top);
  const scrolls = e => ["auto", "scroll"].includes(getComputedStyle(e).overflowX);
  for (const image of document.images) {
    const card = image.closest("figure"), frame = image.getBoundingClientRect();
    if (!scrolls(image.parentElement) && beyond(frame, card.getBoundingClientRect()) > slack)
      found.push(`picture ${card.querySelector("h3").textContent}`);
    const bytes = Uint8Array.from(atob(image.src.split(",")[1]), c => c.charCodeAt(0));
    const place = document.createElement("div");
    place.innerHTML = new TextDecoder().decode(bytes);
    document.body.append(place);
    const svg = place.querySelector("svg");
    svg.setAttribute("width", frame.width);
    svg.setAttribute("height", frame.height);
    const outer = svg.getBoundingClientRect();
    for (const text of svg.querySelectorAll("text")) {
      const inner = text.getBoundingClientRect();
      if (inner.width && Math.max(beyond(inner, outer), above(inner, outer)) > slack)
        found.push(`text "${text.textContent}" of ${card.querySelector("h3").textContent}`);
    }
    place.remove();
  }
  for (const card of document.querySelectorAll("figure, .card, .glance > div, .notices, header"))
    for (const part of card.querySelectorAll("*")) {
      const closed = part.closest("details:not([open])") && !part.closest("summary");
      let inside = false;
      for (let e = part.parentElement; e !== card.parentElement; e = e.parentElement)
        inside ||= scrolls(e);
      const far = beyond(part.getBoundingClientRect(), card.getBoundingClientRect());
      if (!closed && !inside && far > slack)
        found.push(`${part.tagName} "${part.textContent.trim().slice(0, 60)}"`);
    }
  const width = document.documentElement.scrollWidth;
  if (width > innerWidth) found.push(`page of ${width} pixels`);
  return found;
})()"""
IMAGES = sorted((Path(__file__).resolve().parents[2] / "docs" / "images").glob("*.svg"))
NAME = "<script>alert(1)</script>" * 4

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed (apt install chromium)"
)


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        browser(Path(folder)) as opened,
    ):
        yield opened


def page_of(kind: str, folder: Path) -> Page:
    match kind:
        case "run":
            models = (NAME, *(f"a-model-with-a-long-name-{i}" for i in range(5)))
            run = read_run(write_run(folder / "run", models=models))
            return run_page({"run": run}, notices=["A sentence."])
        case "runs":
            specs = "uncoded", "gc-rep:s=1", "m-sgc:B=1,W=2,lam=2"
            runs = {
                f"a run with a long name: {spec}": read_run(
                    write_run(folder / spec.partition(":")[0], scheme=spec)
                )
                for spec in specs
            }
            return run_page(runs)
        case "explanation":
            seconds = named_profile("lambda-cnn:workers=8,rounds=12").times.tolist()
            run = write_log(folder / "run", seconds, scheme="gc-rep:s=1", needed=7)
            return explanation_page(explain(run, alpha=1.0), name=NAME)
        case "profile":
            return profile_page(named_profile("lambda-cnn:workers=12"), name=NAME, search_s=1.0)
    rows = (
        (NAME, "exact", 20.0, 1.0), ("asp", "stale", 10.0, 3.0), ("bsp", "exact", None, None),
        ("m-sgc-binary:B=1,W=2,lam=8,late=use", "exact", 21.0, 1.1),
    )  # fmt: skip
    return comparison_page(comparison_of(*rows), name=NAME)


@needs_chromium
@pytest.mark.parametrize("kind", ["run", "runs", "profile", "comparison", "explanation"])
def test_a_page_is_quiet_legible_in_both_themes_and_fits_screens_and_phones(
    kind: str, tab: Browser, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    page_of(kind, tmp_path).write(page)
    tab.events.clear()
    for width in (1200, 400):
        tab.size(width, 800)
        tab.open(page)
        assert tab.value(STICKS_OUT) == [], width
    for theme in ("light", "dark"):
        tab.theme(theme)
        assert tab.value(CONTRAST) >= 4.5, theme
    assert tab.value("document.scripts.length") == 0
    methods = [event.get("method", "") for event in tab.events]
    requests = [
        event["params"]["request"]["url"]
        for event in tab.events
        if event.get("method") == "Network.requestWillBeSent"
    ]
    wrong = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
    assert not set(wrong) & set(methods)
    assert {url for url in requests if not url.startswith("data:")} == {page.as_uri()}


@needs_chromium
@pytest.mark.parametrize("image", IMAGES, ids=lambda path: path.name)
def test_a_picture_of_the_documentation_cuts_no_text(
    image: Path, tab: Browser, tmp_path: Path
) -> None:
    page, data = tmp_path / "page.html", base64.b64encode(image.read_bytes()).decode()
    picture = f'<img src="data:image/svg+xml;base64,{data}" style="width:100%">'
    page.write_text(f"<figure><h3>{image.name}</h3><div>{picture}</div></figure>")
    for width in (1200, 400):
        tab.size(width, 800)
        tab.open(page)
        assert tab.value(STICKS_OUT) == [], width


@needs_chromium
def test_what_sticks_out_is_found(tab: Browser, tmp_path: Path) -> None:
    space = 'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 20"'
    svg = f'<svg {space}><text x="80">letters</text></svg>'
    image = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    page = tmp_path / "page.html"
    page.write_text(
        f'<figure><h3>one</h3><div><img width="200" src="{image}"></div></figure>'
        '<div class="card"><p style="width:3000px">wide</p></div>'
    )
    tab.size(1200, 800)
    tab.open(page)
    assert tab.value(STICKS_OUT) == ['text "letters" of one', 'P "wide"', "page of 3008 pixels"]
