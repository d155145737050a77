"""Every command in the documentation is there, with options that it has; quick ones are run."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from seqgc.cli import main
from seqgc.profiles import LAMBDA_CNN, write_profile
from tests.cli.inside import command
from tests.profiles import traces

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
COMMAND = re.compile(r"(?:^|`)seqgc ([a-z]+[^`\n#]*(?:\n(?=[^`\n]*`)[^`\n]*)?)", re.MULTILINE)
READING = [["profile", "lint"], ["profile", "import"]]  # quick verbs of `seqgc profile`


def commands(page: Path) -> list[list[str]]:
    text = page.read_text(encoding="utf-8")
    return [found.split() for found in COMMAND.findall(text)]


def lines(page: Path) -> Iterator[list[str]]:
    """Yield what blocks without a language have seqgc do; what follows # is for the reader."""
    text = page.read_text(encoding="utf-8")
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        if not language:
            found = (line.partition("#")[0].split() for line in block.splitlines())
            yield from (words for words in found if words[:1] == ["seqgc"])


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
    assert found["aws.md"] > 10
    assert found["runbook.md"] > 10


@pytest.mark.filterwarnings("always::seqgc.errors.ProfileWarning")
@pytest.mark.usefixtures("plugins_are_forgotten")
def test_quick_commands_do_what_they_say_and_training_would_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    profile = LAMBDA_CNN.profile(20, workers=16, rng=np.random.default_rng(0))
    write_profile(profile, path="workers.npz")
    tutorial = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    Path("run.toml").write_text(tutorial.partition("```toml\n")[2].partition("```")[0])
    traces.write("lithops", Path("stats.json"))
    Path("tasks.csv").write_text("node,epoch,took_ms,state\na,0,900,ok\nb,0,800,lost\n")
    ran = set()
    for verb, *words in sorted({tuple(words[1:]) for page in PAGES for words in lines(page)}):
        if verb == "train" and not {"FOLDER", "RUN"} & set(words):
            words.append("--dry-run")
        elif verb not in ("scheme", "replay", "sweep") and [verb, *words[:1]] not in READING:
            continue
        assert main([verb, *words]) == 0, " ".join(words)
        ran.add(verb)
    assert ran == {"scheme", "replay", "sweep", "profile", "train"}


def test_targets_and_scripts_that_pages_name_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    targets = re.findall(r"(?:^|`)make ([a-z]+)", text, flags=re.MULTILINE)
    scripts = re.findall(r"(?:^|`)python ([a-z]\S*\.py)", text, flags=re.MULTILINE)
    modules = re.findall(r"(?:^|`)python -m ((?:experiments|tests)[\w.]*)", text, re.MULTILINE)
    assert min(len(targets), len(scripts), len(modules)) > 0
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    for script in scripts:
        assert (ROOT / script).is_file(), script
    for module in modules:
        assert importlib.util.find_spec(module), module
