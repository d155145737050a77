"""Long runs: what a master holds does not grow with the rounds, whoever stands still."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from seqgc import workers
from seqgc.rounds import ClosingRule, Setting
from seqgc.schemes import parse_scheme
from seqgc.training import TrainingPlan, train
from tests.census import Census, Rounds, no_more
from tests.kit import SOAK
from tests.simulation.models import models
from tests.simulation.seams import checkpoints_at_once
from tests.training.test_adaptive import replayed

pytestmark = pytest.mark.timeout(0 if SOAK else 180)
N = 8
ROUNDS = 100_000 if SOAK else 160
CHECKPOINT_EVERY = 100 if SOAK else 10  # rounds
# Of a few rounds what comes and goes is seen as well.
MOST_BYTES_A_ROUND = 1e6 / 1e4 if SOAK else 1000


@pytest.mark.usefixtures("tmp_path" if SOAK else "traced")  # this makes a round ten times as long
@pytest.mark.parametrize(
    ("spec", "stands"), [("gc:s=2", 1), ("m-sgc:B=1,W=2,lam=3", 2)][: 2 if SOAK else 1]
)
def test_memory_descriptors_threads_and_files_stay_as_they_are(
    spec: str, stands: int, tmp_path: Path
) -> None:
    """One worker never answers in each round, or in each second one: m-sgc forgives no more."""
    times = 1 + np.minimum(np.random.default_rng(0).pareto(2.0, (ROUNDS + 8, N)), 9)
    times[::stands, 5] = np.inf
    rule = ClosingRule(mu=0.2, timeout_s=1e9)
    plan = TrainingPlan(
        models=models(4),
        scheme=Setting(scheme=parse_scheme(spec, n=N), rule=rule),
        steps=ROUNDS // 4,
        checkpoint_every_s=CHECKPOINT_EVERY,
    )
    rounds = Rounds()
    parts = 10 if SOAK else 4
    census = Census(tmp_path / "run", {ROUNDS * part // parts - 1 for part in range(1, parts + 1)})
    observers = [census, rounds]
    with checkpoints_at_once(rounds):  # so that none is half written at a count
        train(plan, workers.custom(N, replayed(times)), run=tmp_path / "run", observers=observers)
    # A dictionary grows in leaps, a module is imported late: that is in one part, a leak in all.
    held = [1024 * seen["kB"] for seen in census.own] if SOAK else census.bytes
    growth = float(np.median(np.diff(held))) / (ROUNDS / parts)
    print(f"{spec}: {growth:.0f} bytes a round")
    assert growth < MOST_BYTES_A_ROUND
    assert no_more(census.own[0], census.own[-1]), census.own
