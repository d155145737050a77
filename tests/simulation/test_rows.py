"""Single faults, everywhere: kills at every instant, crashes in every round, slow workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from seqgc import master
from seqgc.ports import Close, RoundRecord, Seen
from seqgc.rounds import ClosingRule, Setting, SwitchingPolicy
from seqgc.schemes import parse_scheme
from seqgc.search import ReplayBackend
from tests.kit import SOAK
from tests.simulation.faults import SPECS, TABLES, Fault, Scenario
from tests.simulation.runs import Outcome, simulate
from tests.sums import Sums

pytestmark = pytest.mark.timeout(0 if SOAK else 180)


def configurations(spec: str) -> list[Scenario]:
    """Return the runs of a scheme that are broken off; one in `make test`, which has few faults.

    Checkpoints are taken often, at times, or never, and each time other workers are slow.
    """
    each = [
        Scenario(seed=0, spec=spec, delays=delays, checkpoint_every_s=every_s, faults=())
        for delays, every_s in zip(range(TABLES), (2.0, 9.0, 1e9), strict=True)
    ]
    return each if SOAK else [each[SPECS.index(spec) % len(each)]]


def broken(
    configuration: Scenario, make: Callable[[Outcome, list[str]], list[Fault]]
) -> Iterator[Scenario]:
    """Yield a run with each fault that ``make`` finds for it by what it does, and by its calls.

    In `make test` there are two or three, others for each scheme.
    """
    whole = simulate(configuration, keep=True)
    faults = make(whole, [line for line in whole.lines if line.startswith("call")])
    first, step = SPECS.index(configuration.spec), len(faults) // 2
    for fault in faults if SOAK else faults[first::step]:
        yield replace(configuration, faults=(fault,))


@pytest.mark.parametrize("spec", SPECS)
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


@pytest.mark.parametrize("spec", SPECS)
def test_a_disk_that_fails_at_any_call_leaves_a_run_that_goes_on(spec: str) -> None:
    """An error, or no room for this call and some after it; writes are left half done."""

    def instants(_: Outcome, calls: list[str]) -> list[Fault]:
        return [
            Fault(kind=kind, at=(k,), amount=k % 7 / 7)
            for k in range(len(calls))
            for kind in ("io-error", "no-space")
        ]

    failed = 0
    for configuration in configurations(spec):
        for scenario in broken(configuration, instants):
            outcome = simulate(scenario)
            assert outcome.fault is None, f"{scenario}\n{outcome.fault}"
            assert outcome.faults == scenario.faults, scenario
            failed += 1
    print(f"{failed} calls failed")
    assert failed > (700 if SOAK else 1)


@pytest.mark.parametrize(
    "spec", ["gc:s=78", "gc-binary:s=78", "sr-sgc:B=1,W=2,lam=78", "m-sgc:B=1,W=2,lam=78"]
)
def test_stragglers_within_the_design_delay_nobody(spec: str) -> None:
    """30 % of 256 workers are 20 times slower, others in each round that may have some.

    The design takes one more: what decodes badly, one set of answers of some thousands, waits for
    another answer where results are float32.
    """
    n, slow = 256, 77
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
    policy = SwitchingPolicy(setting, num_jobs=jobs, payload="float32")
    backend = ReplayBackend(times, compute=workload.compute)
    master.run(policy, backend, workload, observe=observe)
    assert workload.finished == jobs
    assert max(record.duration_s for record in closed) < 1.25 * 1.2 + 1e-9
