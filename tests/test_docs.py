"""What the pages in ``docs/`` say is so, and what cites them names a section that exists."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

from seqgc.schemes import parse_scheme

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
MATHEMATICS = (ROOT / "docs" / "mathematics.md").read_text(encoding="utf-8")


@pytest.mark.usefixtures("plugins_are_forgotten")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_in_a_page_runs(page: Path) -> None:
    failed, attempted = doctest.testfile(str(page), module_relative=False)
    assert failed == 0
    assert (attempted > 0) == (">>>" in page.read_text(encoding="utf-8"))


def test_the_loads_in_the_mathematics_are_the_schemes() -> None:
    rows = re.findall(r"^\| `(\S+)` \| (0\.\d+) \|$", MATHEMATICS, flags=re.MULTILINE)
    assert len(rows) == 7
    for spec, load in rows:
        assert parse_scheme(spec, n=256).normalized_load == pytest.approx(float(load), abs=5e-7)


def test_sections_that_are_cited_exist() -> None:
    headings = set(re.findall(r"^##+ ([0-9.]*[0-9])", MATHEMATICS, flags=re.MULTILINE))
    cited: dict[str, str] = {}
    for folder in ("seqgc", "tests", "experiments", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            for numbers in re.findall(r"docs/mathematics\.md,\s+sections?\s+([0-9., and]+)", text):
                for number in re.findall(r"[0-9](?:\.[0-9])?", numbers):
                    cited[number] = str(path)
    assert len(cited) >= 5
    assert not {number: path for number, path in cited.items() if number not in headings}
