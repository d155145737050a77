"""ResNet-18 and CIFAR-100 for functions: listed in ``SEQGC_FACTORIES``.

The network is He et al.'s (2016) as for larger images, which is the one that the paper has:
11,227,812 parameters. Batch normalization is not a sum over data points, so no code can split it,
and seqgc refuses it. The network has group normalization (Wu and He, 2018) instead, with as many
parameters.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from experiments.functions import data_folder
from seqgc.errors import ParameterError
from seqgc.models import register_data, register_module

__all__ = ["BYTES_PER_IMAGE", "cifar100", "resnet18"]

BYTES_PER_IMAGE = 2 + 3 * 32 * 32  # coarse label, fine label, pixels by channel
_GROUPS = 32
_WIDTHS = (64, 128, 256, 512)


class _Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, before: int, width: int, *, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False),
            nn.GroupNorm(_GROUPS, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.GroupNorm(_GROUPS, width),
        )
        self.around: nn.Module = nn.Identity()
        if stride > 1 or before != width:
            self.around = nn.Sequential(
                nn.Conv2d(before, width, 1, stride=stride, bias=False),
                nn.GroupNorm(_GROUPS, width),
            )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.around(x))


@register_module("resnet18-cifar")
def resnet18(seed: int) -> nn.Module:  # noqa: ARG001 (torch is seeded when this is called)
    """Return the network for 100 classes: 11,227,812 parameters."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.GroupNorm(_GROUPS, 64),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    before = 64
    for width in _WIDTHS:
        layers += [_Block(before, width, stride=1 if width == 64 else 2)]
        layers += [_Block(width, width, stride=1)]
        before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 100))


@register_data("cifar100")
def cifar100() -> tuple[TensorDataset, TensorDataset]:
    """Return the training and test images, (3, 32, 32), from ``train.bin`` and ``test.bin``."""
    folder = data_folder()
    return _read(folder / "train.bin"), _read(folder / "test.bin")


def _read(path: Path) -> TensorDataset:
    """Read CIFAR-100's binary version."""
    try:
        data = np.fromfile(path, dtype=np.uint8)
    except OSError as error:
        remedy = "unpack the binary version of CIFAR-100 there, or set SEQGC_DATA"
        rule = f"must be a file ({error.strerror})"
        raise ParameterError("data", rule, str(path), remedy) from None
    if not data.size or data.size % BYTES_PER_IMAGE:
        rule = f"must be images of {BYTES_PER_IMAGE} bytes"
        raise ParameterError("data", rule, f"{path}: {data.size}")
    rows = data.reshape(-1, BYTES_PER_IMAGE)
    if (labels := rows[:, 1]).max() > 99:
        raise ParameterError("data", "must have labels 0 to 99", f"{path}: {labels.max()}")
    pixels = rows[:, 2:].reshape(-1, 3, 32, 32).astype(np.float32) / 127.5 - 1
    return TensorDataset(torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64)))
