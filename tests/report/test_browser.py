"""A page in Chromium: no error, no request, no page wider than a phone, texts that stand out."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from seqgc import read_run
from seqgc.report import comparison_page, run_page
from tests.comparison.made import comparison_of
from tests.report.browser import CHROMIUM, browser
from tests.report.folders import write_run

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


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (apt install chromium)")
@pytest.mark.parametrize("kind", ["run", "comparison"])
def test_a_page_is_quiet_narrow_and_legible_in_both_themes(kind: str, tmp_path: Path) -> None:
    page, name = tmp_path / "page.html", "<script>alert(1)</script>" * 4
    if kind == "run":
        run = read_run(write_run(tmp_path / "run", models=(name,)))
        run_page({"run": run}, notices=["A sentence."]).write(page)
    else:
        rows = (name, "exact", 20.0, 1.0), ("asp", "stale", 10.0, 3.0), ("bsp", "exact", None, None)
        comparison_page(comparison_of(*rows), name=name).write(page)
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        browser(Path(folder)) as tab,
    ):
        tab.open(page)
        for theme in ("light", "dark"):
            tab.theme(theme)
            assert tab.value(CONTRAST) >= 4.5, theme
            tab.size(390, 844)
            assert tab.value("document.documentElement.scrollWidth") <= 390
            tab.size(1200, 800)
        assert tab.value("document.scripts.length") == 0
        methods = [event.get("method", "") for event in tab.events]
        requests = [
            event["params"]["request"]["url"]
            for event in tab.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
    wrong = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
    assert not set(wrong) & set(methods)
    assert [url for url in requests if not url.startswith("data:")] == [page.as_uri()]
