"""Models that step together, with their weights in one vector, get the bits of single steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import SGD, Adadelta, Adam, Adamax, AdamW, Optimizer, RMSprop
from torch.optim.lr_scheduler import LRScheduler, StepLR

from seqgc.models.model import ParameterVector, has_own_memory
from seqgc.models.optimizers import Stepper, move_together
from seqgc.models.results import LossSums, ModelResult
from seqgc.stores import MemoryStore
from seqgc.training import Model, TorchWorkload
from tests.training.reference import Chunks, make_model

STEPS, MODELS = 7, 5
MAKERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": partial(SGD, lr=0.1),
    "momentum": partial(SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": partial(Adam, lr=0.01, amsgrad=True),
    "adamw": partial(AdamW, lr=0.01),
    "adamax": partial(Adamax, lr=0.01),
    "rmsprop": partial(RMSprop, lr=0.01, centered=True, momentum=0.9),
    "adadelta": partial(Adadelta, lr=0.1),
}


def biases_apart(parameters: list[nn.Parameter]) -> Optimizer:
    biases = [p for p in parameters if p.dim() == 1]
    weights = [p for p in parameters if p.dim() > 1]
    return AdamW([{"params": weights}, {"params": biases, "weight_decay": 0.0}], lr=0.01)


class Trained:
    """Models that share a vector or have memory of their own, and their optimizers."""

    def __init__(self, models: list[Model], *, joined: bool) -> None:
        self.modules = [copy.deepcopy(model.module) for model in models]
        self.vectors = [ParameterVector(module) for module in self.modules]
        size = self.vectors[0].size
        if joined:
            whole = torch.empty(size * len(models))
            for vector, place in zip(self.vectors, whole.split(size), strict=True):
                vector.move_to(place)
        pairs = zip(models, self.vectors, strict=True)
        self.steppers = [Stepper(model, vector) for model, vector in pairs]

    def step(
        self, results: list[ModelResult], *, together: bool, only: slice = slice(None)
    ) -> None:
        chosen, along = self.steppers[only], results[only]
        if together:
            move_together(chosen, along)
            return
        for stepper, result in zip(chosen, along, strict=True):
            stepper.set(result)
            stepper.move()

    def state(self) -> list[np.ndarray]:
        packed = [stepper.snapshot() for stepper in self.steppers]
        tensors = [tensor.numpy() for _, named in packed for tensor in named.values()]
        return [*(vector.read() for vector in self.vectors), *tensors]


def results(
    size: int, tensors: int, *, seed: int, left_out: int | None = None
) -> list[ModelResult]:
    random = np.random.default_rng(seed)
    received = np.arange(tensors) != left_out
    sums = LossSums(loss=1.0, weight=1.0, points=1.0)
    scale = 10.0 ** random.uniform(-5, 1)
    gradients = (scale * random.standard_normal((MODELS, size))).astype(np.float32)
    return [ModelResult(gradient=each, sums=sums, received=received) for each in gradients]


def models_with(make: Callable[..., Optimizer]) -> list[Model]:
    return [make_model(f"m{i}", seed=i, optimizer=make) for i in range(MODELS)]


@pytest.mark.parametrize("make", [*MAKERS.values(), biases_apart], ids=[*MAKERS, "groups"])
@pytest.mark.parametrize("left_out", [None, 0, 3])
def test_joint_steps_have_the_bits_of_single_steps(
    make: Callable[..., Optimizer], left_out: int | None
) -> None:
    models = models_with(make)
    alone, joined = Trained(models, joined=False), Trained(models, joined=True)
    size, tensors = alone.vectors[0].size, len(alone.vectors[0].tensors)
    for step in range(STEPS):
        now = results(size, tensors, seed=step, left_out=left_out if step == 3 else None)
        only = slice(1, 4) if step == 5 else slice(None)  # as if the others were parked
        alone.step(copy.deepcopy(now), together=False, only=only)
        joined.step(now, together=step > 0, only=only)
    for one, other in zip(alone.state(), joined.state(), strict=True):
        assert np.array_equal(one, other)


def test_joint_steps_follow_a_parameter_whose_data_is_assigned() -> None:
    models = models_with(MAKERS["momentum"])
    alone, joined = Trained(models, joined=False), Trained(models, joined=True)
    size, tensors = alone.vectors[0].size, len(alone.vectors[0].tensors)
    for step in range(STEPS):
        now = results(size, tensors, seed=step)
        alone.step(copy.deepcopy(now), together=False)
        joined.step(now, together=step > 0)
        if step == 3:
            for p in (alone.vectors[1].tensors[0], joined.vectors[1].tensors[0]):
                p.data = p.data.clamp(-0.1, 0.1)
    for one, other in zip(alone.state(), joined.state(), strict=True):
        assert np.array_equal(one, other)


def test_neighbours_in_memory_are_one_parameter() -> None:
    joined = Trained(models_with(MAKERS["adam"]), joined=True)
    size, tensors = joined.vectors[0].size, len(joined.vectors[0].tensors)
    joined.step(results(size, tensors, seed=0), together=False)
    joined.step(results(size, tensors, seed=1), together=True)
    joint = joined.steppers[0]._joint
    assert joint is not None
    (group,) = joint._optimizer.param_groups
    assert [tuple(p.shape) for p in group["params"]] == [(MODELS * size,)]


def test_parameters_that_share_memory_stay_where_they_are() -> None:
    tied = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    assert has_own_memory(tied)
    tied[1].weight.data = tied[0].weight.data
    assert not has_own_memory(tied)
    strided = nn.Linear(3, 4)
    strided.weight.data = torch.zeros(3, 4).T
    assert not has_own_memory(strided)
    buffered = nn.Linear(3, 4)
    buffered.register_buffer("view", buffered.weight.data[0])
    assert not has_own_memory(buffered)


def test_modules_of_a_finished_run_have_memory_of_their_own() -> None:
    models = models_with(MAKERS["adam"])
    workload = TorchWorkload(models, scheme=Chunks(), store=MemoryStore(), jobs_per_round=MODELS)
    together = [p.untyped_storage().data_ptr() for p in workload.module("m0").parameters()]
    assert len(set(together)) == 1
    workload.flush()
    for model in models:
        for p in workload.module(model.name).parameters():
            assert p.untyped_storage().nbytes() == p.nbytes


class Reset(LRScheduler):
    """A scheduler of the user that forgets the momentum in every second step."""

    def get_lr(self) -> list[float]:
        if self.last_epoch % 2 == 0:
            self.optimizer.state.clear()
        return [group["lr"] for group in self.optimizer.param_groups]


@pytest.mark.parametrize(
    ("scheduler", "joint"), [(Reset, False), (partial(StepLR, step_size=1), True)]
)
def test_only_schedulers_of_torch_let_optimizers_step_together(
    scheduler: Callable[[Optimizer], LRScheduler], joint: bool
) -> None:
    model = make_model("m", optimizer=MAKERS["momentum"], scheduler=scheduler)
    stepper = Stepper(model, ParameterVector(copy.deepcopy(model.module)))
    assert (stepper.settings is not None) == joint
