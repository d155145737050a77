"""A model whose own code raises is parked, with the file and the line; the others go on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from seqgc.errors import ModelError
from seqgc.rounds import Setting
from seqgc.schemes import parse_scheme
from seqgc.training import Model, TrainingPlan, batch_indices, train
from tests.training.reference import blobs, make_model
from tests.training.test_diverged import N, crew, others

STEPS, POINTS, SEED = 3, 1000, 3


class Moody(nn.Linear):
    """A layer whose forward raises in a worker once a step has been taken."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() and bool(self.bias.detach().any()):
            raise RuntimeError("had enough")
        return super().forward(x.flatten(1))


def moody() -> nn.Module:
    torch.manual_seed(0)
    layer = Moody(64, 10)
    nn.init.zeros_(layer.bias)
    return layer


class Torn(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Data of which one point, of the second step, cannot be read."""

    def __init__(self) -> None:
        self._data = blobs(POINTS)
        self._torn = int(batch_indices(POINTS, batch_size=16, seed=SEED, step=1)[5])

    def __len__(self) -> int:
        return POINTS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index == self._torn:
            raise OSError("the point cannot be read")
        return self._data[index]


class Picky(nn.CrossEntropyLoss):
    """A loss that raises in a worker where weights have moved."""

    def __init__(self) -> None:
        super().__init__(reduction="none")

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if output.requires_grad and output.detach().abs().max() > 1e-3:
            raise ValueError("no such label")
        return super().forward(output, target)


def still() -> nn.Module:
    """A network whose outputs are 0 until a step has been taken."""
    layer = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


BROKEN: dict[str, tuple[Callable[[], Model], str, str]] = {
    "forward": (
        lambda: make_model("m3", seed=SEED, module=moody()),
        "RuntimeError: had enough",
        "forward",
    ),
    "dataset": (
        lambda: make_model("m3", seed=SEED, dataset=Torn()),
        "OSError: the point cannot be read",
        "__getitem__",
    ),
    "loss": (
        lambda: make_model("m3", seed=SEED, module=still(), loss=Picky()),
        "ValueError: no such label",
        "forward",
    ),
}


def plan(last: Model, spec: str = "gc-rep:s=1", *, bundle: int = 2) -> TrainingPlan:
    models = [*(make_model(f"m{i}", seed=i) for i in range(3)), last]
    setting = Setting(scheme=parse_scheme(spec, n=N), jobs_per_round=bundle)
    return TrainingPlan(models=models, scheme=setting, steps=STEPS)


@pytest.mark.parametrize("where", BROKEN)
@pytest.mark.parametrize("spec", ["gc-rep:s=1", "uncoded"])
def test_it_is_parked_where_it_raised_and_the_others_get_the_same_bits(
    where: str, spec: str, tmp_path: Path
) -> None:
    broken, says, function = BROKEN[where]
    fine = train(plan(make_model("m3", seed=SEED), spec), crew(), run=tmp_path / "fine")
    bad = train(plan(broken(), spec), crew(), run=tmp_path / "bad")
    assert list(bad.parked) == ["m3"]
    parked = bad.parked["m3"]
    assert (parked.kind, parked.step, parked.failed) == ("raised", 1, True)
    assert parked.why.startswith(f"{says} ({__file__}:")
    assert parked.why.endswith(f", in {function})")
    assert others(bad, "m3") == others(fine, "m3")
    assert ("m3" in bad.evaluations) == (where != "dataset"), "as far as it can be evaluated"


def test_a_run_of_nothing_else_ends_and_says_why(tmp_path: Path) -> None:
    alone = TrainingPlan(models=[BROKEN["forward"][0]()], scheme="gc:s=1", steps=STEPS)
    with pytest.raises(ModelError, match=r"^m3 raised after 1 step: RuntimeError: had enough \("):
        train(alone, crew(), run=tmp_path / "run")


class Flaky(nn.CrossEntropyLoss):
    """A loss that raises in the first worker that computes it, and never again."""

    has_raised = False

    def __init__(self) -> None:
        super().__init__(reduction="none")

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if output.requires_grad and not Flaky.has_raised:
            Flaky.has_raised = True
            raise OSError("the network is away")
        return super().forward(output, target)


@pytest.mark.parametrize("spec", ["gc-rep:s=1", "uncoded"])
def test_what_one_worker_raises_once_is_its_own_failure(
    spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fine = train(plan(make_model("m3", seed=SEED), spec), crew(), run=tmp_path / "fine")
    monkeypatch.setattr(Flaky, "has_raised", False)
    bad = train(plan(make_model("m3", seed=SEED, loss=Flaky()), spec), crew(), run=tmp_path / "bad")
    assert bad.parked == {}
    assert bad.counts.failures == 1
    assert others(bad, "none") == others(fine, "none")
