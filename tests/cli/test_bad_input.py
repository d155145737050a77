"""Whatever is typed or read: one line, exit status 2, nothing written, never a traceback.

Inputs that are good are changed at random, by a seed; `SEQGC_SOAK=1` tries 10⁵ of each kind, and
holds each to 64 MB and a second.
"""

from __future__ import annotations

import os
import random
import re
import zipfile
from pathlib import Path

import pytest

from seqgc.cli import main
from seqgc.training import new_run_path
from tests.cli.kit import deploy
from tests.cli.mutations import (
    SOAK,
    WORDS,
    Out,
    answered,
    changed,
    endless,
    loop,
    profile,
)

COUNT = 100_000 if SOAK else 150
pytestmark = pytest.mark.timeout(6 * 3600 if SOAK else 180)

SCHEMES = [
    "uncoded", "gc:s=2", "gc-rep:s=1", "gc-binary:s=1", "gc-rep:s=1,allow_error=0.5",
    "sr-sgc:B=2,W=3,lam=2", "m-sgc:B=1,W=2,lam=3", "m-sgc-rep:B=1,W=2,lam=3",
]  # fmt: skip


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


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
scheduler = "steplr"
gradient_clip_val = 1.5
gradient_clip_algorithm = "value"
batch_size = 64
seed = 1
optimizer_args.nesterov = true
scheduler_args.step_size = 3
save_every_n_steps = 2
validation.every_n_steps = 2
validation.monitor = "accuracy"
validation.mode = "max"
validation.patience = 3
validation.min_delta = 0.001

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
    (["profile", "lint", "p.npz"], ["--base-loads"]),
    (["profile", "fit", "p.npz"], ["--base-loads", "--mu"]),
    (["cost", "nothing.toml"],
     ["--memory-mb", "--arch", "--region", "--function-timeout-s", "--expected-s"]),
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


def test_a_changed_deployment(capsys: Out) -> None:
    deploy()
    good, chance = Path("seqgc-lambda.toml").read_bytes(), random.Random(5)
    small = ["--module=mlp", "--models=1", "--scheme=uncoded", "-n", "2", "--steps=1"]
    asked = ["--dry-run", "--json", "--backend=lambda", "--deployment=bad.toml", *small]
    seen = set()
    for _ in range(COUNT):
        Path("bad.toml").write_bytes(changed(good, chance))
        seen.add(answered(capsys, "train", *asked))
    assert seen == {0, 2}


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
    names = 'plugins = ["trap"]\n[[models]]\nname = "a"\n'
    own = ("module", "data", "optimizer", "scheduler")
    names += "".join(f'{key} = "trap:{key}"\n' for key in own)
    names += '[models.validation]\nevery_n_steps = 1\ndata = "trap:v"\nmetrics.a = "trap:a"\n'
    Path(folder, "config.toml").write_text(names)
    Path(folder, "events.jsonl").write_text(LOG)
    return folder


def test_what_a_run_cost_is_told_without_importing_what_it_names(
    run: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEQGC_FACTORIES", "trap")
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


@pytest.mark.parametrize("number", ["0", "1" + 400 * "0"])
@pytest.mark.parametrize("name", ["rounds", "mini_tasks", "result_bytes"])
def test_a_run_of_no_task_or_of_a_size_beyond_reason(
    number: str, name: str, run: Path, capsys: Out
) -> None:
    log = re.sub(rf'("{name}": )\d+', rf"\g<1>{number}", LOG, count=1)
    (run / "events.jsonl").write_text(log)
    assert answered(capsys, "cost", str(run)) == 2


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
        *_, line = capsys.readouterr().err.splitlines()
        assert all(word in line for word in words), line

    journal = run / "journal.jsonl"
    whole = journal.read_bytes()
    first, _, rest = whole.partition(b"\n")
    for _ in range(5 if not SOAK else 1000):
        journal.write_bytes(changed(first, chance)[:-1] + b"\n" + rest)  # the first line, surely
        refuses("journal")
    journal.write_bytes(whole)
    saved = [state.read_bytes() for state in states]
    for make in (lambda path: path.write_bytes(b"[" * 10**5), os.mkfifo, Path.mkdir):
        for state in states:
            state.rmdir() if state.is_dir() else state.unlink()
            make(state)
        refuses("no checkpoint", "can be used")
    for state, data in zip(states, saved, strict=True):
        state.rmdir()
        state.write_bytes(data)
    makers = [os.mkfifo, endless, loop, Path.mkdir]  # none is waited for or read
    for at, name in enumerate(["journal.jsonl", "events.jsonl", "metrics.csv", "lock"]):
        (run / name).rename("aside")
        for make in makers if SOAK else [makers[at]]:
            make(run / name)
            refuses(name)
            (run / name).rmdir() if make is Path.mkdir else (run / name).unlink()
        Path("aside").rename(run / name)
    os.truncate(journal, 2**40)
    refuses("journal.jsonl", "bytes")
    Path(run, "config.toml").write_text("[" * 600)
    refuses("must be TOML")


def test_two_runs_of_one_second_have_different_names() -> None:
    assert len({new_run_path("runs", "gc:s=1") for _ in range(100)}) == 100
