"""What a cold start of the numpy-only function loads: seconds and megabytes; nothing is gated.

What it must not load is asserted in tests/lambda_handlers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, Protocol

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUNS = 5
TIMED_IMPORT = """
import json, sys, time
start = time.perf_counter()
import {module}
print(json.dumps([time.perf_counter() - start, len(sys.modules)]))
"""
DISTRIBUTIONS = (
    "aws-lambda-powertools",
    "jmespath",
    "msgspec",
    "numpy",
    "pybase64",
    "typing-extensions",
    "xxhash",
)


class Benchmark(Protocol):
    """What is used of pytest-benchmark's fixture."""

    extra_info: dict[str, float]

    def pedantic(self, target: Callable[[], Any], *, rounds: int) -> Any: ...


def imported(module: str) -> tuple[float, int]:
    """Seconds that a fresh interpreter takes to import a module, and how many it then has."""
    command = [sys.executable, "-c", TIMED_IMPORT.format(module=module)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    seconds, modules = json.loads(run.stdout)
    return seconds, modules


def installed_mb(name: str) -> float:
    """Megabytes of a distribution's files, compiled Python and tests left out."""
    files = distribution(name).files or []
    paths = [Path(str(file.locate())) for file in files if "tests" not in file.parts]
    return sum(p.stat().st_size for p in paths if p.suffix != ".pyc" and p.is_file()) / 1e6


@pytest.mark.benchmark(group="cold start")
def test_import_of_the_handler_beside_numpy(benchmark: Benchmark) -> None:
    handler, numpy = [], []

    def one_pair() -> None:
        handler.append(imported("lambda_handlers.gradient_worker.handler"))
        numpy.append(imported("numpy"))

    benchmark.pedantic(one_pair, rounds=RUNS)
    sizes = {name: installed_mb(name) for name in DISTRIBUTIONS}
    sizes["seqgc"] = sum(p.stat().st_size for p in (ROOT / "seqgc").rglob("*.py")) / 1e6
    measured = {
        "handler_s": min(seconds for seconds, _ in handler),
        "numpy_s": min(seconds for seconds, _ in numpy),
        "handler_modules": handler[0][1],
        "size_mb": sum(sizes.values()),
    }
    measured["ratio"] = measured["handler_s"] / measured["numpy_s"]
    benchmark.extra_info |= measured
    print("\n" + ", ".join(f"{name} {value:.3g}" for name, value in measured.items()))
    print("MB: " + ", ".join(f"{name} {mb:.1f}" for name, mb in sizes.items()))
    assert len(handler) == RUNS
