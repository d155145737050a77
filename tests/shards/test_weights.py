"""On the loop, with gradients: each part is in the weights once, whatever is killed and when."""

from __future__ import annotations

import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from seqgc.master import Held, Holding, run
from seqgc.profiles import ByRound
from seqgc.rounds import ClosingRule
from seqgc.shards import AspDds
from seqgc.stores import MemoryStore
from seqgc.training import StaleWorkload, TorchCompute
from seqgc.virtual import Faults, RandomFaults, VirtualBackend
from tests.kit import SOAK
from tests.shards.applied import Applied, all_parts, named
from tests.training.reference import make_model


class BrokenOff(Exception):
    """The master is killed."""


@settings(max_examples=5_000 if SOAK else 100)
@given(
    defence=st.builds(AspDds, n=st.integers(1, 4), M=st.integers(1, 6)),
    jobs=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    limit_s=st.sampled_from([math.inf, 3.0]),
    kills=st.lists(st.integers(0, 12), max_size=4),
)
def test_each_part_is_in_the_weights_once_though_workers_and_masters_are_killed(
    defence: AspDds, jobs: int, seed: int, limit_s: float, kills: list[int]
) -> None:
    n, rng = defence.n, np.random.default_rng(seed)
    times = rng.uniform(0.1, 1.0, (8, n))
    times[::2] += 4 * (rng.random((4, n)) < 0.2)  # too long, and never twice in a row
    workload = Applied(n)
    kept: list[object] = []
    for life, rests in enumerate([*kills, math.inf]):
        policy = defence.policy(ClosingRule(timeout_s=limit_s), num_jobs=jobs)
        held = None
        if kept:
            state, held, parts, begun = kept
            policy.restore(json.loads(json.dumps(state)))
            assert isinstance(held, Held)
            workload.parts, workload.begun = list(parts), begun  # type: ignore[call-overload,assignment]
        if policy.done:
            break
        left = [rests]

        def rest(hold: Holding, policy=policy, left=left) -> None:
            kept[:] = [policy.snapshot(), hold(), list(workload.parts), workload.begun]
            left[0] -= 1
            if left[0] < 0:
                raise BrokenOff

        faults = RandomFaults(seed=seed + life, fail=0.1, die=0.1)
        pace = ByRound(latencies_s=times, rates=[[0.0]])
        backend = VirtualBackend(n, pace, compute=named, faults=faults)
        try:
            run(policy, backend, workload, rest=rest, held=held)
        except BrokenOff:
            continue
    assert sorted(workload.parts) == all_parts(jobs, n)


def trained(n: int, *, M: int, seconds: list[float], faults: Faults | None) -> list[float]:
    """Return the losses of a softmax whose batches are dealt out in shards, by step."""
    torch.manual_seed(0)
    sgd = partial(torch.optim.SGD, lr=0.1)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    model, store = make_model(module=module, optimizer=sgd, batch_size=24), MemoryStore()
    defence = AspDds(n=n, M=M)
    workload = StaleWorkload([model], scheme=defence, store=store)
    compute = TorchCompute([model.objective], store=store)
    pace = ByRound(latencies_s=[seconds], rates=[[0.0]])
    backend = VirtualBackend(n, pace, compute=compute, faults=faults)
    run(defence.policy(ClosingRule(), num_jobs=40), backend, workload)
    workload.flush()
    return [entry.loss for entry in workload.metrics]


@pytest.mark.parametrize("M", [1, 3])
def test_training_reaches_the_same_loss_though_workers_are_slow_and_killed(M: int) -> None:
    """Parts of which none is lost or taken twice: a third of the tasks die, one worker is slow."""
    alone = trained(1, M=1, seconds=[1.0], faults=None)
    dealt = trained(
        4, M=M, seconds=[1.0, 1.1, 1.3, 9.0], faults=RandomFaults(seed=1, fail=0.2, die=0.1)
    )
    assert len(dealt) == len(alone) == 40
    assert np.mean(alone[-5:]) < 0.7 * np.mean(alone[:5])
    assert np.mean(dealt[-5:]) == pytest.approx(np.mean(alone[-5:]), rel=0.1)
