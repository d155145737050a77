"""Resuming to the same bits: one table of schemes, or of defences without rounds, and instants."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from seqgc.schemes import registered
from tests.kit import SOAK
from tests.simulation.draws import CLOCKS, DRAWS, clock_spec
from tests.simulation.faults import CALL_KINDS, SMALL, Fault
from tests.simulation.promises import parts_of
from tests.simulation.rows import ROWS, broken, configurations
from tests.simulation.runs import Outcome, simulate

pytestmark = pytest.mark.timeout(0 if SOAK else 180)

clocks = DRAWS["clocks"]


def test_every_registered_defence_has_a_row() -> None:
    """But `hedge`, which asks two workers for one part; `check_defence` interrupts it."""
    names = {spec.partition(":")[0] for spec in (*ROWS, *CLOCKS)}
    own = {n for n, entry in registered().items() if entry.kind.__module__.startswith("seqgc.")}
    assert names >= own - {"hedge"}


@pytest.mark.parametrize("spec", ROWS)
def test_a_master_killed_at_any_instant_is_resumed_to_the_same_bits(spec: str) -> None:
    """After every call that makes files last, before the first, and in the midst of every write.

    After every third event, too, and where the power fails at every third call, others in each
    configuration.
    """
    died = 0
    for configuration in configurations(spec):
        third = configuration.delays

        def instants(whole: Outcome, calls: list[str], third: int = third) -> list[Fault]:
            writes = [k for k, call in enumerate(calls) if call.startswith("call write")]
            return [
                Fault(kind="kill-at-call", at=(0,), amount=0.1),
                *(Fault(kind="kill-at-call", at=(k,), amount=0.9) for k in range(len(calls))),
                *(Fault(kind="kill-at-call", at=(k,), amount=0.5) for k in writes),
                *(Fault(kind="kill", at=(k,), amount=0.0) for k in range(third, whole.events, 3)),
                *(
                    Fault(kind="power-loss", at=(k,), amount=k // 3 % 3 / 3)
                    for k in range(third, len(calls), 3)
                ),
            ]

        for scenario in broken(configuration, instants):
            outcome = simulate(scenario)
            assert outcome.fault is None, f"{scenario}\n{outcome.fault}"
            assert (outcome.masters, outcome.faults) == (2, scenario.faults), scenario
            died += 1
    print(f"{died} masters died")
    assert died > (1000 if SOAK else 1)


@pytest.mark.timeout(0 if SOAK else 120)
@pytest.mark.parametrize("spec", CLOCKS)
def test_a_run_goes_on_from_any_event_and_any_system_call(spec: str) -> None:
    """The master is killed there, the power fails, or the disk does."""
    instants = [("kill", k) for k in range(SMALL.events)]
    instants += [(kind, k) for k in range(SMALL.calls) for kind in CALL_KINDS]
    number = CLOCKS.index(spec)
    seed = next(seed for seed in count() if clock_spec(seed) == spec)
    scenario = replace(clocks(seed), backend="local", shape=SMALL, updates="")
    defence = parts_of(scenario)
    scenario = replace(scenario, straight=defence is not None and defence.kind != "exact")
    for kind, at in instants if SOAK else instants[20 + 37 * number :: 1000]:
        fault = Fault(kind=kind, at=(at,), amount=at % 7 / 7)
        every_s = [0.5, 2.0, 9.0][at % 3]
        broken = replace(scenario, faults=(fault,), checkpoint_every_s=every_s)
        outcome = simulate(broken)
        assert outcome.fault is None, f"{broken}\n{outcome.fault}"
        assert SOAK or outcome.faults
