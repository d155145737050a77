"""What 16 bit payloads cost a run: half the bytes, and no accuracy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from seqgc import workers
from seqgc.ports import Arrival, Observer, Payload, Seen, payload_format
from seqgc.rounds import RoundPolicy
from seqgc.schemes import Schedule
from seqgc.training import (
    Adaptation,
    Model,
    TrainingPlan,
    TrainResult,
    digits,
    make_module,
    train,
)
from tests.kit import SOAK

SPLIT = digits()
WORKERS = 6
STEPS = 50


def straggler(round: int, worker: int, load: float) -> float:  # noqa: ARG001 (whatever it is)
    """Delay two workers in each round, others every time, by far more than a round takes."""
    return 1.0 if (worker - 2 * round) % WORKERS < 2 else 0.0


def run(
    spec: str,
    path: Path,
    *,
    payload: Payload | None,
    steps: int = STEPS,
    observers: Sequence[Observer] = (),
    **options: object,
) -> TrainResult:
    model = Model(
        name="mlp",
        module=make_module("mlp", seed=0),
        loss=nn.CrossEntropyLoss(),
        dataset=SPLIT.train,
        optimizer=partial(torch.optim.Adam, lr=0.02),
        batch_size=200,
        test_dataset=SPLIT.test,
    )
    plan = TrainingPlan(models=[model], scheme=spec, steps=steps, payload=payload, **options)
    with workers.local(WORKERS, delays=straggler) as w:
        return train(plan, w, run=path / f"run-{payload}", observers=observers)


def accuracy(result: TrainResult) -> float:
    measured = result.evaluations["mlp"].accuracy
    assert measured is not None
    return measured


def test_16_bits_train_as_well_as_32(tmp_path: Path) -> None:
    full = run("gc:s=2", tmp_path, payload=None)
    assert full.payload == "float32"
    assert accuracy(full) >= 0.92
    assert full.counts.stragglers >= STEPS
    for payload in ("float16", "bfloat16") if SOAK else ("bfloat16",):
        result = run("gc:s=2", tmp_path, payload=payload)
        assert result.payload == payload
        assert result.counts.stragglers >= STEPS
        assert result.evaluations["mlp"].loss != full.evaluations["mlp"].loss, "was rounded"
        assert accuracy(result) == pytest.approx(accuracy(full), abs=0.01)
        header = json.loads((result.run / "events.jsonl").read_text().splitlines()[0])
        assert header["payload"] == payload


@pytest.mark.parametrize("adapt", [None, Adaptation(probe=100, alpha=1.0)])
def test_rounds_close_on_what_decodes_well_in_the_format(
    adapt: Adaptation | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads: list[object] = []
    plain = RoundPolicy.__init__

    def noting(self: RoundPolicy, schedule: Schedule, *args: Any, **options: Any) -> None:
        payloads.append(schedule.payload)
        plain(self, schedule, *args, **options)

    monkeypatch.setattr(RoundPolicy, "__init__", noting)
    run("gc-rep:s=2", tmp_path, payload="bfloat16", steps=1, adaptation=adapt)
    assert payloads == ["bfloat16"], "and no policy is made for nothing"


@pytest.mark.parametrize("stochastic", [False, True])
def test_what_arrives_has_the_formats_precision_and_no_more(
    stochastic: bool, tmp_path: Path
) -> None:
    arrived: list[np.ndarray] = []

    def watch(seen: Seen) -> None:
        if isinstance(seen, Arrival):
            arrived.extend(seen.results.values())

    run(
        "gc-rep:s=2",
        tmp_path,
        payload="bfloat16",
        steps=4,
        stochastic_rounding=stochastic,
        observers=[watch],
    )
    assert len(arrived) >= 4 * 2, "a round ends with one answer of each group"
    discarded = np.uint32(2 ** (24 - payload_format("bfloat16").precision) - 1)
    for vector in arrived:
        assert vector.dtype == np.float32
        assert not (vector.view(np.uint32) & discarded).any()
