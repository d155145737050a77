"""Dealt work in whole runs, whatever goes wrong in them: to the bits of a run without faults."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kit import SOAK
from tests.simulation.faults import Fault, Scenario, draw
from tests.simulation.runs import simulate

SEEDS = 3000 if SOAK else 2


def dealt(seed: int) -> Scenario:
    spec = ("deal", "deal:pieces=5", "deal:pieces=12")[seed % 3]
    drawn = draw(seed)
    faults = tuple(fault for fault in drawn.faults if fault.kind != "lie")  # nobody is asked twice
    faults += (Fault(kind="kill", at=(40 + seed % 60,), amount=0.5),)
    return replace(drawn, spec=spec, backend="local", audit=False, switches=(), faults=faults)


@pytest.mark.timeout(0 if SOAK else 120)
def test_dealt_work_is_lost_never_and_counted_once() -> None:
    masters = 0
    for seed in range(SEEDS):
        outcome = simulate(dealt(seed))
        assert outcome.fault is None, f"seed {seed}: {outcome.fault}\n{dealt(seed)}"
        masters += outcome.masters
    assert masters > SEEDS, "none was resumed"
