"""What must hold in whole runs, whatever goes wrong in them: some seeds, and planted bugs."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest

from tests.kit import SOAK
from tests.simulation.__main__ import main
from tests.simulation.clock_plants import CLOCK_PLANTS
from tests.simulation.draws import DRAWS
from tests.simulation.faults import (
    BACKENDS,
    LARGE,
    SMALL,
    SPECS,
    TABLES,
    Fault,
    Scenario,
    draw,
    of_functions,
    of_residents,
    shrink,
)
from tests.simulation.plants import FOUND_IN, PLANTS
from tests.simulation.resident_plants import RESIDENT_PLANTS
from tests.simulation.runs import compare, simulate, trained
from tests.simulation.seams import TorchWorkload
from tests.simulation.search import failures, report

PARTS = 10  # of the seeds, so that several processes can be at them
SEEDS = (10_000 if SOAK else 300) // PARTS
PLAIN = Scenario(seed=0, spec="uncoded", delays=0, checkpoint_every_s=9.0, faults=())
# Some bugs, and where each was found last: seeds that are tried before all others.
QUICK = {
    "durations by the wall clock": 14,
    "nothing is locked": 7,
    "answers of closed rounds count": 0,
    "late answers of finished jobs count": 0,
    "what came late and was dealt again counts twice": 0,
    "sums in the order of answers": 0,
    "optimizers forget": 3,
    "nothing is synced": 3,
    "weights are deleted at once": 1,
    "gradients applied again by resume": 7,
}


@pytest.mark.parametrize("spec", SPECS)
def test_without_faults_every_scheme_trains_to_the_same_weights(spec: str) -> None:
    for shape in (SMALL, LARGE):
        plain = replace(PLAIN, shape=shape)
        coded = trained(replace(plain, spec=spec, delays=TABLES - 1))
        for name, tensors in trained(plain).weights.items():
            for key, tensor in tensors.items():
                assert (coded.weights[name][key] - tensor).abs().max() < 1e-5


@pytest.mark.timeout(0 if SOAK else 180)
@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_lost_and_nothing_let_in(part: int) -> None:
    for seed, _ in failures(range(part * SEEDS, (part + 1) * SEEDS)):
        pytest.fail(report(seed))


@pytest.mark.parametrize(
    "seed",
    [
        2662,  # weights in flight cannot be read for a checkpoint
        4355,  # an unsynced line of losses is torn
        2765,  # two workers falsify the same, one of them twice: an honest one was expelled
        11021,  # a checkpoint is due after a gradient that could not be made, and another error
    ],
)
def test_what_rare_seeds_have_found_stays_mended(seed: int) -> None:
    for found, _ in failures([seed]):
        pytest.fail(report(found))


@pytest.mark.parametrize("spec", SPECS if SOAK else ["uncoded"])
def test_losses_that_the_disk_has_no_room_for_are_written_by_a_resumed_run(spec: str) -> None:
    """One write of them fails, and at some time after it the disk is full, perhaps to the end.

    Seed 56733 once found it.
    """
    roomy = replace(PLAIN, spec=spec, checkpoint_every_s=1e9)
    calls = [line for line in simulate(roomy, keep=True).lines if line.startswith("call")]
    last = max(k for k, call in enumerate(calls) if call == "call write metrics.csv")
    fails = Fault(kind="io-error", at=(last,), amount=0.3)
    masters = []
    some = [*range(last + 1, len(calls), 1 if SOAK else 3), len(calls) - 1]
    for call in some:
        full = Fault(kind="no-space", at=(call,), amount=0.95)
        outcome = simulate(replace(roomy, faults=(fails, full)))
        assert outcome.fault is None, f"{full}\n{outcome.fault}"
        masters.append(outcome.masters)
    assert set(masters) == {1, 2}


@pytest.mark.timeout(0 if SOAK else 120)
@pytest.mark.parametrize("draw", ["stale", "functions"])
def test_runs_of_one_kind_lose_nothing(draw: str) -> None:
    for seed, _ in failures(range(3000 if SOAK else 3), draw=DRAWS[draw]):
        pytest.fail(report(seed, draw=draw))


def test_decoded_gradients_that_wait_go_into_checkpoints_and_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They wait only if there are fewer bundles than the delay + 1: others are applied at once."""
    waited, restore = [], TorchWorkload.restore

    def watched(self: TorchWorkload, *arguments: object) -> None:
        restore(self, *arguments)  # type: ignore[arg-type]
        waited.append(sum(each is not None for each in self._unapplied.values()))

    monkeypatch.setattr(TorchWorkload, "restore", watched)
    for seed in range(3):
        assert simulate(draw(seed)).fault is None
    assert not any(waited)
    for seed in range(1000 if SOAK else 8):
        assert simulate(DRAWS["stale"](seed)).fault is None
    print(f"{len(waited)} restored, {sum(map(bool, waited))} of them with gradients that waited")
    assert sum(map(bool, waited)) > (300 if SOAK else 0)


