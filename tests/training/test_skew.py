"""Functions that have other code, data or versions than their master compute nothing for it."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seqgc import registered_model, workers
from seqgc.errors import ParameterError, SkewError
from seqgc.models import factories as factories_module
from seqgc.models.factories import make_models_compute, workload_of
from seqgc.training import Model, TrainingPlan, train
from seqgc.workers import FunctionSettings

NETS = """
import torch
from {beside} import scaled
from seqgc.models.factories import register_data, register_module

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(2, 2)
        self.register_buffer("shift", torch.zeros(2))
    def forward(self, x):
        return torch.relu(scaled(self.line(x)) + self.shift)

@register_module("{name}-net")
def net(seed):
    return Net()

@register_data("{name}-points")
def points():
    x = torch.arange(24.0).reshape(12, 2)
    data = torch.utils.data.TensorDataset(x, torch.arange(12) % 2)
    return data, data
"""
NAMES = ("mine", "same", "nets", "points", "older")
BESIDE = "def scaled(x):\n    return 0.1 * x\n"


@pytest.fixture(autouse=True)
def nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = set(sys.modules)
    monkeypatch.setattr(factories_module, "_MODULES", dict(factories_module._MODULES))
    monkeypatch.setattr(factories_module, "_DATA", dict(factories_module._DATA))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # of the second in which it was written
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0].partition("_")[0] in NAMES:
            del sys.modules[name]


def written(folder: Path, name: str, *, package: bool = True, **changes: str) -> None:
    """Write modules of one's own, as they are or with texts replaced."""
    beside = f"{name}.layers" if package else f"{name}_layers"
    nets = NETS.format(name=name, beside=beside)
    for before, after in changes.items():
        assert before in nets
        nets = nets.replace(before, after)
    files = {"nets.py": nets, "layers.py": BESIDE, "__init__.py": "", "scripts.py": "print"}
    home = folder / name
    home.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (home / file if package else folder / f"{name}_{file}").write_text(text)


def own_model(name: str = "mine", *, data: str = "", module: str = "") -> Model:
    module, data = module or f"{name}-net", data or f"{name}-points"
    sgd = functools.partial(torch.optim.SGD, lr=0.1)
    return registered_model("m", module=module, data=data, optimizer=sgd, batch_size=4)


def fingerprint(model: Model) -> Mapping[str, str]:
    found: Mapping[str, str] = workload_of([model], precision="float32").settings["fingerprint"]
    return found


