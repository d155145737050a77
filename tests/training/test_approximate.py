"""A run that may decode approximately says in every record how far it did."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from seqgc import workers
from seqgc.ports import Backend
from seqgc.runs import read_run
from seqgc.schemes import GC
from seqgc.search import ReplayBackend
from seqgc.training import TorchComputeFactory, TrainingPlan, TrainResult, train
from tests.training.reference import make_model

ROUNDS, GROUPS = 6, 5


def run(path: Path, *, allow_error: float) -> TrainResult:
    """Train with pairs of workers; in odd rounds both of the first pair (0 and 5) are late."""
    scheme = GC(n=2 * GROUPS, s=1, family="rep", allow_error=allow_error)
    times = np.ones((ROUNDS, scheme.n))
    times[1::2, ::GROUPS] = 5.0

    def on_recorded_times(n: int, factory: TorchComputeFactory) -> Backend:
        assert n == scheme.n
        return ReplayBackend(times, compute=factory())

    plan = TrainingPlan(models=[make_model()], scheme=scheme, steps=ROUNDS)
    return train(plan, workers.custom(scheme.n, on_recorded_times), run=path)


def decode_errors(path: Path) -> list[float]:
    log = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    decoded = [line for line in log if line["event"] == "decode"]
    assert [line["job"] for line in decoded] == list(range(ROUNDS))
    return [line["error"] for line in decoded]


def round_seconds(result: TrainResult) -> list[float]:
    recorded = read_run(result.run).rounds()["duration_s"].tolist()
    assert result.counts.rounds == len(recorded)
    return recorded


def test_the_log_and_the_counts_have_the_errors(tmp_path: Path) -> None:
    result = run(tmp_path / "run", allow_error=0.45)
    one_pair = math.sqrt(1 / GROUPS)
    assert decode_errors(result.run) == pytest.approx([0.0, one_pair] * (ROUNDS // 2), rel=1e-12)
    assert result.counts.approximate == ROUNDS // 2
    assert result.counts.largest_error == pytest.approx(one_pair, rel=1e-12)
    assert round_seconds(result) == [1.0] * ROUNDS


@pytest.mark.parametrize("allow_error", [0.0, 0.44])
def test_where_less_is_allowed_rounds_wait_and_nothing_is_approximate(
    allow_error: float, tmp_path: Path
) -> None:
    result = run(tmp_path / "run", allow_error=allow_error)
    assert decode_errors(result.run) == [0.0] * ROUNDS
    assert (result.counts.approximate, result.counts.largest_error) == (0, 0.0)
    assert round_seconds(result) == [1.0, 5.0] * (ROUNDS // 2)
