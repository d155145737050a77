"""A worker whose process is stopped by its first task."""

from __future__ import annotations

import os
import signal

import numpy as np

from seqgc.ports import FloatArray, WeightedPoints
from seqgc.worker import Compute


def stopping() -> Compute:
    """Return the compute function of one worker."""

    def compute(parts: tuple[WeightedPoints, ...]) -> FloatArray:  # noqa: ARG001
        os.kill(os.getpid(), signal.SIGSTOP)
        return np.zeros(5)

    return compute