@pytest.mark.parametrize("package", [True, False])
def test_every_part_that_differs_is_named(
    package: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    written(tmp_path, "mine", package=package)
    nets = "mine.nets" if package else "mine_nets"
    module = importlib.import_module(nets)
    begun = fingerprint(own_model())
    assert begun == fingerprint(own_model())
    assert f"code of {nets}" in begun

    def differ(change: Callable[[Model], object] = lambda _: None) -> set[str]:
        change(model := own_model())
        now = fingerprint(model)
        return {name for name in {**begun, **now} if begun.get(name) != now.get(name)}

    importlib.import_module("mine.scripts" if package else "mine_scripts")  # the master's alone
    assert differ() == set()
    assert differ(lambda m: setattr(m.module, "slope", 2.0)) == {"network mine-net"}
    assert differ(lambda m: m.module.shift.fill_(1.0)) == {"network mine-net"}  # type: ignore[operator,union-attr]
    assert differ(lambda m: m.module.line.weight.data.fill_(1.0)) == set()  # type: ignore[union-attr]
    assert differ(lambda m: m.dataset.tensors[0][3].add_(2**-20)) == {"data mine-points"}  # type: ignore[attr-defined]
    folder = Path(str(module.__file__)).parent
    beside = "layers.py" if package else "mine_layers.py"
    (folder / beside).write_text(BESIDE.replace("0.1", "0.2"))
    assert differ() == {f"code of {nets.replace('nets', 'layers')}"}


LAYOUTS = {  # of the network, and of what it imports
    "a package beside a module": ("mine_nets.py", "same/layers.py", "from same.layers import {}"),
    "a module beside a package": ("mine/nets.py", "same_layers.py", "from same_layers import {}"),
    "another package": ("mine/nets.py", "same/layers.py", "from same.layers import {}"),
    "a module": ("mine_nets.py", "same_layers.py", "from same_layers import {}"),
    "the same package": ("mine/nets.py", "mine/layers.py", "from .layers import {}"),
}


@pytest.mark.parametrize("imported", ["scaled", "FACTOR"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_functions_and_constants_from_beside_the_network_are_seen(
    layout: str, imported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nets, layers, line = LAYOUTS[layout]
    used = "scaled(self.line(x))" if imported == "scaled" else "(FACTOR * self.line(x))"
    text = NETS.replace("from {beside} import scaled", line.format(imported))
    text = text.replace("scaled(self.line(x))", used).format(name="mine")
    beside = BESIDE + "FACTOR = 0.1\n"
    for file, source in ((nets, text), (layers, beside)):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.import_module(nets.removesuffix(".py").replace("/", "."))
    begun = fingerprint(own_model())
    (tmp_path / layers).write_text(beside.replace("0.1", "0.2"))
    now = fingerprint(own_model())
    changed = {name for name in begun if begun[name] != now[name]}
    assert changed == {f"code of {layers.removesuffix('.py').replace('/', '.')}"}


def test_of_large_data_some_is_looked_at_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqgc.models.provenance._MOST_BYTES", 64 * 40)
    x = torch.zeros(64 * 100, 1)
    for points in (x, torch.zeros(1, 64 * 100).T):  # as one piece of memory, and not
        data = torch.utils.data.TensorDataset(points, torch.zeros(64 * 100, 0))

        def digest(data: Any = data) -> str:
            model = Model(
                name="m", module=torch.nn.Linear(1, 1), loss=torch.nn.MSELoss(), dataset=data,
                optimizer=torch.optim.SGD, batch_size=4,
                recipe=factories_module.Recipe(module="mlp", data="digits", loss="mse"),
            )  # fmt: skip
            return fingerprint(model)["data digits"]

        begun, found = digest(), 0
        for at in range(0, 64 * 100, 331):
            points[at] = 1.0
            found += digest() != begun
            points[at] = 0.0
        assert digest() == begun
        assert 1 <= found <= 10  # of 20: 640 of 6400 numbers are looked at
        points[-1] = 1.0
        assert digest() != begun


@pytest.mark.parametrize("wrong", [None, [], {"torch": 1}])
def test_a_fingerprint_that_is_none_is_refused(wrong: object) -> None:
    sgd = functools.partial(torch.optim.SGD, lr=0.1)
    model = registered_model("m", module="mlp", optimizer=sgd)
    workload = workload_of([model], precision="float32")
    settings: Any = {**workload.settings, "fingerprint": wrong}
    with pytest.raises(ParameterError, match=r"`settings` must .*\$\.fingerprint"):
        make_models_compute(settings, lambda _: np.ones(1))


def test_functions_refuse_a_master_that_has_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the Lambda service of this machine, whose functions import from its folder first."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        written(folder, "same")
    written(ours, "nets")
    written(theirs, "nets", **{"torch.relu(": "torch.tanh("})
    written(ours, "points")
    written(theirs, "points", **{"torch.arange(24.0)": "torch.arange(1.0, 25.0)"})
    written(ours, "older")
    written(theirs, "older", **{"return Net()": "torch.__version__ = '0.0.1'; return Net()"})
    names = NAMES[1:]
    monkeypatch.setenv("SEQGC_FACTORIES", ",".join(f"{name}.nets" for name in names))
    monkeypatch.syspath_prepend(str(ours))
    monkeypatch.chdir(theirs)
    for name in names:
        importlib.import_module(f"{name}.nets")
    settings = FunctionSettings(environments=2, timeout_s=30.0)

    with workers.lambda_local(2, settings) as crew:

        def run(name: str) -> Path:
            plan = TrainingPlan(models=[own_model(name)], scheme="uncoded", steps=2)
            return train(plan, crew, run=tmp_path / f"run-{name}").run

        run("same")
        for name, parts in (
            ("nets", ("code of nets.nets (master ",)),
            ("points", ("code of points.nets (master ", "data points-points (master 12 points ")),
            # A seam: its functions say that they have another torch; to install one takes long.
            ("older", (f"torch (master {torch.__version__.partition('+')[0]}, function 0.0.1)",)),
        ):
            with pytest.raises(SkewError) as caught:
                run(name)
            assert "the function differs from its master: " in str(caught.value)
            assert "\n" not in str(caught.value)
            for part in parts:
                assert part in str(caught.value)
            assert not (tmp_path / f"run-{name}").exists()
