"""A policy that stops after each job is the policy of a run, job by job."""

from __future__ import annotations

import numpy as np

from seqgc import ports
from seqgc.ports import Action, Arrival, Dispatch, Dispatched, Restart, Tick
from seqgc.rounds import ClosingRule, PausedPolicy, Setting, policy_of
from seqgc.schemes import parse_scheme


def paused(spec: str, rule: ClosingRule | None = None) -> PausedPolicy:
    setting = Setting(scheme=parse_scheme(spec, n=2), rule=rule or ClosingRule())
    return PausedPolicy(policy_of(setting, num_jobs=1000), first_job=0)


def left(actions: list[Action], at: float) -> Dispatched:
    (dispatch,) = [action for action in actions if isinstance(action, Dispatch)]
    workers = tuple(dispatch.assignment)
    return Dispatched(
        round=dispatch.round, attempt=0, workers=workers, left_at=(at,) * len(workers)
    )


def answer(round: int, worker: int, at: float) -> Arrival:
    return Arrival(round=round, worker=worker, attempt=0, at=at, results={0: np.zeros(1)})


def test_the_next_job_is_sent_only_when_it_is_allowed() -> None:
    policy = paused("uncoded")
    policy.allow(0)
    policy.on(left(list(policy.start()), at=0.0))
    assert not policy.done
    policy.on(answer(0, 0, 1.0))
    policy.on(answer(0, 1, 1.0))
    actions = policy.on(Tick(at=policy.wake_at))
    assert [type(action) for action in actions] == [ports.Close, ports.Finish]
    assert policy.done
    policy.allow(1)
    assert not policy.done
    assert left(list(policy.start()), at=50.0).round == 1


def test_a_worker_that_is_silent_for_a_time_limit_over_several_jobs_is_replaced() -> None:
    policy, now = paused("gc-rep:s=1", ClosingRule(timeout_s=3.0)), 0.0
    restarted = list[tuple[int, int]]()
    for job in range(7):
        policy.allow(job)
        policy.on(left(list(policy.start()), at=now))
        policy.on(answer(job, 0, now + 1.0))
        for action in policy.on(Tick(at=policy.wake_at)):
            if isinstance(action, Restart):
                restarted.append((job, action.worker))
        assert policy.done
        now += 100.0  # the caller's time between two jobs does not count
    assert restarted == [(2, 1), (5, 1)]
