"""How long `import seqgc` takes, beside `import numpy` (target: below 0.3 s; nothing is gated)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Protocol

import pytest

TIMED_IMPORT = "import time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
RUNS = 7


class Benchmark(Protocol):
    """What is used of pytest-benchmark's fixture."""

    extra_info: dict[str, float]

    def pedantic(self, target: Callable[[], float], *, rounds: int) -> float: ...


def import_seconds(module: str) -> float:
    """Seconds that a fresh interpreter takes to import a module."""
    command = [sys.executable, "-c", TIMED_IMPORT.format(module)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.benchmark(group="import")
def test_import_seqgc_beside_import_numpy(benchmark: Benchmark) -> None:
    pairs: list[tuple[float, float]] = []

    def one_pair() -> float:
        pairs.append((import_seconds("seqgc"), import_seconds("numpy")))
        return pairs[-1][0]

    benchmark.pedantic(one_pair, rounds=RUNS)
    seqgc_s, numpy_s = (min(column) for column in zip(*pairs, strict=True))
    benchmark.extra_info |= {"seqgc_s": seqgc_s, "numpy_s": numpy_s, "ratio": seqgc_s / numpy_s}
    print(
        f"\nimport seqgc {seqgc_s:.3f} s (target 0.3 s), numpy {numpy_s:.3f} s, "
        f"ratio {seqgc_s / numpy_s:.2f}; best of {RUNS}"
    )
    assert len(pairs) == RUNS
