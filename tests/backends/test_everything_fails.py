"""When all workers fail in the same way, a run ends soon, with one cause and a worker's number."""

from __future__ import annotations

import re

import pytest

from seqgc.backends import LocalBackend
from seqgc.errors import WorkerError
from seqgc.master import run
from seqgc.ports import Action, Dispatched, Event
from seqgc.rounds import TIME_LIMITS, ClosingRule, RoundPolicy
from seqgc.schemes import Scheme, parse_scheme
from seqgc.testing import ChunkWorkload
from tests.backends.mortal import Failing
from tests.kit import SOAK, at_some_pace

N = 4
WAYS = {
    "killed": "killed by SIGKILL",
    "exits": "code 3",
    "raises": "ValueError: on purpose",
    "no memory": "MemoryError",
    "stopped": "",
    "hangs": "",
}


@pytest.mark.parametrize("spec", ["uncoded", "gc:s=1"] if SOAK else ["gc:s=1"])
# `tests/policies` has the end of such a run, `test_local` the names of the causes.
@pytest.mark.parametrize("way", WAYS if SOAK else ["killed", "hangs"])
def test_a_run_ends_within_its_time_limits_with_a_cause(way: str, spec: str) -> None:
    at_some_pace(lambda limit_s: assert_ends(way, parse_scheme(spec, n=N), limit_s), 1.0, 5.0, 25.0)


def assert_ends(way: str, scheme: Scheme, limit_s: float) -> None:
    sent = list[int]()

    def watch(seen: Event | Action) -> None:
        if isinstance(seen, Dispatched):
            sent.extend(seen.workers)

    workload = ChunkWorkload(scheme, seed=0)
    with LocalBackend(N, Failing(way=way)) as backend:
        policy = RoundPolicy(scheme.start(10), ClosingRule(timeout_s=limit_s, max_attempts=2))
        with pytest.raises(WorkerError, match=rf"worker \d.*{WAYS[way]}") as caught:
            run(policy, backend, workload, observe=watch)
    (text,) = str(caught.value).splitlines()
    (took_s,) = re.findall(r"within ([0-9.]+) s", text)
    assert float(took_s) <= TIME_LIMITS * limit_s
    assert N <= len(sent) <= 20 * N
    assert not workload.errors
