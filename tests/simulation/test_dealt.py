"""Dealt work, and batches in parts, whatever goes wrong: to the bits of a run without faults."""

from __future__ import annotations

import pytest

from tests.kit import SOAK
from tests.simulation.draws import DRAWS
from tests.simulation.runs import simulate
from tests.simulation.search import failures, report

SEEDS = 3000 if SOAK else 3


@pytest.mark.timeout(0 if SOAK else 120)
@pytest.mark.parametrize("draw", ["dealt", "dealt-staying", "parts"])
def test_dealt_work_is_lost_never_and_counted_once(draw: str) -> None:
    for seed, _ in failures(range(SEEDS), draw=DRAWS[draw]):
        pytest.fail(report(seed, draw=draw))


@pytest.mark.parametrize("draw", ["dealt", "dealt-staying", "parts"])
def test_a_run_that_deals_is_resumed(draw: str) -> None:
    masters = [simulate(DRAWS[draw](seed)).masters for seed in (4, 7)]
    assert max(masters) > 1
