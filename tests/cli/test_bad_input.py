"""Whatever is typed or read: one line, exit status 2, nothing written, never a traceback.

Inputs that are good are changed at random, by a seed; `SEQGC_SOAK=1` tries many more.
"""

from __future__ import annotations

import os
import random
import sys
import tracemalloc
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from seqgc.cli import main
from seqgc.deploy import read_deployment
from seqgc.errors import ParameterError
from seqgc.profiles import DelayProfile, ProfileMeta, write_profile
from seqgc.training import new_run_path
from tests.cli.kit import deploy
from tests.cli.refused import refused

Out = pytest.CaptureFixture[str]

SOAK = os.environ.get("SEQGC_SOAK") == "1"
COUNT = 20_000 if SOAK else 150
pytestmark = pytest.mark.timeout(3600 if SOAK else 180)

WORDS = [
    "", "0", "-1", "1e400", "nan", "inf", "9" * 400, "1" * 4301, "-" + "9" * 30, "0.5", "1e-320",
    "true", "[]", "{}", "'", '"', "\\u0000", "[" * 700, "{a=" * 400, "\x00", "\x1b[31m", "[/]",
    "[bold]", ":f", "os:system", "a.b:c", "..", "/", "/dev/null", "\ud800", "é" * 200, "None",
    "2026-01-01", "1_0", "0x10", "=", ",", ":", "\n", "%s", "{0}", "x" * 5000,
]  # fmt: skip
SCHEMES = [
    "uncoded", "gc:s=2", "gc-rep:s=1", "gc-binary:s=1", "gc-rep:s=1,allow_error=0.5",
    "sr-sgc:B=2,W=3,lam=2", "m-sgc:B=1,W=2,lam=3", "m-sgc-rep:B=1,W=2,lam=3",
]  # fmt: skip


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def changed(good: bytes, chance: random.Random) -> bytes:
    """Return the bytes, a few of them changed, cut out, repeated or replaced by a word."""
    data = bytearray(good)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        to = min(len(data), at + chance.randint(0, 20))
        word = chance.choice(WORDS).encode(errors="surrogatepass")
        kind = chance.randrange(5)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del data[at:to]
        elif kind == 2:
            data[at:at] = data[at:to]
        elif kind == 3:
            data[at:to] = word
        else:
            data[at:at] = word
    return bytes(data)


def answered(capsys: Out, *arguments: str) -> int:
    """Return the exit status of a command line: if it refuses, in one line that ends nothing."""
    try:
        status = main(arguments)
    except BaseException as error:
        error.add_note(f"seqgc {arguments!r}"[:3000])
        raise
    out, err = capsys.readouterr()
    assert status in (0, 1, 2), (arguments, err)
    if status == 2:
        (line,) = err.splitlines()
        assert out == ""
        assert line.startswith("seqgc: ")
        assert len(line) <= 300
        assert line.isprintable()
    return status


def profile(path: Path, *, rounds: int = 6, workers: int = 4) -> Path:
    times = np.random.default_rng(0).uniform(0.5, 2.0, (rounds, workers))
    meta = ProfileMeta(base_load=0.25, alpha=0.1, batch=512, model="cnn", provider="here")
    write_profile(DelayProfile.from_times(times, meta=meta), path=path)
    return path


@pytest.mark.parametrize("suffix", [".npz", ".csv"])
def test_a_changed_profile(suffix: str, capsys: Out) -> None:
    chance = random.Random(suffix)
    good = profile(Path(f"good{suffix}")).read_bytes()
    for _ in range(COUNT):
        Path(f"bad{suffix}").write_bytes(changed(good, chance))
        answered(capsys, "profile", "lint", f"bad{suffix}")


