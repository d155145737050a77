"""Data and networks for first experiments: handwritten digits and three network architectures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from seqgc._digits import digit_images
from seqgc.errors import ParameterError

__all__ = ["MODULES", "Split", "digits"]


class Split(NamedTuple):
    """A dataset in two parts, for training and for testing."""

    train: TensorDataset
    test: TensorDataset


def digits(*, seed: int = 0, test_fraction: float = 0.2) -> Split:
    """Return scikit-learn's 1797 handwritten digits: x (1, 8, 8) in [0, 1], y in 0 ... 9.

    The images of each digit are split by the same ``test_fraction``. The data are part of
    scikit-learn (E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten Digits", UCI
    Machine Learning Repository, 1998).

    Raises
    ------
    ParameterError
        If ``test_fraction`` is not strictly between 0 and 1, or scikit-learn is not installed.

    Examples
    --------
    >>> from seqgc.training import digits
    >>> split = digits()
    >>> len(split.train), len(split.test)
    (1438, 359)
    """
    if not 0 < test_fraction < 1:
        raise ParameterError("test_fraction", "must be between 0 and 1", test_fraction)
    x, y = digit_images()
    x = x[:, None]
    rng, test = np.random.default_rng(seed), np.zeros(len(y), dtype=np.bool_)
    for digit in np.unique(y):
        points = rng.permutation(np.flatnonzero(y == digit))
        test[points[: round(test_fraction * len(points))]] = True
    tensors = [(torch.from_numpy(x[part]), torch.from_numpy(y[part])) for part in (~test, test)]
    return Split(*(TensorDataset(*pair) for pair in tensors))


def _mlp(width: int = 64) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def _digits_cnn(width: int = 16) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * width, 10),
    )


def _paper_cnn() -> nn.Module:
    """Return a CNN with 269,998 parameters for 28 x 28 pixels.

    Source: *Sequential Gradient Coding For Straggler Mitigation*, ICLR 2023, section 4.
    """
    return nn.Sequential(
        nn.Conv2d(1, 8, 5),
        nn.ReLU(),
        nn.Conv2d(8, 16, 5),
        nn.ReLU(),
        nn.Conv2d(16, 4, 5),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1024, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    )


MODULES: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {"digits-cnn": _digits_cnn, "mlp": _mlp, "paper-cnn": _paper_cnn}
)
"""Networks by name: ``digits-cnn`` and ``mlp`` take (1, 8, 8) inputs, ``paper-cnn`` (1, 28, 28).

``digits-cnn`` and ``mlp`` have an argument ``width``: the number of channels of the first layer or
of hidden units.
"""
