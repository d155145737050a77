"""Appendix L of the paper: ResNet-18 on CIFAR-100, gradients in 16 bit through shared files."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from experiments.functions import start
from experiments.resnet18_cifar.factories import BYTES_PER_IMAGE


def make_up(folder: Path) -> None:
    """Write 48 images to train on and 8 to test on, noise in a colour by label."""
    rng = np.random.default_rng(0)
    for name, count in (("train", 48), ("test", 8)):
        rows = rng.integers(0, 128, (count, BYTES_PER_IMAGE), dtype=np.uint8)
        rows[:, 1] = rng.integers(0, 3, count)
        pixels = rows[:, 2:].reshape(count, 3, 1024)
        pixels[np.arange(count), rows[:, 1]] += 100
        rows.tofile(folder / f"{name}.bin")


if __name__ == "__main__":
    sys.exit(
        start(
            __doc__,
            Path(__file__).with_name("cifar.toml"),
            factories="experiments.resnet18_cifar.factories",
            make_up=make_up,
        )
    )
