"""Networks and data so small that a run of them takes no time; for the image's registry."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

from seqgc.models.factories import register_data, register_module


@register_module("toy")
def toy(_seed: int) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


@register_module("wide")
def wide(_seed: int) -> nn.Module:
    """A network of 20 KB, whose optimizer's state shows."""
    return nn.Sequential(nn.Linear(6, 512), nn.Tanh(), nn.Linear(512, 3))


@register_data("dots")
def dots() -> tuple[TensorDataset, TensorDataset]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((48, 6), generator=generator)
    points = TensorDataset(x, x[:, :3].argmax(dim=1))
    return points, points
