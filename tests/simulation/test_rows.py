"""Single faults, everywhere: kills at every instant, crashes in every round, slow workers."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import pytest

from seqgc import master
from seqgc.ports import Close, RoundRecord, Seen
from seqgc.rounds import ClosingRule, Setting, SwitchingPolicy
from seqgc.schemes import parse_scheme
from seqgc.search import ReplayBackend
from tests.kit import SOAK
from tests.simulation.faults import LARGE, SPECS, TABLES, Fault, Scenario
from tests.simulation.runs import simulate
from tests.sums import Sums

pytestmark = pytest.mark.timeout(0 if SOAK else 180)


_Instant = TypeVar("_Instant")


def some(instants: list[_Instant], spec: str) -> list[_Instant]:
    """Return all in a soak, else two or three, others for each scheme."""
    return instants if SOAK else instants[SPECS.index(spec) :: 901]


@pytest.mark.parametrize("spec", SPECS)
def test_a_master_killed_at_any_instant_is_resumed_to_the_same_bits(spec: str) -> None:
    """After any event, and before, in the midst of, or after any call that makes files last."""
    instants = [("kill", k, 0.0) for k in range(LARGE.events)]
    instants += [
        ("kill-at-call", k, amount) for k in range(LARGE.calls) for amount in (0.1, 0.5, 0.9)
    ]
    instants += [("power-loss", k, k % 3 / 3) for k in range(LARGE.calls)]
    died = 0
    for kind, at, amount in some(instants, spec):
        scenario = Scenario(
            seed=0,
            spec=spec,
            delays=at % TABLES,
            checkpoint_every_s=[2.0, 9.0, 1e9][at % 3],
            faults=(Fault(kind=kind, at=(at,), amount=amount),),
        )
        outcome = simulate(scenario)
        assert outcome.fault is None, f"{scenario}\n{outcome.fault}"
        assert outcome.masters == 1 + len(outcome.faults)
        died += len(outcome.faults)
    print(f"{died} masters died")
    assert died > (0.65 * len(instants) if SOAK else 0)  # some runs have fewer instants


@pytest.mark.parametrize("spec", SPECS)
def test_a_disk_that_fails_at_any_call_leaves_a_run_that_goes_on(spec: str) -> None:
    """An error, or no room for this call and some after it; writes are left half done."""
    instants = [(kind, k) for k in range(LARGE.calls) for kind in ("io-error", "no-space")]
    failed = 0
    for kind, at in some(instants, spec):
        scenario = Scenario(
            seed=0,
            spec=spec,
            delays=at % TABLES,
            checkpoint_every_s=[2.0, 9.0, 1e9][at % 3],
            faults=(Fault(kind=kind, at=(at,), amount=at % 7 / 7),),
        )
        outcome = simulate(scenario)
        assert outcome.fault is None, f"{scenario}\n{outcome.fault}"
        failed += len(outcome.faults)
    print(f"{failed} calls failed")
    assert failed > (0.7 * len(instants) if SOAK else 0)


@pytest.mark.parametrize("spec", ["gc:s=77", "gc-binary:s=77", "sr-sgc:B=1,W=2,lam=77"])
def test_stragglers_within_the_design_delay_nobody(spec: str) -> None:
    """30 % of 256 workers are 20 times slower, others in each round that may have some."""
    n, slow = 256, 76
    jobs = 10_000 if SOAK else 6
    scheme = parse_scheme(spec, n=n)
    rng = np.random.default_rng(7)
    times = 1 + 0.2 * rng.random((jobs + scheme.delay, n))
    for row in times[:: 1 if spec.startswith("gc") else 2]:
        row[rng.choice(n, slow, replace=False)] *= 20
    workload = Sums(scheme)
    closed: list[RoundRecord] = []

    def observe(seen: Seen) -> None:
        if isinstance(seen, Close):
            closed.append(seen.record)

    setting = Setting(scheme=scheme, rule=ClosingRule(mu=0.25))
    # With a payload: answers decoded badly, one set of some thousands, do not suffice.
    policy = SwitchingPolicy(setting, num_jobs=jobs, payload="float32")
    backend = ReplayBackend(times, compute=workload.compute)
    master.run(policy, backend, workload, observe=observe)
    assert workload.finished == jobs
    assert max(record.duration_s for record in closed) < 1.25 * 1.2 + 1e-9


@pytest.mark.parametrize("spec", SPECS)
def test_a_run_whose_tasks_crash_three_times_in_ten_ends_without_a_second_master(spec: str) -> None:
    for seed in range(100) if SOAK else [SPECS.index(spec)]:
        rng = np.random.default_rng(seed)
        crashes = np.argwhere(rng.random((LARGE.rounds, LARGE.n, 8)) < 0.3)
        scenario = Scenario(
            seed=seed,
            spec=spec,
            delays=seed % TABLES,
            checkpoint_every_s=9.0,
            faults=tuple(Fault(kind="crash", at=tuple(at), amount=0.0) for at in crashes.tolist()),
        )
        outcome = simulate(scenario)
        assert (outcome.fault, outcome.masters) == (None, 1), scenario
