"""Nothing that is read can become code: there is no way for it in the syntax trees."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("seqgc", "lambda_handlers", "experiments", "examples", "own", "master", "docs", ".ci")

BY_VALUE = "seqgc._by_value"  # what a master sends processes of its own

# Their pipes, and what goes through them. The kit's check that a specification is equal to what its
# `repr` says, and to its pickle, has made both from it a line before: no text from outside.
MAY = {
    "seqgc/backends/executors.py": {"import seqgc._by_value"},
    "seqgc/_by_value.py": {"import cloudpickle", "import pickle", "pickle.loads"},
    "seqgc/backends/_processes.py": {f"import {BY_VALUE}"},
    "seqgc/backends/local.py": {f"import {BY_VALUE}"},
    "seqgc/models/compute.py": {f"import {BY_VALUE}"},
    "seqgc/models/model.py": {"import pickle"},  # what a module is, for comparison
    "seqgc/models/soundness.py": {"import pickle"},  # global random states are compared by it
    "seqgc/testing/_codes.py": {"import pickle", "pickle.loads", "eval"},
}
MODULES = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
CALLS = {
    "eval", "exec", "compile", "__import__", "pickle.load", "pickle.loads", "pickle.Unpickler",
    "torch.load", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load",
}  # fmt: skip
FLAGS = {"allow_pickle", "shell"}


def dangers(source: str) -> Iterator[str]:
    """Yield what could run what is read, by the names that it was imported under."""
    tree = ast.parse(source)
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None)
            for alias in node.names:
                full = f"{module}.{alias.name}" if module else alias.name
                names[alias.asname or alias.name] = full
                if full.partition(".")[0] in MODULES:
                    yield f"import {full.partition('.')[0]}"
                if f"{full}.".startswith(f"{BY_VALUE}."):
                    yield f"import {BY_VALUE}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            first, dot, rest = ast.unparse(node).partition(".")
            if (called := names.get(first, first) + dot + rest) in CALLS:
                yield called
        if (
            isinstance(node, ast.keyword)
            and node.arg in FLAGS
            and ast.unparse(node.value) != "False"
        ):
            yield f"{node.arg}={ast.unparse(node.value)}"


def test_all_code_but_the_tests_own_is_looked_at() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], check=False, cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("no checkout")
    folders = {Path(name).parts[0] for name in listed.stdout.splitlines()}
    assert folders <= {*FOLDERS, "tests"}


def test_nothing_that_is_read_can_become_code() -> None:
    found = {}
    for package in FOLDERS:
        for path in sorted(ROOT.joinpath(package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if seen := set(dangers(path.read_text(encoding="utf-8"))):
                found[name] = seen
    assert found == MAY


@pytest.mark.parametrize(
    ("source", "danger"),
    [
        ("import pickle as p; p.loads(b'')", "pickle.loads"),
        ("from pickle import loads as f; f(b'')", "pickle.loads"),
        ("import torch; torch.load('x')", "torch.load"),
        ("from torch import load; load('x')", "torch.load"),
        ("map(eval, texts)", "eval"),
        ("exec('x')", "exec"),
        ("np.load('x', allow_pickle=True)", "allow_pickle=True"),
        ("subprocess.run('x', shell=mine)", "shell=mine"),
        ("import shelve", "import shelve"),
        ("from seqgc._by_value import loads as f", "import seqgc._by_value"),
        ("from seqgc import _by_value", "import seqgc._by_value"),
    ],
)
def test_each_way_is_seen(source: str, danger: str) -> None:
    assert danger in set(dangers(source))


@pytest.mark.parametrize(
    "source", ["np.load('x', allow_pickle=False)", "model.eval()", "load('x')"]
)
def test_what_is_harmless_is_let_through(source: str) -> None:
    assert not set(dangers(source))
