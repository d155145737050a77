"""Train live on workers that sleep in turns, and replay each run from its own trace.

python -m experiments.slack.live [--backend lambda-local] [--defence SPEC ...] [--workers 8]

In clock t worker ``t mod n`` sleeps (Cui et al. 2014, Fig. 6). A worker that waits for all others
in every clock loses a sleep per clock; a worker that may be a clock ahead loses hardly any. The
delays are injected into real worker processes, so this machine's own speed hardly counts, but the
run and its weights are real. Each run is replayed in virtual time: workers take the seconds of the
run's own trace, clock by clock, and the defence decides again. The remaining difference is the
master's time.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from seqgc import master, read_run, registered_model, workers
from seqgc.ports import Close, FloatArray, Seen
from seqgc.profiles import ByRound, RotatingSleep
from seqgc.rounds import Setting, policy_of
from seqgc.runs import RecordedRun
from seqgc.schemes import parse_scheme
from seqgc.training import TrainingPlan, train
from seqgc.virtual import VirtualBackend
from seqgc.workers import FunctionSettings, WorkerSet

DEFENCES = ("bsp", "a-bsp:wpc=2", "ssp:slack=1", "asp")


def train_live(spec: str, crew: WorkerSet, folder: Path, *, jobs: int) -> RecordedRun:
    """Train one model for a number of jobs, and return the recorded run."""
    sgd = partial(torch.optim.SGD, lr=0.1)
    model = registered_model("net", module="mlp", optimizer=sgd)
    train(TrainingPlan(models=[model], scheme=spec, steps=jobs), crew, run=folder)
    return read_run(folder)


def seconds_of(run: RecordedRun) -> FloatArray:
    """Return the seconds of each worker in each clock, (clocks, n), of its last attempt."""
    answers = run.answers()
    taken = np.full((int(answers["round"].max()) + 1, run.workers), np.nan)
    used = answers["outcome"] == "used"
    taken[answers["round"][used], answers["worker"][used]] = answers["took_s"][used]
    return np.where(np.isnan(taken), np.nanmean(taken, axis=0), taken)


def replayed_s(spec: str, seconds: FloatArray, *, jobs: int) -> float:
    """Return the run time of a defence on workers with these seconds in each clock."""
    n, closed = seconds.shape[1], list[float]()

    def note(seen: Seen) -> None:
        if isinstance(seen, Close):
            closed.append(seen.record.duration_s)

    policy = policy_of(Setting(scheme=parse_scheme(spec, n=n)), num_jobs=jobs)
    pace = ByRound(latencies_s=seconds, rates=np.zeros((1, n)))
    master.run(policy, VirtualBackend(n, pace), observe=note)
    return sum(closed)


def crew_of(backend: str, slowdown: RotatingSleep) -> WorkerSet:
    """Return a backend's workers with these delays, whatever they compute."""

    def delay(round: int, worker: int, _load: float) -> float:
        return slowdown.clock_s + slowdown.sleep_s(worker, round=round)

    if backend == "lambda-local":
        return workers.lambda_local(slowdown.n, FunctionSettings(), delays=delay)
    return workers.local(slowdown.n, delays=delay)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each defence."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=("local", "lambda-local"), default="local")
    parser.add_argument("--defence", nargs="+", default=DEFENCES)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--jobs", type=int, default=32)
    parser.add_argument("--clock", type=float, default=0.3, help="seconds")
    parser.add_argument("--sleep", type=float, default=0.6, help="seconds")
    given = parser.parse_args(arguments)
    slowdown = RotatingSleep(n=given.workers, sleep_for_s=given.sleep, clock_s=given.clock)
    pattern = np.array(
        [
            [given.clock + slowdown.sleep_s(i, round=t) for i in range(given.workers)]
            for t in range(given.jobs)
        ]
    )
    print("defence, live s, replayed from its trace s, replayed from the pattern s, live/trace")
    with crew_of(given.backend, slowdown) as crew, tempfile.TemporaryDirectory() as folder:
        for number, spec in enumerate(given.defence):
            run = train_live(spec, crew, Path(folder, str(number)), jobs=given.jobs)
            live_s = float(run.rounds()["duration_s"].sum())
            trace_s = replayed_s(spec, seconds_of(run), jobs=given.jobs)
            pattern_s = replayed_s(spec, pattern, jobs=given.jobs)
            print(f"{spec}, {live_s:.2f}, {trace_s:.2f}, {pattern_s:.2f}, {live_s / trace_s:.3f}")


if __name__ == "__main__":
    main()