@pytest.mark.parametrize("name", ["times.npy", "status.npy", "meta.npy"])
def test_a_changed_array_of_a_profile(name: str, capsys: Out) -> None:
    chance = random.Random(name)
    with zipfile.ZipFile(profile(Path("good.npz"))) as packed:
        parts = {each: packed.read(each) for each in packed.namelist()}
    for _ in range(COUNT // 3):
        with zipfile.ZipFile("bad.npz", "w") as file:  # whose checksums are right
            for each, data in parts.items():
                file.writestr(each, changed(data, chance) if each == name else data)
        answered(capsys, "profile", "lint", "bad.npz")


CONFIG = """
scheme = "gc-rep:s=1"
workers = 4
steps = 3
mu = 0.5
wait_out = "conform"
timeout_s = 30.0
payload = "float16"
precision = "float32"
backend = "lambda-local"
plugins = []

[function]
store = "auto"
memory_mb = 1024
timeout_s = 60.0
arch = "arm64"

[delays]
source = "lambda-cnn"
scale = 0.1

[[models]]
name = "a"
module = "mlp"
data = "digits"
loss = "cross-entropy"
optimizer = "sgd"
lr = 0.01
momentum = 0.9
batch_size = 64
seed = 1

[[models]]
name = "b"
module = "mlp"
"""


def swapped(good: str, chance: random.Random) -> str:
    """Return a configuration with values of other keys, or words, in the place of some."""
    lines = good.splitlines()
    values = [line.partition(" = ")[2] for line in lines if " = " in line]
    for _ in range(chance.randint(1, 2)):
        at = chance.randrange(len(lines))
        key, mark, value = lines[at].partition(" = ")
        word = chance.choice(WORDS)
        if not mark:
            lines[at] = chance.choice(["", f"[{word}]", f"[[{word}]]", f"{word} = 1"])
            continue
        new = chance.choice([chance.choice(values), word, f'"{word}"', f"[{value}]", f"-{value}"])
        lines[at] = f"{key} = {new}"
    return "\n".join(lines)


def test_a_changed_configuration(capsys: Out) -> None:
    chance = random.Random(2)
    seen = set()
    for number in range(COUNT):
        text = swapped(CONFIG, chance).encode(errors="surrogatepass")
        Path("c.toml").write_bytes(changed(CONFIG.encode(), chance) if number % 3 == 0 else text)
        seen.add(answered(capsys, "train", "c.toml", "--dry-run"))
    assert seen == {0, 2}


def specification(chance: random.Random) -> str:
    spec = chance.choice(SCHEMES)
    for _ in range(chance.randint(1, 3)):
        if chance.random() < 0.5:
            spec = changed(spec.encode(errors="replace"), chance).decode(errors="replace")
        else:
            name, _, rest = spec.partition(":")
            pairs = [pair.partition("=") for pair in rest.split(",")]
            at = chance.randrange(len(pairs))
            number = str(chance.choice([0, -1, 5, 63, 10**5, 10**9, 10**18, 1e300]))
            pairs[at] = (pairs[at][0], "=", chance.choice([number, chance.choice(WORDS)]))
            spec = f"{name}:" + ",".join("".join(pair) for pair in pairs)
    return spec


def test_a_changed_specification(capsys: Out) -> None:
    chance = random.Random(3)
    for _ in range(COUNT):
        n = str(chance.choice([1, 2, 4, 8, 16, 16, 16, 0, -3, "x", 10**12, 10**30]))
        answered(capsys, "scheme", specification(chance), "-n", n, "--json")


FLAGS: list[tuple[list[str], list[str]]] = [
    (["replay", "p.npz", "--scheme", "gc:s=1"],
     ["--jobs", "--alpha", "--base-load", "--batch", "--mu", "--wait-out", "--jobs-per-round",
      "--conformity", "--scheme"]),
    (["tune", "p.npz", "--schemes", "uncoded"],
     ["--jobs", "--alpha", "--mu", "--wait-out", "--holdout", "--jobs-per-round", "--max-delay",
      "--schemes", "--top"]),
    (["profile", "stats", "p.npz"], ["--mu", "--max-window"]),
    (["profile", "lint", "p.npz"], ["--loads"]),
    (["profile", "fit", "p.npz"], ["--loads", "--mu"]),
    (["cost", "nothing.toml"], ["--memory", "--arch", "--region", "--timeout-s", "--seconds"]),
    (["train", "--dry-run", "--module", "mlp", "-n", "4", "--scheme", "gc:s=9"],
     ["--steps", "--models", "--mu", "--timeout-s", "--max-attempts", "--lr", "--jobs-per-round",
      "--probe", "--retune", "--alpha", "--payload", "--delay-scale", "--module", "--data",
      "--optimizer", "--batch-size", "--max-usd", "--delays", "--plugin", "--backend", "--mount",
      "--store", "--environments", "--dask-scheduler"]),
]  # fmt: skip


def test_changed_flags(capsys: Out) -> None:
    profile(Path("p.npz"))
    chance = random.Random(4)
    words = [word for word in WORDS if "\0" not in word] + ["1" * 9, "1" * 18, "1e300"]
    for _ in range(COUNT):
        verb, options = chance.choice(FLAGS)
        answered(capsys, *verb, f"{chance.choice(options)}={chance.choice(words)}")


def test_a_changed_deployment() -> None:
    deploy()
    good, chance = Path("seqgc-lambda.toml").read_bytes(), random.Random(5)
    for _ in range(COUNT):
        Path("bad.toml").write_bytes(changed(good, chance))
        with suppress(ParameterError):
            read_deployment(Path("bad.toml"))


# ---- a run's folder -----------------------------------------------------------------------------

LOG = """\
{"event": "run", "at_s": 0.0, "schema": 1, "workers": 2, "jobs": 1, "rounds": 1, "sizes": \
{"weights_bytes": 8, "weights_files": 1, "mini_tasks": 1, "task_bytes": 8, "result_bytes": 8}}
{"event": "dispatch", "at_s": 0.1, "round": 0, "attempt": 0, "jobs": [0]}
{"event": "arrival", "at_s": 0.2, "round": 0, "worker": 0, "attempt": 0, "took_s": 0.1}
{"event": "failure", "at_s": 0.3, "round": 0, "worker": 1, "attempt": 0, "reason": "x"}
{"event": "resume", "at_s": 0.0, "schema": 1, "workers": 2}
{"event": "end", "at_s": 0.4}
"""

TRAP = """
import pathlib
pathlib.Path("caught").touch()
net = data = pathlib.Path.cwd
"""


@pytest.fixture
def run() -> Path:
    """A run whose configuration names a module that leaves a trace when it is imported."""
    Path("trap.py").write_text(TRAP)
    folder = Path("run")
    folder.mkdir()
    names = 'plugins = ["trap"]\n[[models]]\nname = "a"\nmodule = "trap:net"\ndata = "trap:data"\n'
    Path(folder, "config.toml").write_text(names)
    Path(folder, "events.jsonl").write_text(LOG)
    return folder


def test_what_a_run_cost_is_told_without_importing_what_it_names(run: Path, capsys: Out) -> None:
    assert answered(capsys, "cost", str(run), "--json") == 0
    assert not Path("caught").exists()


def test_a_changed_run(run: Path, capsys: Out) -> None:
    chance, seen = random.Random(6), set()
    for name in ("config.toml", "events.jsonl"):
        good = (run / name).read_bytes()
        for _ in range(COUNT // 2):
            (run / name).write_bytes(changed(good, chance))
            seen.add(answered(capsys, "cost", str(run)))
        (run / name).write_bytes(good)
    assert seen == {0, 2}
    assert not Path("caught").exists()


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
    bomb(Path("bomb.npz"), name, 2**28 if not SOAK else 2**34)
    tracemalloc.start()
    try:
        line = refused(capsys, "profile", "lint", "bomb.npz")
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "bomb.npz" in line
    assert f"`{name}` may have" in line
    assert most_bytes < 2**26


def test_what_is_no_file_is_not_waited_for(capsys: Out) -> None:
    Path("run").mkdir()
    for name in ("a.npz", "a.csv", "a.toml", "run/config.toml"):
        os.mkfifo(name)
    for line in (
        "profile lint a.npz",
        "profile lint a.csv",
        "train a.toml",
        "cost a.toml",
        "cost run",
        "resume run",
        "train --dry-run --delays a.csv",
    ):
        assert answered(capsys, *line.split()) == 2
    assert "no regular file" in refused(capsys, "profile", "lint", "a.npz")


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
        ("c.toml", NAMED.format(":f"), "(ValueError: Empty module name); got ':f'"),
        ("c.toml", NAMED.format("strange:broken"), "must not raise ZeroDivisionError: division"),
        ("c.toml", NAMED.format("broken:f"), "package.module:function (RuntimeError: two lines)"),
        ("c.csv", META.format("base_load", "0" * 400), "`base_load` must be a finite number"),
        ("c.csv", "# seqgc-meta: " + "[" * 100_000 + "\n1.0\n", "c.csv: `meta` is nested too"),
        ("c.csv", "1," * 200_000, "c.csv: line 1 has more than 262144 characters"),
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


def test_a_run_may_have_any_name_and_is_not_resumed_once_it_is_damaged(capsys: Out) -> None:
    small = ["--module", "mlp", "-n", "2", "--models", "1", "--steps", "1", "--scheme", "uncoded"]
    assert main(["train", *small, "--run", "a[/]b"]) == 0
    assert "a[/]b" in capsys.readouterr().out
    run, chance = Path("a[/]b"), random.Random(7)
    states = list(run.glob("checkpoints/*/state.json"))
    assert states

    def refuses(*words: str) -> None:
        assert answered(capsys, "resume", str(run)) in (1, 2)
        assert main(["resume", str(run)]) in (1, 2)
        (line,) = capsys.readouterr().err.splitlines()
        assert all(word in line for word in words), line

    journal = run / "journal.jsonl"
    whole = journal.read_bytes()
    first, _, rest = whole.partition(b"\n")
    for _ in range(5 if not SOAK else 1000):
        journal.write_bytes(changed(first, chance)[:-1] + b"\n" + rest)  # the first line, surely
        refuses("journal")
    journal.write_bytes(whole)
    for make in (lambda path: path.write_bytes(b"[" * 10**5), os.mkfifo, Path.mkdir):
        for state in states:
            state.rmdir() if state.is_dir() else state.unlink()
            make(state)
        refuses("no checkpoint", "can be used")
    Path(run, "config.toml").write_text("[" * 600)
    refuses("must be TOML")


def test_two_runs_of_one_second_have_different_names() -> None:
    assert len({new_run_path("runs", "gc:s=1") for _ in range(100)}) == 100
