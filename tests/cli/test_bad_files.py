"""What is no file of numbers and names: bombs, pipes, devices, folders, nesting, sizes."""

from __future__ import annotations

import os
import sys
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from seqgc.cli import main
from tests.cli.mutations import SOAK, Out, answered, endless, loop, profile
from tests.cli.refused import refused

pytestmark = pytest.mark.timeout(3600 if SOAK else 180)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# ---- sizes --------------------------------------------------------------------------------------


def bomb(path: Path, name: str, size: int) -> None:
    """Write a profile of which one array stands for so many bytes of zeros."""
    good = profile(Path("good.npz"))
    with zipfile.ZipFile(good) as whole, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for each in whole.namelist():
            data = whole.read(each)
            if each == f"{name}.npy":
                head = data[: 10 + int.from_bytes(data[8:10], "little")]
                with file.open(each, "w", force_zip64=True) as member:
                    member.write(head)
                    for _ in range(size >> 20):
                        member.write(bytes(2**20))
            else:
                file.writestr(each, data)


@pytest.mark.parametrize("name", ["times", "status", "meta"])
def test_what_unpacks_to_gigabytes_is_refused_packed(name: str, capsys: Out) -> None:
    bomb(Path("bomb.npz"), name, 2**27 if not SOAK else 2**34)
    tracemalloc.start()
    try:
        line = refused(capsys, "profile", "lint", "bomb.npz")
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "bomb.npz" in line
    assert f"`{name}` may have" in line
    assert most_bytes < 2**26


READERS = [
    "profile lint a.npz", "profile lint a.csv", "profile stats a.npz", "profile fit a.csv",
    "replay a.npz --scheme uncoded", "tune a.csv --schemes uncoded",
    "train a.toml", "train a.toml --dry-run", "train --dry-run --delays a.csv",
    "train --dry-run --backend lambda --deployment a.toml",
    "cost a.toml", "cost run", "cost c.toml --profile a.npz",
    "resume run", "doctor --deployment a.toml",
]  # fmt: skip


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


NO_FILES = {
    "a pipe": os.mkfifo,
    "a device without an end": endless,
    "a folder": Path.mkdir,
    "a link to itself": loop,
    "a terabyte of nothing": sparse,
    "no text": lambda path: path.write_bytes(b"\xff\xfe\0" * 100),
    "zeros": lambda path: path.write_bytes(bytes(1000)),
    "nothing at all": lambda path: path.unlink(missing_ok=True),
}


@pytest.mark.parametrize("what", NO_FILES)
def test_what_is_no_file_is_neither_waited_for_nor_read(what: str, capsys: Out) -> None:
    Path("run").mkdir()
    Path("c.toml").write_text("steps = 1")
    for name in ("a.npz", "a.csv", "a.toml", "run/config.toml", "run/events.jsonl"):
        NO_FILES[what](Path(name))
    for line in READERS:
        assert answered(capsys, *line.split()) == 2, line


def test_a_damaged_log_of_a_good_run(capsys: Out) -> None:
    Path("run").mkdir()
    Path("run/config.toml").write_text("steps = 1\n[[models]]\nname = 'a'")
    for make in NO_FILES.values():
        make(log := Path("run/events.jsonl"))
        assert answered(capsys, "cost", "run") == 2
        if log.is_symlink() or log.exists():
            log.rmdir() if log.is_dir() else log.unlink()


@pytest.mark.parametrize(
    "name", ["a\0b", "a\ud800b", "a" * 300, "é" * 200, "", " ", "/", "\x1b[31m"]
)
def test_a_name_that_no_file_has(name: str, capsys: Out) -> None:
    for line in READERS:
        words = [name + Path(word).suffix if word[:2] == "a." else word for word in line.split()]
        if "run" not in words:
            assert answered(capsys, *words) == 2, words
    assert answered(capsys, "cost", name) == 2
    assert answered(capsys, "resume", name) == 2


@pytest.mark.parametrize(
    "name", ["loop", "loop/x", "nowhere", "nowhere/x", "\udc80", "x" * 181, "é" * 200, "file/x"]
)
@pytest.mark.parametrize("more", [[], ["--or-resume"]])
def test_a_run_that_cannot_be_is_refused_before_anything_is_started(
    name: str, more: list[str], capsys: Out
) -> None:
    loop(Path("loop"))
    Path("nowhere").symlink_to("gone")
    Path("file").touch()
    small = ["--module", "mlp", "-n", "2", "--models", "1", "--steps", "1", "--scheme", "uncoded"]
    assert "`run` must" in refused(capsys, "train", *small, f"--run={name}", *more)


DEEP = "a = " + "[" * 600
LONG = "workers = " + "1" * 4301
NAMED = "[[models]]\nname = 'x'\nmodule = '{}'"
META = '# seqgc-meta: {{"{}": 1{}}}\n1.0,2.0\n'


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        ("c.toml", DEEP, "`config` must be TOML: nested too deeply; got 'c.toml'"),
        ("c.toml", LONG, "`config` must be TOML: Exceeds the limit (4300 digits)"),
        ("c.toml", "a." * 5000 + "a = 1", "a name has more than 6 dots"),
        ("c.toml", NAMED.format(":f"), "(ValueError: this is not a module name); got ':f'"),
        ("c.toml", NAMED.format("strange:broken"), "must not raise ZeroDivisionError: division"),
        ("c.toml", NAMED.format("broken:f"), "package.module:function (RuntimeError: two lines)"),
        ("c.csv", META.format("base_load", "0" * 400), "`base_load` must be a finite number"),
        ("c.csv", "# seqgc-meta: " + "[" * 100_000 + "\n1.0\n", "c.csv: `meta` is nested too"),
        ("c.csv", "1," * 2**22, "c.csv: line 1 has more than 8388608 characters"),
    ],
)
def test_each_is_one_line(
    file: str, text: str, line: str, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path.cwd())
    Path("strange.py").write_text("def broken():\n    return 1 / 0\n")
    Path("broken.py").write_text("raise RuntimeError('two\\nlines')\n")
    Path(file).write_text(text)
    verb = ["train", "--dry-run"] if file == "c.toml" else ["profile", "lint"]
    assert answered(capsys, *verb, file) == 2
    assert main([*verb, file]) == 2
    assert line in capsys.readouterr().err
    sys.modules.pop("strange", None)
