"""What a run came to: counted as its records say."""

from __future__ import annotations

import numpy as np

from seqgc.master import run
from seqgc.ports import Close, Seen
from seqgc.rounds import Setting, SwitchingPolicy
from seqgc.schemes import parse_scheme
from seqgc.search import ReplayBackend
from seqgc.training import RunCounts


def test_a_late_answer_that_is_used_is_no_straggler_s() -> None:
    counts, stragglers, used = RunCounts(), set[tuple[int, int]](), set[tuple[int, int]]()

    def observe(seen: Seen) -> None:
        counts(seen)
        if isinstance(seen, Close):
            silent = np.flatnonzero(~seen.record.responded).tolist()
            stragglers.update((seen.record.round, worker) for worker in silent)
            used.update(seen.record.late)

    setting = Setting(scheme=parse_scheme("ra-sgc:s=0,q=0.5,r=1", n=6))
    times = 1 + np.random.default_rng(1).pareto(1.0, (21, 6))
    run(SwitchingPolicy(setting, num_jobs=20), ReplayBackend(times), observe=observe)
    assert used, "the test must have late answers"
    assert used <= stragglers
    assert counts.stragglers == len(stragglers - used)
