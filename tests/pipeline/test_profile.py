"""A network is cut where one tensor carries everything, and its layers are measured."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from seqgc.cli import main
from seqgc.errors import ParameterError
from seqgc.pipeline import LayerChain, Source, measure_chain, read_chain
from tests.cli.refused import refused

Out = pytest.CaptureFixture[str]


class Block(nn.Module):
    """Two paths that meet again."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.one(x)) + self.scale * self.two(x)


class Tied(nn.Module):
    """The same weights twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.one(torch.relu(self.one(x)))


class Everywhere(nn.Module):
    """Every layer reads the input."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x) + x) + x


class Branching(nn.Module):
    """Its path depends on the values."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


class Pair(nn.Module):
    """Two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.one(x), x


NETWORKS = {
    "blocks": nn.Sequential(nn.Linear(4, 4), Block(), nn.Tanh(), Block(), nn.Linear(4, 2)),
    "in-place": nn.Sequential(
        nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(4, 2)
    ),
    "normalised": nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
}


class Normalised(nn.Module):
    """Two layers with the same statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.two(self.norm(self.one(x))))  # type: ignore[no-any-return]


class Counting(nn.Sequential):
    """A network that counts its passes, which torch.fx counts once."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4), nn.Tanh())
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return super().forward(x)  # type: ignore[no-any-return]


class Noisy(nn.Sequential):
    """A network whose noise becomes a constant when torch.fx traces it."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.randn(4))  # type: ignore[no-any-return]


NAMES = {
    "blocks": ["0 Linear", "1.one Linear … 1.two Linear", "2 Tanh", "3.one Linear … 3.two Linear"],
    "in-place": ["0 Linear … 1 ReLU", "2 Flatten"],
    "normalised": ["0 Linear", "1 BatchNorm1d"],
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_layers_one_after_the_other_are_the_network(name: str) -> None:
    network, x = NETWORKS[name].double(), torch.randn(5, 4, dtype=torch.float64)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    layers = LayerChain(network, x)
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert layers.names[:-1] == NAMES[name]
    whole = network(x)
    expected = torch.autograd.grad(whole.sum(), list(network.parameters()))
    for cut in range(1, len(layers)):
        first, last = layers.stage(0, cut - 1), layers.stage(cut, len(layers) - 1)
        own = [name for stage in (first, last) for name, _ in stage.named_parameters()]
        assert sorted(own) == sorted(name for name, _ in network.named_parameters())
        middle = first(x)
        carried = middle.detach().requires_grad_()
        output = last(carried)
        assert torch.equal(output, whole)
        *late, back = torch.autograd.grad(output.sum(), [*last.parameters(), carried])
        early = torch.autograd.grad(middle, list(first.parameters()), back)
        by_id = {
            id(parameter): gradient
            for stage, gradients in ((first, early), (last, late))
            for parameter, gradient in zip(stage.parameters(), gradients, strict=True)
        }
        for parameter, gradient in zip(network.parameters(), expected, strict=True):
            assert torch.equal(by_id[id(parameter)], gradient)


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (Tied(), "separate parameters and statistics in its layers 1 and 3"),
        (Normalised(), "separate parameters and statistics in its layers 2 and 4"),
        (Counting(), "the same after torch.fx has traced it"),
        (Noisy(), "the same after torch.fx has traced it"),
        (nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 4)), "must take the data"),
        (Everywhere(), "a point where one tensor carries everything"),
        (nn.Linear(4, 4), "a point where one tensor carries everything"),
        (Branching(), "torch.fx can trace"),
        (Pair(), "must return one tensor"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_network_that_is_no_chain_is_refused(network: nn.Module, words: str) -> None:
    with pytest.raises(ParameterError, match="`module`") as refusal:
        LayerChain(network, torch.zeros(2, 4))
    assert words in str(refusal.value)
    assert len(str(refusal.value).splitlines()) == 1


def test_each_layer_has_its_sizes_and_its_times() -> None:
    chain = measure_chain(Source(module="mlp", batch_size=32), minibatches=3)
    assert [layer.name for layer in chain.layers] == ["0 Flatten", "1 Linear", "2 ReLU", "3 Linear"]
    assert [layer.activation_bytes for layer in chain.layers] == [
        4 * 32 * n for n in (64, 64, 64, 10)
    ]
    assert [layer.weight_bytes for layer in chain.layers] == [0, 4 * 65 * 64, 0, 4 * 65 * 10]
    assert all(layer.forward_s > 0 for layer in chain.layers)
    assert all(layer.backward_s > 0 for layer in chain.layers[1:])


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The module ``own_nets`` in the working directory, forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("own_nets.py").write_text(
        "import torch\nfrom torch import nn\n"
        "def net(): return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))\n"
        "def wide(): return nn.Sequential(nn.Linear(9, 3), nn.Linear(3, 1))\n"
        "def data():\n"
        "    x = torch.arange(12.0).reshape(6, 2)\n"
        "    points = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))\n"
        "    return points, points\n"
    )
    yield
    sys.modules.pop("own_nets", None)


@pytest.mark.usefixtures("own")
def test_the_verb_profiles_a_network_of_the_user(capsys: Out) -> None:
    line = ["profile", "own_nets:net", "--data", "own_nets:data", "--loss", "mse"]
    assert main(["pipeline", *line, "--batch-size", "4", "--minibatches", "2", "-o", "m.json"]) == 0
    assert "2 Linear" in capsys.readouterr().out
    chain = read_chain(Path("m.json"))
    source = Source(module="own_nets:net", data="own_nets:data", loss="mse", batch_size=4)
    assert chain.source == source
    assert [layer.weight_bytes for layer in chain.layers] == [36, 0, 16]
    assert main(["pipeline", "plan", "m.json", "--level", "2x1e9"]) == 0


BAD = {
    "mpl -o m.json": "(did you mean 'mlp'?)",
    "nowhere:net -o m.json": "No module named 'nowhere'",
    "mlp": "Missing option '-o'",
    "mlp -o nowhere/m.json": "`output` must be in an existing folder",
    "mlp -o m.json --batch-size 0": "`batch_size` must be an integer >= 1; got 0",
    "mlp -o m.json --minibatches 0": "`minibatches` must be an integer >= 1; got 0",
    "own_nets:wide --data own_nets:data -o m.json": "`module` must take the data (RuntimeError",
}


@pytest.mark.parametrize("line", BAD)
@pytest.mark.usefixtures("own")
def test_what_cannot_be_profiled_is_refused_in_one_line(line: str, capsys: Out) -> None:
    sys.dont_write_bytecode = True
    try:
        assert BAD[line] in refused(capsys, "pipeline", "profile", *line.split())
    finally:
        sys.dont_write_bytecode = False
