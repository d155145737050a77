"""A worker that never answers again: which schemes bear it, as README and docstrings say."""

from __future__ import annotations

import numpy as np
import pytest

from seqgc.errors import WorkerError
from seqgc.master import run
from seqgc.ports import Task
from seqgc.rounds import ClosingRule, RoundPolicy
from seqgc.schemes import parse_scheme
from tests.rounds.crew import Crew

N, ROUND = 12, 3


@pytest.mark.parametrize(
    ("spec", "is_borne"),
    [
        ("gc-rep:s=1", True),
        ("ra-sgc:s=1,q=0.6,r=1", True),
        ("ra-sgc:s=1,q=0.6,r=2,late=drop", True),
        ("ra-sgc:s=1,q=0.6,r=1,late=drop", False),
        ("m-sgc:B=1,W=2,lam=3,late=take", False),
    ],
)
def test_a_worker_that_is_gone_ends_a_run_or_does_not(spec: str, is_borne: bool) -> None:
    ended = 0
    for seed in range(8):

        def what(task: Task, seed: int = seed) -> float:
            if task.worker == seed and task.round >= ROUND:
                return -0.01
            rng = np.random.default_rng([seed, task.round, task.worker, task.attempt])
            return 1 + float(rng.exponential(0.5))

        policy = RoundPolicy(parse_scheme(spec, n=N).start(8), ClosingRule(timeout_s=60.0))
        try:
            run(policy, Crew(what))
        except WorkerError:
            ended += 1
    assert (ended == 0) == is_borne
