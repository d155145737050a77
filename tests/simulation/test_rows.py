"""Single faults, everywhere: a disk that fails, crashes in every round, slow workers."""

from __future__ import annotations

import numpy as np
import pytest

from seqgc import master
from seqgc.ports import Close, RoundRecord, Seen
from seqgc.rounds import ClosingRule, Setting, SwitchingPolicy
from seqgc.schemes import parse_scheme
from seqgc.search import ReplayBackend
from tests.kit import SOAK
from tests.simulation.faults import SPECS, Fault
from tests.simulation.rows import broken, configurations
from tests.simulation.runs import Outcome, simulate
from tests.sums import Sums

pytestmark = pytest.mark.timeout(0 if SOAK else 180)


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
