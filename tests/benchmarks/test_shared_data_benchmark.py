"""Memory of four local workers that read one dataset, as a multiple of the dataset's bytes."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from seqgc.backends import LocalBackend
from seqgc.ports import FloatArray
from seqgc.testing.scripted import next_event, task
from seqgc.worker import Compute

WORKERS, DATA_BYTES = 4, 200_000_000


class Reading:
    """A compute function that reads all numbers."""

    def __init__(self, numbers: FloatArray) -> None:
        self._numbers = numbers

    def __call__(self) -> Compute:
        def compute(_parts: object) -> FloatArray:
            return np.array([self._numbers.sum()])

        return compute


def memory_of(pid: int) -> int:
    """Return the bytes of a process; memory that several processes have is divided among them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def memory_of_workers(numbers: FloatArray) -> int:
    with LocalBackend(WORKERS, Reading(numbers)) as backend:
        backend.dispatch(0, [task(0, worker) for worker in range(WORKERS)])
        for _ in range(WORKERS):
            assert math.isclose(next_event(backend).results[0][0], numbers.sum())
        return sum(memory_of(pid) for pid in backend.pids)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_four_workers_take_the_memory_of_one_copy_of_the_data() -> None:
    numbers = np.ones(DATA_BYTES // 8)
    ratio = (memory_of_workers(numbers) - memory_of_workers(numbers[:1000])) / numbers.nbytes
    print(f"\n{WORKERS} workers: {ratio:.2f} times the bytes of their data")
    assert ratio <= 1.2
