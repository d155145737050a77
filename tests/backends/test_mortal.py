"""A run whose workers die and hang, on the real loop and real processes."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from seqgc.backends import LocalBackend
from seqgc.master import run
from seqgc.ports import Action, Dispatch, Event, Failure, Restart
from seqgc.rounds import ClosingRule, RoundPolicy
from seqgc.schemes import parse_scheme
from seqgc.testing import ChunkWorkload
from tests.backends.mortal import Mortal
from tests.kit import SOAK

# Who is stopped is waited for as long as a round may take; who dies, again and again, must be
# replaced within it, on a machine that has other things to do.
SIZES = [(16, 200, 10.0), (256, 20, 60.0)] if SOAK else [(8, 8, 3.0)]
pytestmark = pytest.mark.timeout(0 if SOAK else 180)


@pytest.mark.parametrize(("n", "jobs", "limit_s"), SIZES)
@pytest.mark.parametrize("spec", ["uncoded", "m-sgc:B=1,W=2,lam=4"])
def test_whoever_dies_or_hangs_gradients_are_those_of_a_run_without_faults(
    spec: str, n: int, jobs: int, limit_s: float
) -> None:
    scheme = parse_scheme(spec, n=n)
    workload, seen = ChunkWorkload(scheme, seed=0), list[Failure | Restart]()
    stopped = set[int]()
    deaths = 0.3 / len(scheme.start(jobs).assignment()[0])  # of each task, by its mini-tasks

    def watch(each: Event | Action) -> None:
        if isinstance(each, Dispatch) and each.attempt == 0 and each.round % 10 == 5:
            with contextlib.suppress(ProcessLookupError):  # it may be dead already
                os.kill(backend.pids[each.round % n], signal.SIGSTOP)
                stopped.add(each.round % n)
        if isinstance(each, Failure | Restart):
            seen.append(each)

    factory = Mortal(chunks=len(scheme.chunk_fractions), deaths=deaths)
    with LocalBackend(n, factory) as backend:
        policy = RoundPolicy(scheme.start(jobs), ClosingRule(timeout_s=limit_s))
        run(policy, backend, workload, observe=watch)
    assert sorted(workload.errors) == list(range(jobs))
    assert max(workload.errors.values()) <= 1e-10
    reasons = {(each.worker, each.reason) for each in seen if isinstance(each, Failure)}
    assert any("killed by SIG" in reason for _, reason in reasons)
    assert not SOAK or any("MemoryError" in reason for _, reason in reasons)
    replaced = {each.worker for each in seen if isinstance(each, Restart)}
    if spec != "uncoded":  # where nobody waits for it, it may be dying when it is stopped
        replaced |= {worker for worker, reason in reasons if "killed by SIG" in reason}
    assert stopped
    assert stopped <= replaced
