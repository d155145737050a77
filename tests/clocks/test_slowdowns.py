"""The slowdowns that the papers inject, small; `tests/benchmarks` has them as large as there."""

from __future__ import annotations

import pytest

from seqgc.clocks import Clocks
from seqgc.master import run
from seqgc.profiles.slowdowns import Disrupters, RotatingSleep, Slowdown
from seqgc.rounds import ClosingRule
from seqgc.schemes import parse_scheme
from seqgc.virtual import VirtualBackend


def rise(spec: str, slowdown: Slowdown, *, jobs: int) -> float:
    """By how many seconds a job takes longer than nothing but work."""
    clocks = parse_scheme(spec, n=slowdown.n)
    assert isinstance(clocks, Clocks)
    backend = VirtualBackend(slowdown.n, slowdown.pace())
    run(clocks.policy(ClosingRule(), num_jobs=jobs), backend)
    return backend.now / jobs - slowdown.clock_s


@pytest.mark.parametrize(
    ("sleep_s", "bsp", "a_bsp", "ssp"),
    [
        (4.0, 4.0, 2.0, 0.5),
        (6.0, 6.0, 3.0, 0.926),
        (8.0, 8.0, 4.0, 1.926),
        (10.0, 10.0, 5.0, 2.926),
    ],
)
def test_a_sleep_that_goes_round_hardly_costs_who_has_slack(
    sleep_s: float, bsp: float, a_bsp: float, ssp: float
) -> None:
    """Cui et al. 2014, Fig. 6: 8 machines, 4.2 s an iteration; a sleep of d costs d/8 at least."""
    slowdown = RotatingSleep(n=8, sleep_for_s=sleep_s, clock_s=4.2)
    specs = {"bsp": bsp, "a-bsp:wpc=2": a_bsp, "ssp:slack=1": ssp}
    found = {spec: rise(spec, slowdown, jobs=160) for spec in specs}
    assert found == pytest.approx(specs, abs=1e-3)
    assert found["ssp:slack=1"] >= sleep_s / 8


def test_of_two_that_are_as_stale_slack_is_hurt_less_by_disruptions() -> None:
    """Cui et al. 2014, Fig. 7, small; the real size is a benchmark."""
    for every_s in (1.0, 4.0, 16.0):
        slowdown = Disrupters(n=8, delay=1.0, clock_s=4.2, every_s=every_s, probability=0.1, seed=1)
        bsp, a_bsp, ssp = (
            rise(spec, slowdown, jobs=40) for spec in ("bsp", "a-bsp:wpc=2", "ssp:slack=1")
        )
        assert 0 < ssp < a_bsp <= bsp
