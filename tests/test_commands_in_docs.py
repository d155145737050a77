"""Every `seqgc …` in the documentation is a verb with options that it has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.inside import command

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"(?:^|`)seqgc ([a-z]+[^`\n#]*(?:\n(?=[^`\n]*`)[^`\n]*)?)", re.MULTILINE)


def commands(page: Path) -> list[list[str]]:
    text = page.read_text(encoding="utf-8")
    return [found.split() for found in COMMAND.findall(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_verbs_and_options_that_a_page_names_are_there(page: Path) -> None:
    verbs = command().commands
    for verb, *words in commands(page):
        assert verb in verbs, f"seqgc {verb}"
        options = {
            name for each in verbs[verb].params for name in (*each.opts, *each.secondary_opts)
        }
        for sub in getattr(verbs[verb], "commands", {}).values():
            options |= {name for each in sub.params for name in each.opts}
        for word in words:
            if word.startswith("-"):
                flag = word.partition("=")[0].rstrip(".,;:)")
                assert flag in options, f"seqgc {verb} {flag}"


def test_there_are_commands_to_look_at() -> None:
    found = {page.name: len(commands(page)) for page in PAGES}
    assert found["README.md"] > 10
    assert found["runbook.md"] > 10
