"""A small network with everything that has a state, and data that may end a process."""

from __future__ import annotations

import math
import os
import signal
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

KILL_IN_DATA, KILL_IN_LOSS = "kill-in-data", "kill-in-loss"
"""Files in the working directory. The process that finds one in minibatch 24 is killed."""
BATCH = 8
DROPOUT = 0.3


class Block(nn.Module):
    """A block with a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.inside(x))


def net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(inplace=True), Block(), nn.Dropout(DROPOUT),
        nn.BatchNorm1d(6), nn.Linear(6, 3),
    )  # fmt: skip


class Scaled(nn.Module):
    """A layer with a parameter of its own, and functions that need an import."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((6,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.softplus(x * self.scale, beta=math.pi)


def plain() -> nn.Module:
    """A network whose minibatches can be divided: it has no batch normalisation."""
    return nn.Sequential(nn.Linear(5, 6), Block(), Scaled(), nn.Sequential(nn.Linear(6, 3)))


class Odd(nn.Module):
    """A network whose state dict differs from the tensors that its passes use."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.unused = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(2, 2)
        self.two.weight = self.one.weight
        self.last = nn.Linear(5, 3)
        self.register_buffer("scale", torch.full((5,), 2.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        h = x + self.two(torch.tanh(self.one(x)))
        h = torch.tanh((h * self.scale).to(torch.bfloat16))  # two cuts carry 16 bits
        return self.last(h.to(torch.float32))  # type: ignore[no-any-return]


def odd() -> nn.Module:
    return Odd()


class Points(Dataset[tuple[Tensor, Tensor]]):
    """200 points, so that an epoch has 25 minibatches."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(200, 5, generator=generator)
        self.y = self.x[:, :3].argmax(1)
        self.reads = 0

    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.reads += 1
        if self.reads > 24 * BATCH:
            _kill(KILL_IN_DATA)
        return self.x[index], self.y[index]


def data() -> tuple[Points, Points]:
    return Points(), Points()


calls = [0]


def loss(output: Tensor, target: Tensor) -> Tensor:
    calls[0] += 1
    if calls[0] > 24:
        _kill(KILL_IN_LOSS)
    return nn.functional.cross_entropy(output, target, reduction="none")


def _kill(name: str) -> None:
    if Path(name).exists():
        Path(name).unlink()
        os.kill(os.getpid(), signal.SIGKILL)
