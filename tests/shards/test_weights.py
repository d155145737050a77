"""On the loop, with gradients: which parts are in the weights, whatever is killed and when."""

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
from seqgc.ports import Cancel, Seen
from seqgc.profiles import ByRound
from seqgc.rounds import ClosingRule
from seqgc.shards import AspDds, Resume
from seqgc.stores import MemoryStore
from seqgc.training import RunCounts, StaleWorkload, TorchCompute
from seqgc.virtual import Faults, RandomFaults, VirtualBackend
from tests.kit import SOAK
from tests.shards.applied import Applied, all_parts, named
from tests.training.reference import make_model


class BrokenOff(Exception):
    """The master is killed."""


@settings(max_examples=5_000 if SOAK else 100)
@given(
    defence=st.builds(
        AspDds,
        n=st.integers(1, 4),
        M=st.integers(1, 6),
        resume=st.sampled_from(["part", "shard"]),
    ),
    jobs=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    limit_s=st.sampled_from([math.inf, 3.0]),
    kills=st.lists(st.integers(0, 12), max_size=4),
)
def test_each_part_is_in_the_weights_once_or_with_its_shard_again_though_all_are_killed(
    defence: AspDds, jobs: int, seed: int, limit_s: float, kills: list[int]
) -> None:
    """Workers, with the shards that they have, and masters, with those of all workers."""
    n, rng, lost = defence.n, np.random.default_rng(seed), 0
    times = rng.uniform(0.1, 1.0, (102, n))  # more than any shard has parts: no part is always slow
    times[::2] += 4 * (rng.random((51, n)) < 0.2)  # too long, and never twice in a row
    workload = Applied(n, may_repeat=defence.most_again > 0)
    kept: list[object] = []

    def look(seen: Seen) -> None:
        nonlocal lost
        lost += isinstance(seen, Cancel)  # whether it failed or was silent

    for life, rests in enumerate([*kills, math.inf]):
        policy = defence.policy(ClosingRule(timeout_s=limit_s), num_jobs=jobs)
        held = None
        if kept:
            state, held, parts, begun, ended = kept
            policy.restore(json.loads(json.dumps(state)))
            assert isinstance(held, Held)
            workload.parts, workload.begun = list(parts), begun  # type: ignore[call-overload,assignment]
            workload.ended = list(ended)  # type: ignore[call-overload]
            lost += n
        if policy.done:
            break
        left = [rests]

        def rest(hold: Holding, policy=policy, left=left) -> None:
            kept[:] = [policy.snapshot(), hold(), list(workload.parts), workload.begun]
            kept.append(list(workload.ended))
            left[0] -= 1
            if left[0] < 0:
                raise BrokenOff

        faults = RandomFaults(seed=seed + life, fail=0.05, die=0.1)
        pace = ByRound(latencies_s=times, rates=[[0.0]])
        backend = VirtualBackend(n, pace, compute=named, faults=faults)
        try:
            run(policy, backend, workload, observe=look, rest=rest, held=held)
        except BrokenOff:
            continue
    assert sorted(set(workload.parts)) == all_parts(jobs, n)
    assert len(workload.parts) - jobs * n <= defence.most_again * lost
    assert workload.ended == list(range(jobs)) * (defence.most_again > 0)


def trained(
    defence: AspDds, *, seconds: list[float], faults: Faults | None
) -> tuple[list[float], int]:
    """Return a softmax's losses, by step, whose batches are dealt out, and what was repeated."""
    torch.manual_seed(0)
    sgd = partial(torch.optim.SGD, lr=0.1)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    model, store = make_model(module=module, optimizer=sgd, batch_size=24), MemoryStore()
    workload = StaleWorkload([model], scheme=defence, store=store)
    compute = TorchCompute([model.objective], store=store)
    pace = ByRound(latencies_s=[seconds], rates=[[0.0]])
    backend = VirtualBackend(defence.n, pace, compute=compute, faults=faults)
    counts = RunCounts()
    run(defence.policy(ClosingRule(), num_jobs=40), backend, workload, observe=counts)
    workload.flush()
    losses = {entry.step: entry.loss for entry in workload.metrics}
    assert sorted(losses) == list(range(40))
    assert len(workload.metrics) == 40
    return [losses[step] for step in range(40)], counts.repeated


@pytest.mark.parametrize(("M", "resume"), [(1, "part"), (3, "part"), (3, "shard")])
def test_training_reaches_the_same_loss_though_workers_are_slow_and_killed(
    M: int, resume: Resume
) -> None:
    """A third of the tasks die, and one worker is slow. Parts that come again are more training."""
    alone, _ = trained(AspDds(n=1), seconds=[1.0], faults=None)
    dealt, repeated = trained(
        AspDds(n=4, M=M, resume=resume),
        seconds=[1.0, 1.1, 1.3, 9.0],
        faults=RandomFaults(seed=1, fail=0.2, die=0.1),
    )
    assert (repeated > 10) == (resume == "shard")
    assert np.mean(alone[-5:]) < 0.7 * np.mean(alone[:5])
    loss, due = np.mean(dealt[-5:]), np.mean(alone[-5:])
    assert loss == pytest.approx(due, rel=0.1) if resume == "part" else loss < due
