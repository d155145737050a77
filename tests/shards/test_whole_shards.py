"""Shards that were lost are done again as a whole: each part at least once, as the paper has it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqgc.comparison import PacedWorkers, time_run
from seqgc.errors import WorkerError
from seqgc.master import run
from seqgc.ports import Cancel, Close, Seen, Task, Update
from seqgc.profiles import ByRound
from seqgc.profiles.slowdowns import SleepWindows
from seqgc.rounds import ClosingRule, Setting
from seqgc.schemes import parse_scheme
from seqgc.shards import Resume, ShardPolicy
from seqgc.virtual import Fault, RandomFaults, VirtualBackend
from tests.shards.applied import all_parts
from tests.shards.test_policy import Broken, ByHand, arrival, failure


class Account:
    """Which parts were applied, and how often; which jobs are over; how many tasks were lost."""

    def __init__(self) -> None:
        self.applied: Counter[tuple[int, int]] = Counter()
        self.over: list[int] = []
        self.closed: list[int] = []
        self.lost = 0

    @property
    def again(self) -> int:
        return self.applied.total() - len(self.applied)

    def __call__(self, seen: Seen) -> None:
        match seen:
            case Update():
                decoding = seen.decoding()
                assert decoding.part is not None
                part = decoding.job, decoding.part.index
                assert decoding.part.again == (part in self.applied)
                assert decoding.share == (0 if decoding.part.again else 1 / decoding.part.of)
                assert decoding.job not in self.over
                self.applied[part] += 1
                self.over += decoding.ends or ()
            case Close():
                self.closed += seen.jobs
            case Cancel():  # whether it failed or was silent
                self.lost += 1


def policy_of(n: int, jobs: int, M: int, limit_s: float = math.inf) -> ShardPolicy:
    return ShardPolicy(n, ClosingRule(timeout_s=limit_s), num_jobs=jobs, M=M, resume="shard")


CASES = {
    "n": st.integers(1, 4),
    "jobs": st.integers(1, 6),
    "M": st.integers(1, 5),
    "seed": st.integers(0, 10**6),
}


@given(**CASES, limit_s=st.sampled_from([math.inf, 1.5]))
def test_each_part_is_applied_at_least_once_and_fewer_than_a_shard_again_for_each_loss(
    n: int, jobs: int, M: int, seed: int, limit_s: float
) -> None:
    """And with M = 1 none: at most once. TODO, DOING and DONE are the epoch at all times."""
    rng, account = np.random.default_rng(seed), Account()
    times = rng.uniform(0.1, 1.0, (102, n))  # more than any shard has parts: no part is always slow
    times[::2] += 4 * (rng.random((51, n)) < 0.1)  # too long, and never twice in a row
    backend = VirtualBackend(
        n,
        ByRound(latencies_s=times, rates=[[0.0]]),
        faults=RandomFaults(seed=seed, fail=0.05, die=0.08),
    )
    policy = policy_of(n, jobs, M, limit_s)

    def look(_: object) -> None:
        for service in policy._stretches._open.values():
            states = [*service.todo, *service.doing.values(), *service.finished]
            assert sorted(states) == list(range(service.num_shards))

    run(policy, backend, observe=account, rest=look)
    assert policy._stretches.left() == Counter()  # DONE = K
    assert sorted(account.applied) == all_parts(jobs, n)
    assert account.again <= (M - 1) * account.lost
    assert account.closed == list(range(jobs))
    assert account.over == (account.closed if M > 1 else [])


@given(**CASES)
def test_a_run_that_is_broken_off_has_the_shards_under_way_done_again(
    n: int, jobs: int, M: int, seed: int
) -> None:
    rng, account, lives = np.random.default_rng(seed), Account(), 0
    kept = policy_of(n, jobs, M).snapshot()
    while len(account.closed) < jobs:
        policy = policy_of(n, jobs, M)
        policy.restore(json.loads(json.dumps(kept)))
        lives += 1
        left = iter(range(int(rng.integers(2 * n * M, 4 * n * M + 9))))

        def rest(_: object, policy: ShardPolicy = policy, left: Iterator[int] = left) -> None:
            nonlocal kept
            kept = policy.snapshot()
            if next(left, None) is None and not policy.done:
                raise Broken

        times = ByRound(latencies_s=rng.uniform(0.1, 1, (5, n)), rates=[[0]])
        backend = VirtualBackend(n, times, faults=RandomFaults(seed=seed + lives, fail=0.05))
        with suppress(Broken):
            run(policy, backend, observe=account, rest=rest)
        assert lives < 200
    assert sorted(account.applied) == all_parts(jobs, n)
    assert account.again <= (M - 1) * (account.lost + n * lives)
    assert account.closed == list(range(jobs))


def test_a_lost_shard_is_begun_anew_by_somebody_else() -> None:
    """Two workers, shards of three parts: (0,0) (0,1) (1,0), then (1,1) (2,0) (2,1), and on."""
    hand = ByHand(policy_of(2, 6, 3))
    assert hand.tell(arrival(0, 0, 1.0)) == [(0, (0, 1))]
    assert hand.tell(failure(1, 0, 2.0)) == [(0, (3, 0))]
    assert hand.tell(failure(0, 1, 2.5)) == [(1, (0, 0))]
    for round, then in enumerate([(0, 1), (1, 0), (1, 1)], 1):
        assert not hand.story.closed
        assert hand.tell(arrival(round, 1, 3.0)) == [(1, then)]
    assert hand.story.applied == [(0, 0), (0, 0), (0, 1), (1, 0)]
    assert [close.jobs for close in hand.story.closed] == [(0,)]


@pytest.mark.parametrize("resume", ["part", "shard"])
def test_a_shard_that_is_never_done_ends_the_run_though_each_of_its_parts_may_be(
    resume: Resume,
) -> None:
    """Of eleven tasks one comes: with M = 6, a shard is lost 120 times and hardly begun."""

    def all_but_one(task: Task) -> Fault | None:
        return Fault() if task.round % 11 != 9 else None

    policy = ShardPolicy(1, ClosingRule(), num_jobs=6, M=6, resume=resume)
    backend = VirtualBackend(1, ByRound(latencies_s=[[1.0]], rates=[[0]]), faults=all_but_one)
    if resume == "part":
        run(policy, backend)
        assert policy.done
        return
    with pytest.raises(WorkerError, match="a shard is lost again and again: take a smaller M; w"):
        run(policy, backend)
    assert policy.tasks == (120 // 10 * 11,)


@given(**CASES)
def test_where_nobody_fails_nothing_is_sent_otherwise(n: int, jobs: int, M: int, seed: int) -> None:
    times = np.random.default_rng(seed).uniform(0.1, 1.0, (5, n))
    ends = []
    for resume in ("part", "shard"):
        policy = ShardPolicy(n, ClosingRule(), num_jobs=jobs, M=M, resume=resume)
        backend = VirtualBackend(n, ByRound(latencies_s=times, rates=[[0]]))
        run(policy, backend)
        ends.append((policy.tasks, backend.now))
    assert ends[0] == ends[1]


def test_a_comparison_counts_what_is_repeated_as_wasted() -> None:
    """Worker 0 is replaced amidst its third part, and the two before are done again."""
    slow, wasted = SleepWindows(n=4, intensity=0.75, probability=0.0), []
    for resume in ("part", "shard"):
        defence = parse_scheme(f"antdt-nd-asp:M=7,resume={resume},per=10,act=5", n=4)
        workers = PacedWorkers(pace=slow.pace(), kind="resident")
        course = time_run(Setting(scheme=defence), workers, clocks=20)
        wasted.append((course.load - 1) * 20 * 4)
    assert wasted == pytest.approx([1, 3])
