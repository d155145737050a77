"""``autocast="bfloat16"`` is torch's own around forward and loss, wherever they are computed."""

from __future__ import annotations

import contextlib
import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from seqgc.config._tables import checked
from seqgc.errors import ParameterError
from seqgc.ports import MiniTask
from seqgc.stores import MemoryStore
from seqgc.training import (
    Model,
    RecordingPlan,
    TorchCompute,
    TorchWorkload,
    TrainingPlan,
    Validation,
    batch_indices,
    make_module,
)
from tests.cli.inside import make_models
from tests.kit import decoded
from tests.training.reference import SGD, Chunks, blobs, flat, make_model

STEPS = 3


def half(name: str = "net", module: nn.Module | None = None) -> Model:
    return replace(make_model(name, module=module), autocast="bfloat16")


def plain(model: Model) -> tuple[nn.Module, list[float]]:
    """A loop without workers, as torch's documentation of autocast has it."""
    module, losses = copy.deepcopy(model.module), []
    optimizer = SGD(list(module.parameters()))
    for step in range(STEPS):
        points = torch.tensor(batch_indices(40, batch_size=16, seed=0, step=step))
        x, y = (column[points] for column in model.dataset.tensors)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return module, losses


def trained(model: Model) -> TorchWorkload:
    """Train with workers that compute whole batches, so that they round as a plain loop does."""
    store = MemoryStore()
    workload = TorchWorkload([model], scheme=Chunks(), store=store)
    compute = TorchCompute([model.objective], store=store)
    for job in range(STEPS):
        workload.begin(job)
        whole = MiniTask(job=job, slot=0, chunks=np.arange(4), coefficients=np.ones(4))
        workload.finish(decoded(job), compute(workload.resolve(whole)))
    workload.flush()
    return workload


@pytest.mark.parametrize("kind", ["mlp", "digits-cnn"])
def test_a_run_is_a_plain_loop_under_autocast_to_the_last_bit(kind: str) -> None:
    module = make_module(kind, seed=1)
    workload, (expected, losses) = trained(half(module=module)), plain(half(module=module))
    weights = flat(workload.module("net"))
    assert weights.dtype == np.float32
    assert np.array_equal(weights, flat(expected))
    assert [each.loss for each in workload.metrics] == pytest.approx(losses, rel=1e-6)
    wide = trained(replace(half(module=module), autocast="off"))
    assert not np.array_equal(weights, flat(wide.module("net")))
    assert np.allclose(weights, flat(wide.module("net")), rtol=0, atol=5e-3)


def test_validation_is_under_autocast_and_metrics_see_the_outputs_in_the_weights_dtype() -> None:
    seen: list[torch.Tensor] = []

    def first(output: torch.Tensor, _: torch.Tensor) -> float:
        seen.append(output)
        return float(output.numpy()[0, 0])

    held_out = blobs(30, seed=9)
    rules = Validation(every_n_steps=STEPS, dataset=held_out, metrics={"first": first})
    workload = trained(replace(half(), validation=rules))
    module = workload.module("net")
    x, y = held_out.tensors
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        output = module(x)
        loss = nn.functional.cross_entropy(output, y, reduction="none").double().mean()
    assert output.dtype == torch.bfloat16
    assert torch.equal(seen[-1], output.float())
    assert workload.best()["net"][0].metrics["loss"] == float(loss)


class Mixed(nn.Module):
    """A module that turns autocast off, and so cannot multiply its layer's output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(64, 10), nn.Linear(10, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x.flatten(1))
        with torch.autocast("cpu", enabled=False):
            return self.last(x)


@pytest.mark.parametrize(
    ("changes", "options", "says"),
    [
        ({"autocast": "fp16"}, {}, "`autocast` must be one of off, bfloat16; got 'fp16'"),
        ({}, {"precision": "float64"}, "`autocast` must be off with precision float64"),
        ({"module": Mixed()}, {}, "must take the dataset's points, .*Mixed.*dtype"),
    ],
)
def test_what_it_cannot_go_with_is_refused(
    changes: dict[str, object], options: dict[str, object], says: str
) -> None:
    def begin() -> None:
        model = replace(half(), **changes)
        if options:
            with pytest.raises(ParameterError, match=says):
                TrainingPlan(models=[model], scheme="gc:s=1", steps=1, **options)
            with pytest.raises(ParameterError, match=says):
                RecordingPlan(model=model, rounds=1, loads=[1.0], **options)
        TorchWorkload([model], scheme=Chunks(), store=MemoryStore(), **options)

    with pytest.raises(ParameterError, match=says) as caught:
        begin()
    assert "\n" not in str(caught.value)


def test_a_torch_that_cannot_do_it_is_refused_on_either_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A torch whose autocast does nothing stands in for one that cannot do it."""
    model = half()
    with pytest.raises(ParameterError, match="`autocast` must be one of"):
        TorchCompute([replace(model.objective, autocast="half")], store=MemoryStore())
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    for begin in (half, lambda: TorchCompute([model.objective], store=MemoryStore())):
        with pytest.raises(
            ParameterError, match=r"`autocast` must be supported by torch on .*float32"
        ):
            begin()


def test_a_file_and_a_grid_have_it() -> None:
    model = {"module": "mlp", "autocast": "bfloat16"}
    config = checked({"models": [{"name": "a", **model}]})
    assert [each.autocast for each in make_models(config)] == ["bfloat16"]
    config = checked({"grid": {"module": ["mlp"], "autocast": ["off", "bfloat16"]}})
    assert [each.autocast for each in make_models(config)] == ["off", "bfloat16"]
    with pytest.raises(ParameterError, match=r"`grid.autocast` .*'off' or 'bfloat16'.*'half'"):
        checked({"grid": {"autocast": ["half"]}})