def test_the_same_seed_has_the_same_events() -> None:
    scenarios = map(draw, range(200))
    kinds = {(s.backend, s.audit, s.wild, bool(s.switches)): s.seed for s in scenarios}
    for seed in kinds.values():
        first, second = simulate(draw(seed)), simulate(draw(seed))
        assert first.digest == second.digest
        assert first.faults == second.faults
    assert simulate(draw(0)).digest != simulate(draw(1)).digest


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_functions_train_to_the_bits_of_local_workers(backend: str) -> None:
    local = replace(PLAIN, spec="m-sgc-rep:B=1,W=2,lam=1", shape=SMALL)
    scenario = replace(local, backend=backend)
    compare(trained(scenario).weights, trained(local), exact=True, but=set())
    of_backend = of_residents if backend == "resident" else of_functions
    rngs = map(np.random.default_rng, range(20))
    faults = [fault for rng in rngs for fault in of_backend(rng, shape=SMALL)]
    scenario = replace(scenario, faults=tuple({(f.kind, f.at): f for f in faults}.values())[:40])
    first, second = simulate(scenario), simulate(scenario)
    assert (first.fault, first.digest) == (None, second.digest)
    assert len(first.faults) >= 10


# Those of clocks, and of functions that stay, have tests of their own.
@pytest.mark.parametrize(
    "plant", sorted(PLANTS.keys() - {*CLOCK_PLANTS, *RESIDENT_PLANTS}) if SOAK else QUICK
)
def test_a_planted_bug_is_found(plant: str) -> None:
    seeds = chain([QUICK.get(plant, 0)], range(1000))
    draw = DRAWS[FOUND_IN.get(plant, "any")]
    found = next(failures(seeds, plant=plant, draw=draw), None)
    assert found is not None, f"{plant!r} is not found within 1,000 seeds"
    kind = found[1].partition(":")[0]
    assert kind not in {"TypeError", "AttributeError"}, f"{plant!r} is itself broken: {found[1]}"
    print(f"{plant}: seed {found[0]}")


def test_a_failure_names_its_command_and_its_fewest_faults(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plant = "optimizers forget"
    seed, fault = next(failures(chain([QUICK[plant]], range(1000)), plant=plant))
    assert main(["--seed", str(seed), "--plant", plant]) == 1
    printed = capsys.readouterr().out
    assert f"python -m tests.simulation --seed {seed} --plant '{plant}'" in printed
    assert printed.count(" at ") <= len(draw(seed).faults)
    assert fault.split(":")[0] in printed


def test_shrinking_finds_the_faults_that_matter() -> None:
    scenario = max(map(draw, range(50)), key=lambda s: len(s.faults))
    needed = {scenario.faults[1], scenario.faults[-1]}
    assert set(shrink(scenario, lambda other: needed <= set(other.faults)).faults) == needed
