"""From a grid's axes to the first tasks that leave: a hundred models beside four."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import torch

from seqgc import Model, TrainingPlan, registered_model, train, workers
from seqgc.ports import Dispatch, Seen
from seqgc.training import grid
from seqgc.workers import WorkerSet

WORKERS, REPEATS = 4, 3


class _Begun(Exception):
    """The first tasks are about to leave."""


def make(lr: float, seed: int) -> Model:
    return registered_model("net", optimizer=partial(torch.optim.Adam, lr=lr), seed=seed)


def seconds_to_first_dispatch(seeds: int, crew: WorkerSet, run: Path) -> float:
    """Seconds in which twice so many models are made, tried and sent to workers that start."""

    def stop(seen: Seen) -> None:
        if isinstance(seen, Dispatch):
            raise _Begun

    begun = time.perf_counter()
    models = grid(make, {"lr": [0.001, 0.01], "seed": seeds})
    plan = TrainingPlan(models=models, scheme="gc-rep:s=1", steps=3)
    try:
        train(plan, crew, run=run, observers=[stop])
    except _Begun:
        return time.perf_counter() - begun
    raise AssertionError("no task has left")


def test_a_hundred_models_start_nearly_as_fast_as_four(tmp_path: Path) -> None:
    pairs = []
    with workers.local(WORKERS) as crew:
        seconds_to_first_dispatch(1, crew, tmp_path / "first")  # which imports
        for repeat in range(REPEATS):  # in turns, so that the machine is as busy for both
            few, many = (
                seconds_to_first_dispatch(seeds, crew, tmp_path / f"{seeds}-{repeat}")
                for seeds in (2, 50)
            )
            pairs.append((few, many))
    few_s, many_s = (min(column) for column in zip(*pairs, strict=True))
    print(f"\n4 models {few_s:.2f} s, 100 models {many_s:.2f} s, ratio {many_s / few_s:.1f}")
    assert many_s / few_s <= 8  # it would be 25 if each had its share of everything
