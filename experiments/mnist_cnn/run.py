"""Section 4 of the paper: four CNNs on MNIST by M-SGC, on functions."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import numpy as np

from experiments.functions import start
from experiments.mnist_cnn.factories import FILES
from experiments.mnist_cnn.idx import write_idx


def make_up(folder: Path, *, sizes: dict[str, int]) -> None:
    """Write images that differ by digit: a blurred blot, in another place for every digit."""
    rng = np.random.default_rng(0)
    row, column = np.mgrid[:28, :28]
    for split, (images, labels) in FILES.items():
        digits = rng.integers(0, 10, sizes[split])
        angle = 2 * np.pi * digits / 10
        up = (14 + 8 * np.sin(angle) + rng.normal(0, 1, len(digits)))[:, None, None]
        along = (14 + 8 * np.cos(angle) + rng.normal(0, 1, len(digits)))[:, None, None]
        blots = 200 * np.exp(-((row - up) ** 2 + (column - along) ** 2) / 8)
        noise = rng.uniform(0, 55, (len(digits), 28, 28))
        write_idx(folder / images, (blots + noise).astype(np.uint8))
        write_idx(folder / labels, digits.astype(np.uint8))


if __name__ == "__main__":
    sys.exit(
        start(
            __doc__,
            Path(__file__).with_name("mnist.toml"),
            factories="experiments.mnist_cnn.factories",
            make_up=partial(make_up, sizes={"train": 512, "test": 128}),
        )
    )
