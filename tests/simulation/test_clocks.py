"""Workers who go on by themselves, shares that change, rounds without some: whatever goes wrong."""

from __future__ import annotations

from itertools import chain

import pytest

from tests.kit import SOAK
from tests.simulation.clock_plants import CLOCK_PLANTS
from tests.simulation.draws import DRAWS
from tests.simulation.runs import simulate
from tests.simulation.search import failures, report

clocks = DRAWS["clocks"]
PARTS = 6  # of the seeds, so that several processes can be at them
# Where each bug was found last: seeds that are tried before all others.
QUICK = {
    "a worker begins beyond its slack": 0,
    "clocks that are in the weights are asked for again by resume": 3,
    "shards begin anew with each resume": 4,
    "a job ends though a shard may be done again": 61,
    "what is done again is taken for new": 25,
    "answers to any attempt count": 0,
    "an update is applied again by resume": 34,
    "parts of pieces that are in the weights are asked for again by resume": 63,
    "a helper begins a clock beyond the slack": 21,
    "a helper's piece counts as the part's worker's": 21,
    "what steps lost is forgotten by resume": 7,
}


SEEDS = [*range(9000)] if SOAK else sorted({*range(36), *QUICK.values()})


@pytest.mark.timeout(0 if SOAK else 120)
@pytest.mark.parametrize("part", range(PARTS))
def test_no_part_is_lost_and_none_moves_the_weights_twice(part: int) -> None:
    for seed, _ in failures(SEEDS[part::PARTS], draw=clocks):
        pytest.fail(report(seed, draw="clocks"))


@pytest.mark.parametrize(
    "seed",
    [
        12,  # weights cannot be published when a job begins: its turn had been taken, and was lost
    ],
)
def test_what_seeds_have_found_stays_mended(seed: int) -> None:
    for found, _ in failures([seed], draw=clocks):
        pytest.fail(report(found, draw="clocks"))


@pytest.mark.parametrize("seed", [3, 13] if SOAK else [3])
def test_the_same_seed_has_the_same_events_and_runs_are_gone_on_with(seed: int) -> None:
    first, second = simulate(clocks(seed)), simulate(clocks(seed))
    assert first.digest == second.digest
    assert first.masters > 1


@pytest.mark.parametrize("plant", CLOCK_PLANTS)
def test_a_planted_bug_is_found(plant: str) -> None:
    seeds = chain([QUICK[plant]], range(500))
    found = next(failures(seeds, plant=plant, draw=clocks), None)
    assert found is not None, f"{plant!r} is not found within 500 seeds"
    assert found[1].startswith("Violation: "), f"{plant!r} is itself broken: {found[1]}"
    print(f"{plant}: seed {found[0]}")
