"""What the pages in ``docs/`` say is so, and what cites them names a section that exists."""

from __future__ import annotations

import doctest
import importlib.util
import pkgutil
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import seqgc
from seqgc.schemes import parse_scheme

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
MATHEMATICS = (ROOT / "docs" / "mathematics.md").read_text(encoding="utf-8")


def program(name: str) -> ModuleType:
    """Return a program of ``.ci`` as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site() -> ModuleType:
    """Return the program that gathers the site's pages and checks the site."""
    return program("docs_site")


@pytest.mark.usefixtures("plugins_are_forgotten")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_in_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    if page.name != "tutorial.md":  # that trains on functions: tests/test_readme.py
        failed, attempted = doctest.testfile(str(page), module_relative=False)
        assert failed == 0
        assert (attempted > 0) == (">>>" in text)
    for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        if ">>>" not in block:
            exec(block, {})
    for block in re.findall(r"^```toml\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        tomllib.loads(block)


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


def test_pages_have_few_habits_that_make_a_reader_start_again(site: ModuleType) -> None:
    marks, words = program("prose").marks, 0
    found = []
    for page in {"README.md", "CONTRIBUTING.md", *site.pages()}:
        text = site.CODE.sub("", (ROOT / page).read_text(encoding="utf-8"))
        words += len(text.split())
        found += [f"{page}: {mark}" for mark in marks(text)]
    assert words > 20_000
    assert len(found) <= words / 1000, found


def in_navigation(entry: Any) -> Iterator[str]:
    """Yield the pages of a part of the site's navigation."""
    if isinstance(entry, str):
        yield entry
        return
    for part in entry.values() if isinstance(entry, dict) else entry:
        yield from in_navigation(part)


def test_every_page_is_in_the_navigation_once() -> None:
    site = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    nav = site["project"]["nav"]
    inside = [page for page in in_navigation(nav) if (ROOT / "docs" / page).is_file()]
    assert sorted(inside) == sorted(str(page.relative_to(ROOT / "docs")) for page in PAGES)


def test_links_between_pages_lead_to_files_and_headings(site: ModuleType) -> None:
    looked_at = 0
    for page in {"README.md", "CONTRIBUTING.md", *site.pages()}:
        for target, path, anchor in site.links(page):
            looked_at += 1
            assert (ROOT / path).is_file(), f"{page}: {target}"
            if path.startswith("docs/api/"):
                assert not anchor or pkgutil.resolve_name(anchor), f"{page}: {target}"
            else:
                assert not anchor or anchor in site.anchors(path), f"{page}: {target}"
    assert looked_at > 20


def test_the_site_has_its_pages_and_what_they_link(site: ModuleType, tmp_path: Path) -> None:
    tree = tmp_path / "pages"
    site.gather(tree)
    for page in site.pages():
        text = (tree / site.place(page)).read_text(encoding="utf-8")
        for link in site.LINK.findall(site.CODE.sub("", text)):
            path = link.partition("#")[0]
            if not site.ELSEWHERE.match(link):
                assert ((tree / site.place(page)).parent / path).exists(), f"{page}: {link}"


def test_a_site_that_would_load_from_elsewhere_or_leads_nowhere_is_named(
    site: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "index.html").write_text(
        '<h1 id="top"><a href="#top">a</a><a href="b.html#no">b</a><a href="c.html">c</a>'
        '<img src="//else.where/x.png"><link href="http://else.where/x.css"><a href="http://ok">'
    )
    (tmp_path / "b.html").write_text('<a href="index.html#top">back</a><img src="data:,">')
    (tmp_path / "b.css").write_text("a { background: url(https://else.where/y.png) }")
    assert list(site.problems(tmp_path)) == [
        "index.html: loads //else.where/x.png",
        "index.html: loads http://else.where/x.css",
        "b.css: loads https://else.where/y.png",
        "index.html: b.html#no has no such anchor",
        "index.html: c.html is not there",
    ]


def test_the_api_begins_with_the_names_of_seqgc() -> None:
    index = (ROOT / "docs" / "api" / "index.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", index))
    assert {name for name in seqgc.__all__ if not name.startswith("_")} <= named


def test_the_map_of_rooms_is_the_one_that_is_enforced() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (layers,) = (
        contract["layers"]
        for contract in project["tool"]["importlinter"]["contracts"]
        if contract["name"] == "A room imports only from rooms below it"
    )
    design = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    table = design.partition("| room |")[2].partition("\n\n")[0]
    rows = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in table.splitlines()[2:]]
    assert list(map(sorted, rows)) == [sorted(re.findall(r"\w+", layer)) for layer in layers]
    public = {room for row in rows for room in row if not room.startswith("_")} - {"cli"}
    assert public == {page.stem for page in (ROOT / "docs" / "api").glob("*.md")} - {"index"}
