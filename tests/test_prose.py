"""The check of docstrings, class names and circles of imports that `make lint` runs."""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / ".ci" / "prose.py"
PLAIN = '"""Sums of gradients."""\n'
MARKED = '"""Whether all go on."""\n'  # 2 marks in 4 words
Out = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def prose() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prose", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["prose"] = module  # where its dataclasses look for it
    spec.loader.exec_module(module)
    return module


def package(folder: Path, **files: str) -> Path:
    """A package of modules `room__module`; `module` is at the top."""
    for name, text in files.items():
        path = folder / "pack" / f"{name.replace('__', '/', 1)}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "pack"


def table(
    folder: Path, *, circle: int = 2, used: dict[str, int] | None = None, **limits: float
) -> Path:
    rows = {
        "marks_per_1000_words": limits,
        "class_names_used": used or {},
        "modules_in_a_circle": circle,
    }
    path = folder / "prose.json"
    path.write_text(json.dumps(rows))
    return path


def test_the_package_of_this_repository_passes_in_two_seconds(prose: ModuleType) -> None:
    began = time.process_time()
    assert prose.main([]) == 0
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("Return the workers that failed.", 0),
        ("Who fails is asked anew.", 2),
        ("Wait as long as a worker fails, whoever it is.", 1),
        ("Send those that failed, and go on.", 2),
        ("Have the task sent so many times that there is none.", 3),
        ("Return the first.\n\nParameters\n----------\nx\n    Those that go on.", 0),
    ],
)
def test_habits_are_counted(prose: ModuleType, tmp_path: Path, text: str, marked: int) -> None:
    folder = package(tmp_path, room__one=f'def f():\n    """{text}"""\n')
    (room,) = prose.read_package(folder).rooms.values()
    assert len(room.marks) == marked, room.marks


def test_a_room_above_its_limit_fails_and_every_mark_is_shown(
    prose: ModuleType, tmp_path: Path, capsys: Out
) -> None:
    folder = package(tmp_path, top=PLAIN, dull__one=PLAIN, odd__one=MARKED)
    assert prose.main([], folder=folder, file=table(tmp_path, odd=500.0)) == 0
    assert prose.main([], folder=folder, file=table(tmp_path, odd=499.9)) == 1
    said = capsys.readouterr().err
    assert "odd: 500.0 marks per 1,000 words, at most 499.9" in said
    assert said.count("pack/odd/one.py:1: ") == 2
    assert "dull" not in said


def test_a_class_name_is_defined_once_even_inside_a_function(
    prose: ModuleType, tmp_path: Path, capsys: Out
) -> None:
    inner = "def f():\n    class Part:\n        pass\n"
    folder = package(tmp_path, room__one="class Part:\n    pass\n", room__two=inner)
    assert prose.main([], folder=folder, file=table(tmp_path, used={"Part": 2})) == 0
    assert prose.main([], folder=folder, file=table(tmp_path)) == 1
    assert (
        "class Part is defined 2 times: pack/room/one.py:1, pack/room/two.py:2"
        in capsys.readouterr().err
    )


def test_two_modules_may_import_each_other_and_three_may_not(
    prose: ModuleType, tmp_path: Path, capsys: Out
) -> None:
    folder = package(tmp_path, a="import pack.b\n", b="def f():\n    from pack import a\n")
    assert prose.main([], folder=folder, file=table(tmp_path)) == 0
    package(tmp_path, b="from pack import c\n", c="if 0:\n    from pack.a import x\n")
    assert prose.main([], folder=folder, file=table(tmp_path, circle=3)) == 0
    assert prose.main([], folder=folder, file=table(tmp_path)) == 1
    assert (
        "3 modules import each other in a circle: pack.a, pack.b, pack.c" in capsys.readouterr().err
    )


def test_an_update_lowers_limits_and_never_raises_one(prose: ModuleType, tmp_path: Path) -> None:
    twice = "class A:\n    pass\nclass A:\n    pass\n"
    folder = package(tmp_path, odd__one=MARKED, plain__one=PLAIN, same__one=twice)
    file = table(tmp_path, circle=9, used={"A": 5, "B": 2}, odd=1.0, plain=4.0, same=7.0, gone=8.0)
    assert prose.main(["--update", "plain"], folder=folder, file=file) == 1
    rows = json.loads(file.read_text())
    assert rows["marks_per_1000_words"] == {"odd": 1.0, "plain": 0.0, "same": 7.0}
    assert prose.main(["--update"], folder=folder, file=file) == 1
    rows = json.loads(file.read_text())
    assert rows["marks_per_1000_words"] == {"odd": 1.0, "plain": 0.0, "same": 0.0}
    assert rows["class_names_used"] == {"A": 2}
    assert rows["modules_in_a_circle"] == 2
