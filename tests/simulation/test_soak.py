"""Long runs: what a master holds does not grow with the rounds, whoever stands still."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from seqgc import workers
from seqgc.ports import Dispatch, Seen
from seqgc.rounds import ClosingRule, Setting
from seqgc.schemes import parse_scheme
from seqgc.training import TrainingPlan, train
from tests.kit import SOAK
from tests.simulation.runs import models
from tests.training.test_adaptive import replayed

pytestmark = pytest.mark.timeout(0 if SOAK else 180)
N = 8
ROUNDS = 100_000 if SOAK else 300
# Of a few rounds what comes and goes is seen as well.
MOST_BYTES_A_ROUND = 1e6 / 1e4 if SOAK else 300


class Census:
    """Counts, before some rounds, what the process and the run's folder hold."""

    def __init__(self, run: Path, rounds: set[int]) -> None:
        self._run, self._rounds = run, rounds
        self.bytes: list[int] = []
        self.others: list[tuple[int, ...]] = []

    def __call__(self, seen: Seen) -> None:
        if isinstance(seen, Dispatch) and seen.attempt == 0 and seen.round in self._rounds:
            handles, files = list(Path("/proc/self/fd").glob("*")), list(self._run.rglob("*"))
            self.others.append((len(handles), threading.active_count(), len(files)))
            del handles, files
            gc.collect()
            self.bytes.append(tracemalloc.get_traced_memory()[0])


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start(1)
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(
    ("spec", "stopped"), [("gc:s=2", [5]), ("m-sgc:B=1,W=2,lam=3", [])][: 2 if SOAK else 1]
)
def test_memory_descriptors_threads_and_files_stay_as_they_are(
    spec: str, stopped: list[int], tmp_path: Path
) -> None:
    times = 1 + np.minimum(np.random.default_rng(0).pareto(2.0, (ROUNDS + 8, N)), 9)
    times[:, stopped] = np.inf  # never heard of
    rule = ClosingRule(mu=0.2, timeout_s=1e9)
    plan = TrainingPlan(
        models=models()[:4],
        scheme=Setting(scheme=parse_scheme(spec, n=N), rule=rule),
        steps=ROUNDS // 4,
        checkpoint_every_s=1e9,
    )
    parts = 10 if SOAK else 4
    census = Census(tmp_path / "run", {ROUNDS * part // parts - 1 for part in range(1, parts + 1)})
    train(plan, workers.custom(N, replayed(times)), run=tmp_path / "run", observers=[census])
    # A dictionary grows in leaps, a module is imported late: that is in one part, a leak in all.
    growth = float(np.median(np.diff(census.bytes))) / (ROUNDS / parts)
    print(f"{spec}: {growth:.0f} bytes a round")
    assert growth < MOST_BYTES_A_ROUND
    assert census.others[0] == census.others[-1]
