"""Whoever asks the nursery for masters."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[2]
_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "",  # what people have: outputs that are kept until they can be written
    "SEQGC_FACTORIES": "tests.masters.toys",
    "PYTHONPATH": str(ROOT),
}


@dataclass(frozen=True, kw_only=True)
class End:
    """How a master ended; ``left`` are the command lines of what outlived it by far."""

    status: int
    stuck: bool
    seconds: float
    hit_at: float  # of `time.time`, the first time; 0 if it was not
    seconds_to_end: float  # from then
    said: str
    calls: int
    left: list[str]


class Nursery:
    """Starts masters, one after the other (see `tests.masters.nursery`)."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-B", "-m", "tests.masters.nursery"],
            cwd=ROOT,
            env=os.environ | _VARIABLES,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def master(self, *argv: str, folder: Path, **order: Any) -> End:
        """Have one live to its end."""
        (end,) = self.masters([argv], folder=folder, **order)
        return end

    def masters(self, argvs: Sequence[Sequence[str]], *, folder: Path, **order: Any) -> list[End]:
        """Have several live at once; the last one left is hit, if the order says by what."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        orders = [order | {"argv": argv, "folder": str(folder)} for argv in argvs]
        self._process.stdin.write(json.dumps(orders) + "\n")
        self._process.stdin.flush()
        return [End(**end) for end in json.loads(self._process.stdout.readline())]

    def close(self) -> None:
        self._process.communicate(timeout=60)


def outcome(run: Path) -> dict[str, object]:
    """Return what a run has come to: digests of weights and optimizers, every job's losses."""
    newest = max(run.glob("checkpoints/[0-9]*"), key=lambda folder: int(folder.name))
    found: dict[str, object] = {}
    for path in [*newest.glob("*.safetensors"), *run.glob("checkpoints/*.safetensors")]:
        where = "last" if path.parent == newest else "trained"
        for name, tensor in load_file(path).items():
            digest = hashlib.sha256(tensor.tobytes()).hexdigest()
            found[f"{where} {path.name} {name}"] = digest
    rows = list(csv.reader((run / "metrics.csv").read_text().splitlines()))
    return found | {f"job {row[1]} {row[2]} {row[3]}": row[4] for row in rows[1:]}


def weights(run: Path) -> dict[str, Any]:
    """Return the trained weights."""
    return {
        f"{path.name} {name}": tensor
        for path in run.glob("checkpoints/*.safetensors")
        for name, tensor in load_file(path).items()
    }
