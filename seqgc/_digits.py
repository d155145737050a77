"""scikit-learn's handwritten digits, read from its file because importing sklearn is slow."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seqgc.errors import ParameterError

__all__ = ["digit_images"]


def digit_images() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return 1797 images (1797, 8, 8) in [0, 1] and their digits (1797,).

    Raises `ParameterError` if scikit-learn is not installed.
    """
    package = find_spec("sklearn")
    if package is None or not package.submodule_search_locations:
        rule = "needs scikit-learn, which contains the digits"
        raise ParameterError("data", rule, "digits", "pip install 'seqgc[demo]'")
    file = Path(package.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    with gzip.open(file, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",")  # each row is an image: 64 pixels, then the digit
    return (table[:, :-1].reshape(-1, 8, 8) / 16).astype(np.float32), table[:, -1].astype(np.int64)
