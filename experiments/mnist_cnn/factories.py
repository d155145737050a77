"""MNIST for functions: listed in ``SEQGC_FACTORIES``, its files in ``SEQGC_DATA``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

from experiments.functions import data_folder
from experiments.mnist_cnn.idx import read_idx
from seqgc.errors import ParameterError
from seqgc.models import register_data

__all__ = ["FILES", "mnist"]

FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


@register_data("mnist")
def mnist() -> tuple[TensorDataset, TensorDataset]:
    """Return the training and test images, (1, 28, 28) of 0 to 1, with labels 0 to 9."""
    return _split("train"), _split("test")


def _split(name: str) -> TensorDataset:
    images, labels = (_file(file) for file in FILES[name])
    pixels, targets = read_idx(images, dimensions=3), read_idx(labels, dimensions=1)
    if pixels.shape[1:] != (28, 28) or len(pixels) != len(targets) or targets.max() > 9:
        found = (pixels.shape, targets.shape, int(targets.max()))
        raise ParameterError("data", "must be as many 28 x 28 images as labels 0 to 9", found)
    x = torch.from_numpy(pixels.astype(np.float32) / 255).unsqueeze(1)
    return TensorDataset(x, torch.from_numpy(targets.astype(np.int64)))


def _file(name: str) -> Path:
    folder = data_folder()
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    remedy = "python -m experiments.mnist_cnn.fetch FOLDER, then set SEQGC_DATA=FOLDER"
    raise ParameterError("data", f"must be in {folder}", name, remedy)
