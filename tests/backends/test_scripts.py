"""What a script defines computes on workers, with a main guard and without one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from seqgc._by_value import dumps, loads
from seqgc._fault import fault_of

SCRIPT = """
import numpy as np

from seqgc.backends import LocalBackend
from seqgc.testing.scripted import next_event, task

print("the script begins")
OWN = 5.0


class Times:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, parts):
        return np.concatenate([negated(self.factor * part.coefficients) for part in parts])


negated = lambda values: -values


def compute():
    return Times(OWN)


def main():
    with LocalBackend(2, compute) as backend:
        ask(backend)


def ask(backend):
    backend.dispatch(0, [task(0, 0)])
    print(next_event(backend).results[0] / task(0, 0).items[0].parts[0].coefficients)


"""
GUARDED = """
if __name__ == '__main__':
    main()
"""
BARE = """
from seqgc.backends.dask_ import DaskBackend

main()
with DaskBackend(1, compute, processes=1) as backend:
    ask(backend)
"""


@pytest.mark.parametrize(("ending", "answers"), [(GUARDED, 1), (BARE, 2)])
def test_a_script_computes_with_what_it_defines(ending: str, answers: int, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT + ending)
    run = [sys.executable, "-W", "error", path]
    done = subprocess.run(run, check=False, capture_output=True, text=True, timeout=100)
    said = (done.returncode, done.stderr, done.stdout.splitlines())
    assert said == (0, "", ["the script begins", *["[-5. -5.]"] * answers])


def test_an_error_of_code_that_travels_names_its_file_and_line() -> None:
    def forward() -> None:
        raise LookupError("no such class")  # where it is raised

    copy = loads(dumps(forward))
    assert copy is not forward
    with pytest.raises(LookupError) as caught:
        copy()  # type: ignore[operator]
    lines = Path(__file__).read_text().splitlines()
    line = 1 + next(i for i, each in enumerate(lines) if each.endswith("# where it is raised"))
    assert fault_of(caught.value).endswith(f"({__file__}:{line}, in forward)")
