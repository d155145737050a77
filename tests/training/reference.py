"""What the tests of training compare with: plain torch, and a run without workers."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from seqgc.ports import FloatArray, IntArray, MiniTask
from seqgc.schemes import chunk_sizes
from seqgc.training import (
    Model,
    PointLoss,
    TorchCompute,
    TorchWorkload,
    batch_indices,
    make_module,
)
from tests.kit import decoded

SGD = partial(torch.optim.SGD, lr=0.1)


@dataclass(frozen=True, kw_only=True)
class Chunks:
    """A scheme as far as training knows it."""

    delay: int = 0

    @property
    def chunk_fractions(self) -> FloatArray:
        return np.array([0.25, 0.125, 0.125, 0.5])

    def jobs_in_flight(self, bundles: int) -> int:  # noqa: ARG002
        return self.delay + 1

    def jobs_read(self, bundles: int) -> int:
        return self.jobs_in_flight(bundles)

    def cut(self, batch_size: int) -> IntArray:
        return chunk_sizes(batch_size, self.chunk_fractions)


def blobs(size: int = 40, *, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((size, 1, 8, 8), generator=generator)
    return TensorDataset(x, torch.randint(10, (size,), generator=generator))


def make_model(
    name: str = "net",
    *,
    seed: int = 0,
    module: nn.Module | None = None,
    loss: nn.Module | Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    dataset: object = None,
    optimizer: object = SGD,
    batch_size: int = 16,
    **others: object,
) -> Model:
    return Model(
        name=name,
        module=module or make_module("mlp", seed=seed),
        loss=loss or nn.CrossEntropyLoss(),
        dataset=dataset or blobs(seed=seed),
        optimizer=optimizer,
        batch_size=batch_size,
        seed=seed,
        **others,
    )


class Poisoned(nn.Module):
    """Cannot be computed by a worker, but by the master, which checks it first."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.home = os.getpid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if os.getpid() != self.home:
            raise ArithmeticError("no such unit")
        return self.layer(x.flatten(1))


def mean_loss(model: Model, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """What torch's own loss says of a batch."""
    if isinstance(model.loss, PointLoss):
        return model.loss.mean(output, target)
    return model.loss(output, target).mean()


def flat(module: nn.Module) -> FloatArray:
    return np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])


def train_alone(
    model: Model, *, steps: int, dtype: torch.dtype, steps_late: int = 0
) -> tuple[nn.Module, list[float]]:
    """An ordinary torch loop over one model; each gradient is applied ``steps_late`` steps late."""
    module = copy.deepcopy(model.module).to(dtype)
    optimizer = model.optimizer(list(module.parameters()))
    gradients: list[list[torch.Tensor]] = []
    losses: list[float] = []

    def step() -> None:
        for p, gradient in zip(module.parameters(), gradients.pop(0), strict=True):
            p.grad = gradient
        optimizer.step()

    for q in range(steps):
        if len(gradients) > steps_late:
            step()
        points = batch_indices(
            len(model.dataset), batch_size=model.batch_size, seed=model.seed, step=q
        )
        items = [model.dataset[int(i)] for i in points]
        x = torch.stack([item[0] for item in items])
        y = torch.stack([item[1] for item in items])
        output = module(x.to(dtype) if x.is_floating_point() else x)
        mean = mean_loss(model, output, y.to(dtype) if y.is_floating_point() else y)
        gradients.append(list(torch.autograd.grad(mean, list(module.parameters()))))
        losses.append(mean.item())
    while gradients:
        step()
    return module, losses


def run_coded(
    workload: TorchWorkload, compute: TorchCompute, *, jobs: int, scheme: Chunks, seed: int = 0
) -> None:
    """Run jobs without workers: random codes over the chunks, each decoded at its deadline."""
    rng = np.random.default_rng(seed)
    k = len(scheme.chunk_fractions)
    for round in range(jobs + scheme.delay):
        if round < jobs:
            workload.begin(round)
        job = round - scheme.delay
        if job < 0:
            continue
        # Orthogonal, hence well conditioned: weights @ code is all ones.
        code, _ = np.linalg.qr(rng.normal(size=(k, k)))
        weights = np.ones(k) @ code.T
        results = [
            compute(
                workload.resolve(
                    MiniTask(job=job, slot=i, chunks=np.arange(k), coefficients=code[i])
                )
            )
            for i in range(k)
        ]
        workload.finish(decoded(job), weights @ np.stack(results))
    workload.flush()
