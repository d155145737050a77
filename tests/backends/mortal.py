"""Workers that die of their tasks; imports little, for each that dies makes another import it."""

from __future__ import annotations

import os
import resource
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from seqgc.ports import FloatArray, WeightedPoints
from seqgc.worker import Compute


@dataclass(frozen=True, kw_only=True)
class Mortal:
    """Computes what `seqgc.testing.ChunkWorkload` (seed 0, size 5) does, or is killed by it.

    Or it runs out of memory.
    """

    chunks: int
    deaths: float

    def __call__(self) -> Compute:
        """Return the compute function of one worker; no two processes have the same luck."""
        luck = Random()

        def compute(parts: tuple[WeightedPoints, ...]) -> FloatArray:
            if luck.random() < self.deaths:
                if (number := luck.choice([signal.SIGKILL, signal.SIGSEGV, None])) is None:
                    _take_all_memory()
                else:
                    os.kill(os.getpid(), number)
            (part,) = parts
            partials = np.random.default_rng([0, part.weights.version]).normal(
                size=(self.chunks, 5)
            )
            return part.coefficients @ partials[part.points]

        return compute


def _take_all_memory() -> None:
    """Take more than this process may have from now on, which raises `MemoryError`."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 20), hard))
    hoard = list[FloatArray]()
    while True:
        hoard.append(np.ones(1 << 20))


@dataclass(frozen=True, kw_only=True)
class Failing:
    """Fails whatever it is asked, in one way."""

    way: str

    def __call__(self) -> Compute:
        """Return the compute function of one worker."""

        def compute(parts: tuple[WeightedPoints, ...]) -> FloatArray:
            del parts
            match self.way:
                case "killed":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "stopped":
                    os.kill(os.getpid(), signal.SIGSTOP)
                case "exits":
                    os._exit(3)
                case "raises":
                    raise ValueError("on purpose")
                case "no memory":
                    _take_all_memory()
                case "hangs":
                    threading.Event().wait(3600)
            return np.zeros(5)

        return compute
