"""Workers take shards as they come: each part is applied exactly once, whatever fails."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqgc import ports
from seqgc.errors import WorkerError
from seqgc.master import run
from seqgc.ports import Arrival, Failure, Seen
from seqgc.profiles import ByRound, ByWork
from seqgc.rounds import ClosingRule
from seqgc.shards import ShardPolicy
from seqgc.stragglers import busy_seconds
from seqgc.virtual import Fault, Faults, RandomFaults, VirtualBackend
from tests.shards.applied import all_parts


@dataclass(eq=False)
class Story:
    """What a run did: parts applied, tasks and their parts, clocks closed, what was dropped."""

    applied: list[tuple[int, int]] = field(default_factory=list)
    sent: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    closed: list[ports.Close] = field(default_factory=list)
    drops: list[str] = field(default_factory=list)
    others: list[object] = field(default_factory=list)

    def __call__(self, seen: Seen) -> None:
        match seen:
            case ports.Update():
                decoding = seen.decoding()
                assert decoding.part is not None
                (term,) = decoding.terms
                part = decoding.job, decoding.part.index
                assert self.sent[term.worker, term.round] == part
                self.applied.append(part)
            case ports.Dispatch():
                assert seen.attempt == 0
                for worker, (task,) in seen.assignment.items():
                    assert (worker, seen.round) not in self.sent
                    assert task.chunks.tolist() == [task.cover]
                    assert task.cover is not None
                    self.sent[worker, seen.round] = task.job, task.cover
            case ports.Close():
                self.closed.append(seen)
            case ports.Drop():
                self.drops.append(seen.reason)
            case ports.Restart():
                self.others.append(seen)

    def tasks(self, worker: int) -> list[tuple[int, int]]:
        return [part for (who, _), part in self.sent.items() if who == worker]


def pace(*seconds: float) -> ByRound:
    return ByRound(latencies_s=[seconds], rates=[[0.0]])


def arrival(round: int, worker: int, at: float) -> Arrival:
    return Arrival(round=round, worker=worker, attempt=0, at=at, results={})


def failure(round: int, worker: int, at: float) -> Failure:
    return Failure(round=round, worker=worker, attempt=0, at=at, reason="it was killed")


class ByHand:
    """A policy whose events are told one by one; dispatched tasks leave at once."""

    def __init__(self, policy: ShardPolicy) -> None:
        self.policy, self.story = policy, Story()
        self.do(policy.start(), 0.0)

    def tell(self, event: ports.Event) -> list[tuple[int, tuple[int, int]]]:
        """Return who is sent which part then."""
        before = len(self.story.sent)
        self.do(self.policy.on(event), event.at)
        return [(who, part) for (who, _), part in list(self.story.sent.items())[before:]]

    def do(self, actions: Sequence[ports.Action], at: float) -> None:
        for action in actions:
            self.story(action)
            if isinstance(action, ports.Dispatch):
                workers = tuple(action.assignment)
                left_at = (at,) * len(workers)
                left = ports.Dispatched(
                    round=action.round, attempt=action.attempt, workers=workers, left_at=left_at
                )
                assert self.policy.on(left) == ()


# ---- each part once -----------------------------------------------------------------------------


@given(
    n=st.integers(1, 5),
    jobs=st.integers(0, 6),
    M=st.integers(1, 7),
    seed=st.integers(0, 10**6),
    workers=st.sampled_from(["resident", "function"]),
    limit_s=st.sampled_from([math.inf, 1.5]),
)
def test_each_part_is_applied_once_whoever_is_killed_and_clocks_close_in_order(
    n: int, jobs: int, M: int, seed: int, workers: str, limit_s: float
) -> None:
    """A third of all tasks fails, some only by silence; so do workers, with all that they owe."""
    rng = np.random.default_rng(seed)
    times = np.where(rng.random((7, n)) < 0.1, 4.0, rng.uniform(0.1, 1.0, (7, n)))
    backend = VirtualBackend(
        n,
        ByRound(latencies_s=times, rates=[[0.0]]),
        workers=workers,  # type: ignore[arg-type]
        faults=RandomFaults(seed=seed, fail=0.2, die=0.1),
        restart_s=0.25,
    )
    policy, story = ShardPolicy(n, ClosingRule(timeout_s=limit_s), num_jobs=jobs, M=M), Story()
    run(policy, backend, observe=story)
    assert sorted(story.applied) == all_parts(jobs, n)
    assert [close.record.round for close in story.closed] == list(range(jobs))
    assert [close.jobs for close in story.closed] == [(job,) for job in range(jobs)]
    assert policy.rounds == policy.num_jobs == jobs
    for worker in range(n):  # its how-many-th task
        rounds = [round for who, round in story.sent if who == worker]
        assert rounds == list(range(policy.tasks[worker]))


class Broken(Exception):
    """A run is broken off."""


@given(seed=st.integers(0, 10**6), M=st.integers(1, 5), n=st.integers(1, 4), jobs=st.integers(1, 6))
def test_a_run_that_is_broken_off_and_resumed_applies_each_part_once(
    seed: int, M: int, n: int, jobs: int
) -> None:
    rng, story, lives = np.random.default_rng(seed), Story(), 0
    kept = ShardPolicy(n, ClosingRule(), num_jobs=jobs, M=M).snapshot()
    while sum(map(len, (close.jobs for close in story.closed))) < jobs:
        policy = ShardPolicy(n, ClosingRule(), num_jobs=jobs, M=M)
        policy.restore(json.loads(json.dumps(kept)))
        lives += 1
        left = iter(range(int(rng.integers(2, 9))))

        def rest(_: object, policy: ShardPolicy = policy, left: Iterator[int] = left) -> None:
            nonlocal kept
            kept = policy.snapshot()
            if next(left, None) is None and not policy.done:
                raise Broken

        times = ByRound(latencies_s=rng.uniform(0.1, 1, (5, n)), rates=[[0]])
        backend = VirtualBackend(n, times, faults=RandomFaults(seed=seed + lives, fail=0.1))
        with suppress(Broken):
            run(policy, backend, observe=story, rest=rest)
        assert lives < 100
    assert sorted(story.applied) == all_parts(jobs, n)
    assert [close.jobs for close in story.closed] == [(job,) for job in range(jobs)]


def test_a_lost_shard_is_resumed_at_its_first_part_by_somebody_else() -> None:
    """Two workers, shards of three parts: (0,0) (0,1) (1,0), then (1,1) (2,0) (2,1), and on."""
    hand = ByHand(ShardPolicy(2, ClosingRule(), num_jobs=6, M=3))
    assert list(hand.story.sent.values()) == [(0, 0), (1, 1)]
    assert hand.tell(arrival(0, 0, 1.0)) == [(0, (0, 1))]
    assert hand.tell(failure(1, 0, 2.0)) == [(0, (3, 0))]
    assert hand.tell(failure(0, 1, 2.5)) == [(1, (0, 1))]
    assert hand.tell(failure(2, 0, 3.0)) == []  # in a row: it waits
    assert hand.tell(arrival(1, 1, 3.0)) == [(1, (1, 0))]
    assert hand.tell(arrival(2, 1, 3.0)) == [(1, (1, 1))]  # its own loss: the other one fails
    assert hand.tell(ports.Tick(at=hand.policy.wake_at)) == [(0, (4, 1))]
    assert hand.story.applied == [(0, 0), (0, 1), (1, 0)]


def test_if_all_fail_who_lost_a_shard_takes_it_again() -> None:
    hand = ByHand(ShardPolicy(2, ClosingRule(), num_jobs=1))
    assert hand.tell(failure(0, 1, 1.0)) == []  # the other one may do it
    assert hand.tell(failure(0, 0, 2.0)) == [(1, (0, 1)), (0, (0, 0))]


def test_a_stretch_is_left_in_the_order_of_its_shards_and_then_of_its_losses() -> None:
    hand = ByHand(ShardPolicy(4, ClosingRule(), num_jobs=3))
    for worker in (1, 2, 3):  # worker 0 is slow
        hand.tell(arrival(0, worker, 1.0))
    assert hand.story.tasks(1) == [(0, 1), (1, 0)]
    assert hand.tell(failure(1, 1, 2.0)) == [(1, (1, 3))]
    assert hand.tell(arrival(1, 2, 3.0)) == [(2, (1, 0))]  # lost: after (1, 3), before (2, 0)
    assert hand.tell(arrival(1, 3, 3.5)) == [(3, (2, 0))]


def test_no_worker_waits_for_another() -> None:
    """One is a hundred times slower: it has one part, and the others do all else meanwhile."""
    policy, story = ShardPolicy(3, ClosingRule(), num_jobs=8), Story()
    backend = VirtualBackend(3, pace(1.0, 1.0, 100.0))
    run(policy, backend, observe=story)
    assert story.tasks(2) == [(0, 2)]
    assert backend.now == 100.0
    assert sorted(policy.tasks) == [1, 11, 12]
    assert [close.record.duration_s for close in story.closed] == [100.0] + [0.0] * 7
    assert all(close.record.reason == "dealt" for close in story.closed)
    assert story.closed[0].record.responded.tolist() == [True, True, True]
    assert story.closed[1].record.responded.tolist() == [True, True, False]
    assert [close.record.missed for close in story.closed] == [0] * 8


@given(n=st.integers(1, 4), jobs=st.integers(1, 8), M=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_a_run_ends_at_most_a_shard_after_workers_who_are_never_idle(
    n: int, jobs: int, M: int, seed: int
) -> None:
    """Source: docs/mathematics.md, section 11."""
    rates = np.random.default_rng(seed).uniform(0.5, 8.0, (5, n))
    speeds = ByWork(rates=rates, width=0.4)
    backend = VirtualBackend(n, speeds)
    run(ShardPolicy(n, ClosingRule(), num_jobs=jobs, M=M), backend)
    busy_s = busy_seconds(speeds, jobs)
    assert busy_s * (1 - 1e-9) <= backend.now <= busy_s + M / n * rates.max() + 1e-9


# ---- failures and silence -----------------------------------------------------------------------


def failing(*workers: int) -> Faults:
    return lambda task: Fault() if task.worker in workers else None


def test_a_worker_that_always_fails_holds_nobody_up() -> None:
    policy, story = ShardPolicy(3, ClosingRule(), num_jobs=40), Story()
    run(policy, VirtualBackend(3, pace(1.0, 1.0, 0.1), faults=failing(2)), observe=story)
    assert sorted(story.applied) == all_parts(40, 3)
    assert policy.tasks[2] > 10
    assert policy.tasks[0] + policy.tasks[1] == 120
    assert len(set(story.tasks(2))) == policy.tasks[2]  # never the same again


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("M", [1, 3])
def test_if_most_workers_die_at_once_the_others_do_all(M: int, share: float) -> None:
    """Of 64 workers 56 fail at all that they are asked for from one instant on."""
    policy, story = ShardPolicy(64, ClosingRule(), num_jobs=8, M=M), Story()

    def dead(task: ports.Task) -> Fault | None:
        return Fault(share=share) if task.worker >= 8 and backend.now >= 25 else None

    backend = VirtualBackend(64, pace(*[10.0] * 64), faults=dead)
    run(policy, backend, observe=story)
    assert sorted(story.applied) == all_parts(8, 64)
    assert len(story.closed) == 8


@pytest.mark.parametrize("n", [2, 64])
def test_a_part_that_fails_wherever_it_is_tried_ends_the_run_by_its_name(n: int) -> None:
    policy, story = ShardPolicy(n, ClosingRule(), num_jobs=40), Story()

    def poisoned(task: ports.Task) -> Fault | None:
        return Fault() if story.sent[task.worker, task.round] == (1, 0) else None

    backend = VirtualBackend(n, pace(*[1.0] * n), faults=poisoned)
    with pytest.raises(WorkerError, match="part 0 of job 1 fails again and again; worker"):
        run(policy, backend, observe=story)
    assert list(story.sent.values()).count((1, 0)) == 20


# ---- the end, and what is refused ---------------------------------------------------------------


SOUND = ShardPolicy(2, ClosingRule(), num_jobs=3).snapshot()


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (None, TypeError),
        ({}, KeyError),
        ({**SOUND, "tasks": [0]}, ValueError),
        ({**SOUND, "givers": [[0, [2]]]}, ValueError),
        ({**SOUND, "shards": {}}, KeyError),
        ({**SOUND, "shards": {"begun": 9, "latest": 0, "open": []}}, ValueError),
        ({**SOUND, "shards": {"begun": 1, "latest": 3, "open": []}}, ValueError),
        ({**SOUND, "shards": {"begun": 1, "latest": 0, "open": [[2, {}]]}}, ValueError),
        ({**SOUND, "shards": {"begun": 1, "latest": 0, "open": [[0, {}]]}}, KeyError),
    ],
)
def test_a_state_of_something_else_is_refused(state: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        ShardPolicy(2, ClosingRule(), num_jobs=3).restore(state)
