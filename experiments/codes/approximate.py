"""Measure the cost and the gain of approximate decoding in training.

OMP_NUM_THREADS=1 python -m experiments.codes.approximate OUTPUT.csv [--quick] [--replayed]

A small network on the digits, gc-rep and gc-binary that close rounds as soon as the error bound of
the answers' least-squares combination is within ``allow_error``. 16 local workers with injected
delays (`seqgc.profiles.LAMBDA_CNN` at a tenth of its seconds); ``--replayed``: 256 workers on a
hand-wound clock with unscaled delays, where time is exact and groups are many. One row per
scheme, appended as soon as it is measured; a row that is in the CSV is not measured again.
"""

from __future__ import annotations

import itertools
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from experiments.results import Table, arguments
from seqgc import workers
from seqgc.ports import Backend
from seqgc.profiles import LAMBDA_CNN
from seqgc.runs import read_run
from seqgc.schemes import GC
from seqgc.search import ReplayBackend
from seqgc.training import (
    Model,
    TorchComputeFactory,
    TrainingPlan,
    TrainResult,
    digits,
    make_module,
    train,
)

SEED, SCALE = 3, 0.1
ALLOWED = (0.0, 0.1, 0.25, 0.5)
SCHEMES: tuple[tuple[str, int], ...] = (("rep", 0), ("rep", 1), ("binary", 2))
FIELDS = (
    "workers", "scheme", "steps", "loss", "accuracy", "seconds", "median_round_s",
    "longest_round_s", "approximate", "mean_error", "largest_error",
)  # fmt: skip


def network(*, workers: int) -> Model:
    split = digits()
    return Model(
        name="mlp",
        module=make_module("mlp", seed=SEED),
        loss=nn.CrossEntropyLoss(),
        dataset=split.train,
        test_dataset=split.test,
        optimizer=partial(torch.optim.Adam, lr=0.01),
        batch_size=4 * workers,
        seed=SEED,
    )


def trained(scheme: GC, *, steps: int, replayed: bool, run: Path) -> TrainResult:
    profile = LAMBDA_CNN.profile(steps, workers=scheme.n, rng=np.random.default_rng(SEED))
    times = profile.times

    def on_a_hand_wound_clock(_n: int, factory: TorchComputeFactory) -> Backend:
        return ReplayBackend(times, compute=factory())

    plan = TrainingPlan(models=[network(workers=scheme.n)], scheme=scheme, steps=steps)
    if replayed:
        return train(plan, workers.custom(scheme.n, on_a_hand_wound_clock), run=run)

    def delays(row: int, worker: int, load: float) -> float:  # noqa: ARG001 (at every load)
        return SCALE * float(times[row, worker])

    with workers.local(scheme.n, delays=delays) as w:
        return train(plan, w, run=run)


def measured(scheme: GC, *, steps: int, replayed: bool) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        result = trained(scheme, steps=steps, replayed=replayed, run=Path(folder, "run"))
        recorded = read_run(result.run)
    errors, rounds = recorded.jobs()["error"], recorded.rounds()["duration_s"]
    (seen,) = result.evaluations.values()
    return {
        "workers": scheme.n,
        "scheme": scheme.spec,
        "steps": steps,
        "loss": f"{seen.loss:.4f}",
        "accuracy": f"{seen.accuracy:.3f}",
        "seconds": f"{rounds.sum():.2f}",
        "median_round_s": f"{np.median(rounds):.3f}",
        "longest_round_s": f"{rounds.max():.3f}",
        "approximate": result.counts.approximate,
        "mean_error": f"{np.mean(errors):.3f}",
        "largest_error": f"{result.counts.largest_error:.3f}",
    }


def main() -> None:
    parser = arguments(__doc__, quick="five steps")
    parser.add_argument("--replayed", action="store_true", help="256 workers, no waiting")
    given = parser.parse_args()
    torch.set_num_threads(1)
    steps, n = (5 if given.quick else 60), (256 if given.replayed else 16)
    table = Table(given.output, FIELDS, keys=3)
    for (family, s), allow_error in itertools.product(SCHEMES, ALLOWED):
        scheme = GC(n=n, s=s, family=family, allow_error=allow_error)
        if (n, scheme.spec, steps) not in table:
            table.append([measured(scheme, steps=steps, replayed=given.replayed)])


if __name__ == "__main__":
    main()
