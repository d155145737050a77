"""Whatever is typed or read: one line, exit status 2, nothing written, never a traceback.

Inputs that are good are changed at random, by a seed; `SEQGC_SOAK=1` tries many more.
"""

from __future__ import annotations

import os
import random
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from seqgc.cli import main
from seqgc.deploy import read_deployment
from seqgc.errors import ParameterError
from seqgc.profiles import DelayProfile, ProfileMeta, write_profile
from tests.cli.kit import deploy
from tests.cli.refused import refused

Out = pytest.CaptureFixture[str]

SOAK = os.environ.get("SEQGC_SOAK") == "1"
COUNT = 20_000 if SOAK else 150

WORDS = [
    "", "0", "-1", "1e400", "nan", "inf", "9" * 400, "1" * 4301, "-" + "9" * 30, "0.5", "1e-320",
    "true", "[]", "{}", "'", '"', "\\u0000", "[" * 700, "{a=" * 400, "\x00", "\x1b[31m", "[/]",
    "[bold]", ":f", "os:system", "a.b:c", "..", "/", "/dev/null", "\ud800", "é" * 200, "None",
    "2026-01-01", "1_0", "0x10", "=", ",", ":", "\n", "%s", "{0}", "x" * 5000,
]  # fmt: skip
SCHEMES = ["uncoded", "gc:s=2", "gc-rep:s=1", "gc-binary:s=1", "sr-sgc:B=2,W=3,lam=2",
           "m-sgc:B=1,W=2,lam=3", "m-sgc-rep:B=1,W=2,lam=3", "gc-rep:s=1,allow_error=0.5"]  # fmt: skip


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


@pytest.mark.parametrize("suffix", [".npz", ".stored.npz", ".csv"])
def test_a_changed_profile(suffix: str, capsys: Out) -> None:
    chance = random.Random(suffix)
    good = profile(Path(f"good{suffix}"))
    if "stored" in suffix:  # in which a changed byte reaches numpy and json
        with zipfile.ZipFile(good) as packed:
            parts = {name: packed.read(name) for name in packed.namelist()}
        whole = good.read_bytes()
    else:
        whole = good.read_bytes()
    for _ in range(COUNT):
        if "stored" in suffix:
            name = chance.choice(list(parts))
            with zipfile.ZipFile("bad.npz", "w") as file:
                for each, data in parts.items():
                    file.writestr(each, changed(data, chance) if each == name else data)
            answered(capsys, "profile", "lint", "bad.npz")
        else:
            Path(f"bad{suffix}").write_bytes(changed(whole, chance))
            answered(capsys, "profile", "lint", f"bad{suffix}")


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
        answered(capsys, "scheme", specification(chance), f"-n={n}", "--json")


FLAGS: list[tuple[list[str], list[str]]] = [
    (["replay", "p.npz", "--scheme", "gc:s=1"],
     ["--jobs", "--alpha", "--base-load", "--batch", "--mu", "--wait-out", "--jobs-per-round",
      "--conformity", "--scheme"]),
    (["tune", "p.npz", "--schemes", "uncoded,gc"],
     ["--jobs", "--alpha", "--mu", "--wait-out", "--holdout", "--jobs-per-round", "--max-delay",
      "--schemes", "--top"]),
    (["profile", "stats", "p.npz"], ["--mu", "--max-window"]),
    (["profile", "lint", "p.npz"], ["--loads"]),
    (["profile", "fit", "p.npz"], ["--loads", "--mu"]),
    (["profile", "-o", "new.npz"], ["--rounds", "--loads", "--warmup", "-n", "--timeout-s"]),
    (["train", "--dry-run", "--module", "mlp", "-n", "4"],
     ["--scheme", "--steps", "--models", "--mu", "--timeout-s", "--max-attempts", "--lr",
      "--jobs-per-round", "--probe", "--retune", "--alpha", "--payload", "--delay-scale",
      "--module", "--data", "--optimizer", "--batch-size", "--max-usd", "--delays", "--plugin",
      "--backend", "--seed", "--mount", "--store", "--environments", "--dask-scheduler"]),
    (["cost", "c.toml"], ["--memory", "--arch", "--region", "--timeout-s", "--seconds"]),
]  # fmt: skip
