"""The short form of the comparison with other ways to train many models."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(sys.platform != "linux", reason="adopts orphaned processes, as Linux can")
def test_all_contestants_train_the_same_models() -> None:
    words = ["-m", "tests.benchmarks.alternatives", "--short"]
    ran = subprocess.run(
        [sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    print("\n" + ran.stdout)
    assert ran.returncode == 0, ran.stderr  # 1: a contestant has failed or has other weights
    assert "plain PyTorch loop" in ran.stdout
