"""Scripts that users write: workers start from them, and run them again only if they must."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

IMPORTED = """
import sys
print("running", __name__, flush=True)
from math import inf
from pathlib import Path
from seqgc.backends import LocalBackend
from seqgc.testing.scripted import task
from tests.backends.scripted import Scripted
with LocalBackend(2, Scripted(folder=Path(sys.argv[1]))) as backend:
    backend.dispatch(0, [task(0, 1)])
    print(backend.receive(inf).results[0].size)
"""

DEFINED = """
import sys
from math import inf
import numpy as np
from seqgc.backends import LocalBackend
from seqgc.testing.scripted import task
def compute(parts):
    return np.ones(5)
def factory():
    return compute
if __name__ == "__main__":
    with LocalBackend(2, factory) as backend:
        backend.dispatch(0, [task(0, 1)])
        print(backend.receive(inf).results[0].size)
"""


def run(script: str, folder: Path) -> str:
    path = folder / "script.py"
    path.write_text(script)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(path), str(folder)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_a_script_without_a_guard_is_run_once(tmp_path: Path) -> None:
    assert run(IMPORTED, tmp_path) == "running __main__\n3\n"


def test_a_computation_defined_in_the_script_is_found_there(tmp_path: Path) -> None:
    assert run(DEFINED, tmp_path) == "5\n"
