"""Long runs on real processes: nothing grows with the rounds, though a worker stands still."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from seqgc import workers
from seqgc.ports import Dispatch, Restart, Seen
from seqgc.rounds import ClosingRule, Setting
from seqgc.schemes import parse_scheme
from seqgc.training import TrainingPlan, train
from tests.census import Census, Rounds, no_more
from tests.kit import SOAK
from tests.simulation.seams import checkpoints_at_once
from tests.training.reference import make_model

N, ROUNDS, PARTS = (16, 2000, 10) if SOAK else (3, 24, 4)
COUNTS = 5  # one after the other, of which the least is nearly free of what comes and goes
CHECKPOINT_EVERY = ROUNDS // PARTS // 2  # rounds: losses are held until then
STOPPED = 2
# Of a few rounds what comes and goes is seen as well.
MOST_BYTES_A_ROUND, MOST_KB_OF_A_WORKER = (1e6 / 1e4, 64) if SOAK else (3000, 1024)


def small() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


@pytest.mark.usefixtures("traced")
@pytest.mark.timeout(0 if SOAK else 180)
def test_what_master_and_workers_hold_stays_as_it_is(tmp_path: Path) -> None:
    ends = range(ROUNDS // PARTS, ROUNDS + 1, ROUNDS // PARTS)
    counted = {end - k for end in ends for k in range(1, COUNTS + 1)}
    census = Census(tmp_path, counted, family={ROUNDS // 2 - 1, ROUNDS - 1})
    restarts: list[Restart] = []

    def stop(seen: Seen) -> None:
        if isinstance(seen, Restart):
            restarts.append(seen)
        if isinstance(seen, Dispatch) and (seen.round, seen.attempt) == (2, 0):
            named = {each.name: each.pid or 0 for each in multiprocessing.active_children()}
            os.kill(named[f"seqgc-worker-{STOPPED}"], signal.SIGSTOP)

    plan = TrainingPlan(
        models=[make_model(f"m{i}", module=small()) for i in range(4)],
        scheme=Setting(scheme=parse_scheme("gc:s=1", n=N), rule=ClosingRule(timeout_s=1e9)),
        steps=ROUNDS // 4,
        checkpoint_every_s=CHECKPOINT_EVERY,
    )
    rounds = Rounds()
    with workers.local(N) as crew, checkpoints_at_once(rounds):
        result = train(plan, crew, run=tmp_path / "run", observers=[census, rounds, stop])
    assert result.counts.rounds == ROUNDS
    held = np.reshape(census.bytes, (PARTS, COUNTS)).min(axis=1)
    growth = float(np.median(np.diff(held))) / (ROUNDS / PARTS)
    first, last = census.others
    more_kb = {pid: last[pid]["kB"] - first[pid]["kB"] for pid in last if pid in first}
    print(f"{growth:.0f} bytes a round; of each process {sorted(more_kb.values())} kB")
    assert restarts == [], "nobody needs it"
    assert growth < MOST_BYTES_A_ROUND
    assert no_more(census.own[PARTS // 2 * COUNTS - 1], census.own[-1])
    assert last.keys() <= first.keys()
    assert max(more_kb.values()) < MOST_KB_OF_A_WORKER
    assert all(no_more(first[pid], last[pid]) for pid in last), (first, last)
