"""The measured time of a task: `PlannedRun.measure_task_s`."""

from __future__ import annotations

import functools
import time

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from seqgc import Model
from seqgc.errors import ParameterError
from seqgc.training import TrainingPlan

PASS_S = 0.004


class Busy(nn.Module):
    """A network that uses the processor for `PASS_S` seconds in each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        until = time.thread_time() + PASS_S
        while time.thread_time() < until:
            pass
        out: Tensor = self.linear(x)
        return out


class Broken(Busy):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError(f"no such layer for {len(x)} points")


def model(name: str, module: nn.Module, *, batch_size: int = 8) -> Model:
    data = TensorDataset(torch.zeros(512, 2), torch.zeros(512, 1))
    sgd = functools.partial(torch.optim.SGD, lr=0.1)
    return Model(
        name=name, module=module, loss=nn.MSELoss(), dataset=data, batch_size=batch_size,
        optimizer=sgd,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("scheme", "load"), [("gc:s=1", 0.5), ("uncoded", 0.25), ("deal:pieces=8", 0.125)]
)
def test_a_task_is_a_share_of_every_batch(scheme: str, load: float) -> None:
    models = [model(f"m{i}", Busy()) for i in range(3)]
    planned = TrainingPlan(models=models, scheme=scheme, steps=1, jobs_per_round=3).on(4)
    assert planned.task_load == pytest.approx(load)
    assert planned.measure_task_s() >= 3 * PASS_S


def test_a_part_of_many_points_is_measured_on_some() -> None:
    few, many = (model("m", Busy(), batch_size=size) for size in (128, 512))
    for each, factor in ((few, 1), (many, 4)):
        planned = TrainingPlan(models=[each], scheme="uncoded", steps=1).on(1)
        assert planned.measure_task_s() >= factor * PASS_S


def test_a_model_that_fails_is_named() -> None:
    planned = TrainingPlan(models=[model("m", Broken())], scheme="uncoded", steps=1).on(2)
    with pytest.raises(ParameterError, match=r"`module` must compute .*no such layer.*got 'm'"):
        planned.measure_task_s()
