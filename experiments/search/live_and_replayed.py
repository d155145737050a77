"""Deal a live run on local workers, replay it from its own trace, and compare the seconds.

python experiments/search/live_and_replayed.py [--workers 8] [--steps 4] [--alpha 6] [--seed 0]

Starts and work are injected into local workers, so that this machine's own speed hardly counts. The
replay reads from the trace when each worker was ready, the median seconds of a second greeting and
of a piece, and the end of the run. Its resident workers have these starts, this round trip and this
pace.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch

from seqgc import registered_model, workers
from seqgc.profiles import DelayProfile
from seqgc.rounds import Setting
from seqgc.schemes import Deal
from seqgc.search import Reading, Rehearsal, deal
from seqgc.training import TrainingPlan, train

MODELS = 4


def train_live(folder: Path, *, n: int, steps: int, alpha: float, seed: int) -> None:
    """Train, and leave the trace in the folder."""
    start_s = 0.3 + np.random.default_rng(seed).exponential(0.5, size=n)
    sgd = partial(torch.optim.SGD, lr=0.1)
    models = [registered_model(f"m{i}", module="mlp", optimizer=sgd) for i in range(MODELS)]
    plan = TrainingPlan(models=models, scheme=Setting(scheme=Deal(n=n)), steps=steps)
    with workers.local(n, delays=lambda _row, worker, load: start_s[worker] + alpha * load) as crew:
        train(plan, crew, run=folder)


def main() -> None:
    """Print both run times and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--alpha", type=float, default=6.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    n, jobs = given.workers, MODELS * given.steps
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "run")
        train_live(trace, n=n, steps=given.steps, alpha=given.alpha, seed=given.seed)
        events = [json.loads(line) for line in (trace / "events.jsonl").read_text().splitlines()]
    setting = Setting(scheme=Deal(n=n))
    share = setting.scheme.fitted(MODELS).chunk_fractions[0]  # all are of one size
    here_s, round_trips_s, pieces_s = np.zeros(n), list[float](), list[float]()
    for event in (event for event in events if event["event"] == "arrival"):
        if event["round"] == event["attempt"] == 0:
            here_s[event["worker"]] = event["took_s"]
        elif event["took_s"] < given.alpha * share:  # no piece takes less
            round_trips_s.append(event["took_s"])
        else:
            pieces_s.append(event["took_s"])
    rtt_s = float(np.median(round_trips_s))
    live_s = sum(event["duration_s"] for event in events if event["event"] == "close")
    rehearsal = Rehearsal(
        profile=DelayProfile.from_times([here_s]),
        num_jobs=jobs,
        alpha=float((np.median(pieces_s) - rtt_s) / share),
        reading=Reading(rtt_s=rtt_s, resident=True),
        models=MODELS,
    )
    replayed_s = deal(setting, rehearsal).replay.runtime_s
    print(f"live {live_s:.3f} s, replayed {replayed_s:.3f} s: {replayed_s / live_s:.3f} of it")


if __name__ == "__main__":
    main()
