"""An exported pipeline runs under torchrun, and takes the steps of plain training."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from seqgc.cli import main
from seqgc.pipeline import Chain, Layer, Source, load_network, write_chain
from tests.cli.refused import refused
from tests.test_commands_in_docs import ROOT

Out = pytest.CaptureFixture[str]
NETS = "tests.pipeline.nets"
SOURCE = Source(module=f"{NETS}:plain", data=f"{NETS}:data", batch_size=12)


@pytest.fixture(autouse=True)
def profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiles in the working directory."""
    monkeypatch.chdir(tmp_path)
    for name, source in {"m": SOURCE, "mlp": Source(module="mlp")}.items():
        names = load_network(source).layers.names
        layers = tuple(Layer(each, 1.0, 1.0, 8, 8) for each in names)
        write_chain(Chain(layers, source), Path(f"{name}.json"))


def test_the_program_takes_the_steps_of_plain_training(tmp_path: Path) -> None:
    assert main(["pipeline", "export", "m.json", "--stages", "1-3,4,5", "-o", "stages.py"]) == 0
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node", "3", "stages.py", "--steps", "4", "--lr", "0.3"],
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    losses = [float(line.split()[-1]) for line in done.stdout.splitlines() if "loss" in line]
    network = load_network(SOURCE)
    optimizer = torch.optim.SGD(network.module.parameters(), lr=0.3)
    expected = []
    for step in range(4):
        x, y = network.minibatch(step)
        loss = network.loss(network.module(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert losses == pytest.approx(expected, rel=1e-5)


def test_the_stages_are_the_network_with_its_names(capsys: Out) -> None:
    assert main(["pipeline", "export", "m.json", "--processes", "3", "-o", "stages.py"]) == 0
    assert "torchrun --nproc-per-node 3 stages.py" in capsys.readouterr().out
    program: dict[str, object] = {"__name__": "stages"}
    exec(Path("stages.py").read_text(), program)
    network = load_network(SOURCE)
    x, _ = network.minibatch(0)
    value, names = x, list[str]()
    for stage in program["STAGES"]:  # type: ignore[attr-defined]
        made = stage(network.module)
        value = made(value)
        names += made.state_dict()
    assert torch.equal(value, network.module(x))
    assert names == list(network.module.state_dict())
    assert "flushes" in str(program["__doc__"])


BAD = {
    "m.json -o stages.py": "`processes` must be an integer >= 1; got None",
    "m.json -o stages.py --stages 1-3x2,4-5": "`stages` must have one worker each",
    "m.json -o nowhere/stages.py --processes 2": "`output` must be in an existing folder",
    "mlp.json -o stages.py --processes 5": "`workers` must be at most the number of layers, 4",
}


@pytest.mark.parametrize("line", BAD)
def test_what_cannot_be_exported_is_refused_in_one_line(line: str, capsys: Out) -> None:
    assert BAD[line] in refused(capsys, "pipeline", "export", *line.split())
