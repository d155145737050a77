"""Section 4 of the paper: four CNNs on MNIST by M-SGC, on functions."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

from experiments.mnist_cnn.factories import FILES
from experiments.mnist_cnn.idx import write_idx
from seqgc.cli import main as seqgc

HERE = Path(__file__).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="Made-up images, this machine.")
    arguments, more = parser.parse_known_args()
    os.environ["SEQGC_FACTORIES"] = "experiments.mnist_cnn.factories"
    if not arguments.small:
        return seqgc(["train", str(HERE / "mnist.toml"), *more])
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SEQGC_DATA"] = folder
        make_up(Path(folder), sizes={"train": 512, "test": 128})
        return seqgc(["train", str(HERE / "small.toml"), *more])


def make_up(folder: Path, *, sizes: dict[str, int]) -> None:
    """Write images that can be told apart: a blurred blot, somewhere else for every digit."""
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
    sys.exit(main())
