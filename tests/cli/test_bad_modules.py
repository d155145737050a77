"""A user's own module may raise, return and be anything: one line, exit status 2."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from seqgc.cli import main
from tests.cli.mutations import SOAK, Out, answered, changed

COUNT = 100_000 if SOAK else 120
pytestmark = pytest.mark.timeout(6 * 3600 if SOAK else 180)

OWN = """
import torch
from torch import nn
from torch.utils.data import IterableDataset, TensorDataset

class Strange(Exception):
    def __str__(self):
        raise RuntimeError

class Points:
    def __init__(self, length=8, point=lambda i: (torch.zeros(1, 8, 8), 0)):
        self.length, self.point = length, point
    def __len__(self):
        return self.length() if callable(self.length) else self.length
    def __getitem__(self, i):
        return self.point(i)

class Net(nn.Module):
    def __init__(self, forward=None, size=1):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.does = forward
    def forward(self, x):
        return self.does(x) if self.does else x * self.weight

class Stream(IterableDataset):
    def __iter__(self):
        return iter(())

def raising(error):
    def function(*_):
        raise error
    return function

x, y = torch.zeros(8, 1, 8, 8), torch.zeros(8, dtype=torch.long)
good = lambda: TensorDataset(x, y)
values = {
    "none": None, "number": 3, "text": "x" * 10**6, "list": [], "class": Net, "function": good,
    "net": nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), "empty": nn.Sequential(),
    "lazy": nn.LazyLinear(3), "nan": Net(lambda x: x * float("nan")),
    "none out": Net(lambda x: None),
    "raises": Net(raising(ValueError("a" * 10**5 + chr(27)))), "strange": Net(raising(Strange())),
    "ends": Net(raising(SystemExit(0))), "scalar": Net(lambda x: x.sum()), "wide": nn.Linear(3, 3),
    "whole": nn.Parameter(torch.zeros(1)), "half": Net().half(),
    "frozen": Net().requires_grad_(False), "nothing in it": Net(size=0),
    "meta": nn.Linear(64, 10, device="meta"), "pair": (good(), good()), "one": (good(),),
    "stream": (Stream(), Stream()), "no points": (TensorDataset(x[:0], y[:0]),) * 2,
    "points": (Points(), Points()), "negative": (Points(-1), Points(-1)),
    "endless": (Points(2**62), Points(2**62)), "no length": (Points(lambda: "x"),) * 2,
    "length raises": (Points(raising(Strange())),) * 2,
    "point raises": (Points(point=raising(KeyError("k"))),) * 2,
    "point ends": (Points(point=raising(SystemExit(3))),) * 2,
    "no pairs": (Points(point=lambda i: torch.zeros(1)),) * 2,
    "texts": (Points(point=lambda i: ("a", "b")),) * 2,
    "ragged": (Points(point=lambda i: (torch.zeros(i + 1), 0)),) * 2,
    "far class": (Points(point=lambda i: (torch.zeros(1, 8, 8), 10**6)),) * 2,
    "nan points": (Points(point=lambda i: (torch.full((1, 8, 8), float("nan")), 0)),) * 2,
    "bad test": (good(), None),
}
made = {f"v{at}": (lambda value=value: value) for at, value in enumerate(values.values())}
errors = (
    ValueError("two" + chr(10) + "lines"), SystemExit(0), SystemExit("x"), Strange(),
    RecursionError(), MemoryError("much"), StopIteration(), BaseException("of another kind"),
)
for at, error in enumerate(errors):
    made[f"e{at}"] = raising(error)
def deep():
    return deep()
made["deep"] = deep
made["takes"] = lambda seed: None
globals().update(made)
"""


def test_whatever_a_module_of_ones_own_is(
    tmp_path: Path, capsys: Out, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    Path("own_things.py").write_text(OWN)
    import own_things  # type: ignore[import-not-found]

    chance, names = random.Random(8), [f"own_things:{name}" for name in own_things.made]
    for number in range(COUNT):
        module, data = (
            changed(name.encode(), chance).decode(errors="replace").replace("\0", "")
            if chance.random() < 0.1
            else name
            for name in (chance.choice([*names, "mlp"]), chance.choice([*names, "digits"]))
        )
        if number < len(names):  # each once beside a good one
            data = "digits"
        elif number < 2 * len(names):
            module, data = "mlp", names[number - len(names)]
        if number < len(names):
            module = names[number]
        asked = [f"--module={module}", f"--data={data}", "--models=1", "-n", "2"]
        answered(capsys, "train", "--dry-run", "--scheme=uncoded", *asked)
    del sys.modules["own_things"]


@pytest.mark.parametrize("optimizer", ["builtins:dict", "builtins:int", "math:sqrt"])
def test_what_has_no_readable_signature_is_refused_as_no_optimizer(
    optimizer: str, capsys: Out
) -> None:
    asked = ["train", "--dry-run", "--module=mlp", "--models=1", "-n", "2", "--scheme=uncoded"]
    assert main([*asked, f"--optimizer={optimizer}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "optimizer" in line
