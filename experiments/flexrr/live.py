"""FlexRR on real workers: live runs with injected slowness, next to their replays.

python -m experiments.flexrr.live [--backend lambda-local] [--defence SPEC ...] [--clocks 20]

Four workers train a small network, and sleep as in the slow-worker pattern of FlexRR: at each of
ten points of a clock a slow period begins with a probability of 5 %, and in it a worker takes five
times as long (`seqgc.profiles.SlowPeriods`, a delay of 400 %). A worker's pace in a clock is the
mean of its pace in this clock of the pattern, whatever part it computes. The replay has the same
paces in virtual time. Its time and the live time differ by the time of the master and of computing.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from seqgc import master, registered_model, workers
from seqgc.profiles import ByRound, SlowPeriods
from seqgc.rounds import Setting, policy_of
from seqgc.schemes import parse_scheme
from seqgc.training import TrainingPlan, train
from seqgc.virtual import VirtualBackend
from seqgc.workers import FunctionSettings, WorkerSet

DEFENCES = ("bsp", "ssp:slack=1", "bsp-rr", "flexrr:slack=1")
WORKERS, CLOCK_S = 4, 0.5
BATCH = 256


def pattern(*, seed: int) -> SlowPeriods:
    """Return the slowness of the workers."""
    return SlowPeriods(n=WORKERS, delay=4.0, clock_s=CLOCK_S, probability=0.05, seed=seed)


def sleep_s(slowdown: SlowPeriods, round: int, worker: int, load: float) -> float:
    """Return the seconds that a worker sleeps for a task of this load in a clock."""
    clock_s = slowdown.clock_s + slowdown.sleep_s(worker, round=round)
    return clock_s * load * slowdown.n


def crew_of(backend: str, slowdown: SlowPeriods) -> WorkerSet:
    """Return the workers of a backend, with these delays."""
    delays = partial(sleep_s, slowdown)
    if backend == "lambda-local":
        return workers.lambda_local(WORKERS, FunctionSettings(resident=True), delays=delays)
    return workers.local(WORKERS, delays=delays)


def train_live(spec: str, crew: WorkerSet, folder: Path, *, clocks: int) -> tuple[float, float]:
    """Train one network for a number of clocks; return the seconds and the accuracy."""
    sgd = partial(torch.optim.SGD, lr=0.1)
    model = registered_model("net", module="mlp", optimizer=sgd, batch_size=BATCH)
    found = train(TrainingPlan(models=[model], scheme=spec, steps=clocks), crew, run=folder)
    accuracy = found.evaluations["net"].accuracy
    assert accuracy is not None
    return found.seconds, accuracy


def replayed_s(spec: str, slowdown: SlowPeriods, *, clocks: int) -> float:
    """Return the seconds of the same run in virtual time."""
    scheme = parse_scheme(spec, n=WORKERS).fitted(1, batch=BATCH)
    rows = range(clocks)
    sleeps = [[sleep_s(slowdown, row, i, 1.0) for i in range(WORKERS)] for row in rows]
    backend = VirtualBackend(WORKERS, ByRound(latencies_s=np.zeros((1, 1)), rates=np.array(sleeps)))
    master.run(policy_of(Setting(scheme=scheme), num_jobs=clocks), backend)
    return backend.now


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each defence."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("local", "lambda-local"), default="local")
    parser.add_argument("--defence", nargs="+", default=DEFENCES)
    parser.add_argument("--clocks", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    slowdown = pattern(seed=given.seed)
    print("defence, live s, of the first, replayed s, live/replayed, accuracy")
    first_s = None
    with crew_of(given.backend, slowdown) as crew, tempfile.TemporaryDirectory() as folder:
        for number, spec in enumerate(given.defence):
            path = Path(folder, str(number))
            live_s, accuracy = train_live(spec, crew, path, clocks=given.clocks)
            virtual_s = replayed_s(spec, slowdown, clocks=given.clocks)
            first_s = first_s or live_s
            of_first, ratio = live_s / first_s, live_s / virtual_s
            row = f"{live_s:.2f}, {of_first:.2f}, {virtual_s:.2f}, {ratio:.3f}, {accuracy:.4f}"
            print(f"{spec}, {row}", flush=True)


if __name__ == "__main__":
    main()
