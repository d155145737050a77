"""Train the same models with seqgc and with what people would use instead, on two cores.

`python -m tests.benchmarks.alternatives` prints a Markdown table of wall and processor seconds.
Each contestant is a child process, so that its start-up counts, with one BLAS thread, a time limit
and no standard input. Its trained weights are compared with those of the plain loop.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from tests.benchmarks.contestants import CONTESTANTS, Problem

if TYPE_CHECKING:
    from seqgc.ports import FloatArray

ROOT: Final = Path(__file__).resolve().parents[2]
LABELS: Final = {
    "plain": "plain PyTorch loop",
    "joblib": "joblib, whole models",
    "ray": "Ray actors",
    "dask": "dask actors",
    "dask-direct": "dask actors, `direct_to_workers`",
    "ddp": "DDP over gloo",
    "seqgc-uncoded": "seqgc, `uncoded`",
    "seqgc-gc-rep": "seqgc, `gc-rep:s=1`",
    "seqgc-deal": "seqgc, `deal`",
}
PACKAGES: Final = {
    "joblib": "joblib",
    "ray": "ray",
    "dask": "distributed",
    "dask-direct": "distributed",
}
# Ray's daemon ignores SIGCHLD, so the kernel forgets the processor seconds of its workers.
UNCOUNTED: Final = {"ray"}
BATCH_SIZE, SMALL, MEDIUM = 32, 16, 256  # widths of `digits-cnn`
STALL_PROBABILITY, STALL_S = 0.05, 0.2
TOLERANCE, SHORT_TOLERANCE = 0.1, 1e-4  # see `distance`
ONE_THREAD: Final = dict.fromkeys(
    ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"
)


@dataclass(frozen=True)
class Workload:
    """A column of the table."""

    models: int
    steps: int
    width: int = SMALL
    stall_probability: float = 0.0  # of a worker in a step

    def __str__(self) -> str:
        size = "small" if self.width == SMALL else "medium"
        plural = "" if self.models == 1 else "s"
        name = f"{self.models} {size} CNN{plural} x {self.steps}"
        return f"{name}, stalls" if self.stall_probability else name

    def problem(self) -> Problem:
        # Imported here because the contestants import this module: the plain loop needs no seqgc.
        from torch.nn.utils import parameters_to_vector

        from seqgc.models.factories import make_module
        from seqgc.training import batch_indices, digits

        data = digits().train
        x, y = data.tensors
        modules = [
            make_module("digits-cnn", seed=seed, args={"width": self.width})
            for seed in range(self.models)
        ]
        order = [
            [
                batch_indices(len(data), batch_size=BATCH_SIZE, seed=seed, step=step)
                for step in range(self.steps)
            ]
            for seed in range(self.models)
        ]
        return Problem(
            width=self.width,
            steps=self.steps,
            batch_size=BATCH_SIZE,
            x=x.numpy(),
            y=y.numpy(),
            initial=np.stack(
                [parameters_to_vector(m.parameters()).detach().numpy() for m in modules]
            ),
            order=np.array(order),
            stall_probability=self.stall_probability,
            stall_s=STALL_S,
        )


@dataclass(frozen=True)
class Outcome:
    """The seconds of a contestant, or the reason why it has none."""

    wall_s: float = 0.0
    cpu_s: float | None = None
    distance: float = 0.0  # from the weights of the plain loop
    failure: str = ""

    def __str__(self) -> str:
        if self.failure or self.cpu_s is None:
            return self.failure or f"{self.wall_s:.1f}"
        return f"{self.wall_s:.1f} ({self.cpu_s:.1f})"


def distance(weights: FloatArray, expected: FloatArray, initial: FloatArray) -> float:
    """Return the largest distance of a model from the plain loop's, per distance trained.

    Trainings that are equal up to the order of sums are 1e-6 apart after five steps. Later, a few
    models part by up to 0.054 in float32, because Adam divides a gradient that is nearly zero by
    its own magnitude; in float64 the same models are 3e-15 apart after 120 steps. Batches that come
    one step late give 0.4 to 0.7, and batches without one of their 32 points 0.2.
    """
    apart = np.linalg.norm(weights - expected, axis=1)
    trained = np.linalg.norm(expected - initial, axis=1)
    return float(np.max(apart / trained))


# ---- children ------------------------------------------------------------------------------------


def adopt_orphans() -> None:
    """Make this process the parent of orphaned descendants, so that their seconds are counted."""
    set_child_subreaper = 36  # linux/prctl.h
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(set_child_subreaper, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def _children() -> list[int]:
    tasks = Path("/proc/self/task").iterdir()
    return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]


def _end_orphans(grace_s: float = 5.0) -> None:
    """Wait for the descendants that a contestant has left, and kill them after ``grace_s``."""
    until = time.monotonic() + grace_s
    while pids := _children():
        for pid in pids:
            if time.monotonic() > until:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, os.WNOHANG)
        time.sleep(0.02)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def run(name: str, problem: Path, result: Path, *, limit_s: float) -> Outcome:
    """Run a contestant in a child process; its weights are written to ``result``."""
    words = ["--contestant", name, "--problem", str(problem), "--result", str(result)]
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)}
    cpu, begun = _cpu_s(), time.perf_counter()
    with tempfile.TemporaryFile() as messages:
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.alternatives", *words],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=messages,
            stderr=messages,
        )
        try:
            status = child.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            status = None
        wall_s = time.perf_counter() - begun
        _end_orphans(0.0 if status is None else 5.0)
        if status != 0:
            messages.seek(0)
            sys.stderr.write(messages.read().decode(errors="replace")[-3000:])
    if status is None:
        return Outcome(failure=f"> {limit_s:.0f}")
    if status != 0:
        return Outcome(failure=f"failed, status {status}")
    return Outcome(wall_s=wall_s, cpu_s=None if name in UNCOUNTED else _cpu_s() - cpu)


def measure(workload: Workload, names: Sequence[str], *, limit_s: float) -> dict[str, Outcome]:
    """Run the contestants one after the other, the plain loop first."""
    outcomes = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "problem.npz"
        problem = workload.problem()
        problem.save(path)
        expected = None
        for name in names:
            result = Path(folder) / f"{name}.npy"
            outcome = run(name, path, result, limit_s=limit_s)
            if not outcome.failure:
                weights = np.load(result)
                if name == "plain":
                    expected = weights
                if expected is None:
                    outcome = Outcome(failure="no plain loop to compare with")
                else:
                    apart = distance(weights, expected, problem.initial)
                    outcome = replace(outcome, distance=apart)
            print(f"{workload}: {name} {outcome} {outcome.distance:.1e}", file=sys.stderr)
            outcomes[name] = outcome
    return outcomes


# ---- the table -----------------------------------------------------------------------------------


def table(columns: dict[Workload, dict[str, Outcome]], names: Sequence[str]) -> str:
    lines = ["| | " + " | ".join(map(str, columns)) + " |", "|---" * (len(columns) + 1) + "|"]
    for name in names:
        cells = [str(outcomes[name]) for outcomes in columns.values()]
        lines.append(f"| {LABELS[name]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def installed() -> tuple[list[str], list[str]]:
    """Return the contestants that can run, and the reasons why others cannot."""
    missing = {name for name, package in PACKAGES.items() if find_spec(package) is None}
    reasons = [f"{LABELS[name]}: {PACKAGES[name]} is not installed" for name in sorted(missing)]
    return [name for name in CONTESTANTS if name not in missing], reasons


def workloads(models: Sequence[int], *, short: bool) -> list[Workload]:
    if short:
        return [Workload(2, 5), Workload(2, 5, stall_probability=0.5)]
    small = [Workload(number, 100) for number in models]
    return [
        *small,
        Workload(8, 120, width=MEDIUM),
        Workload(40, 100, stall_probability=STALL_PROBABILITY),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", default="1,8,40,100", help="numbers of small models")
    parser.add_argument("--short", action="store_true", help="two models, five steps")
    parser.add_argument("--limit-s", type=float, default=60.0, help="time limit of a contestant")
    for internal in ("--contestant", "--problem", "--result"):
        parser.add_argument(internal, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.contestant:
        np.save(given.result, CONTESTANTS[given.contestant](Problem.load(Path(given.problem))))
        return 0
    adopt_orphans()
    names, reasons = installed()
    numbers = [int(number) for number in given.models.split(",")]
    columns = {
        workload: measure(workload, names, limit_s=given.limit_s)
        for workload in workloads(numbers, short=given.short)
    }
    print(table(columns, names))
    for reason in reasons:
        print(f"\nLeft out: {reason}.")
    tolerance = SHORT_TOLERANCE if given.short else TOLERANCE
    apart = [
        f"{workload}, {name}: {outcome.failure or outcome.distance}"
        for workload, outcomes in columns.items()
        for name, outcome in outcomes.items()
        if outcome.failure or outcome.distance > tolerance
    ]
    if apart:
        print("\n".join(apart), file=sys.stderr)
    return 1 if apart else 0


if __name__ == "__main__":
    sys.exit(main())
