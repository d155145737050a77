"""On processes of this machine, of which three are killed at their work."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence

import pytest

from seqgc.backends import LocalBackend
from seqgc.master import run
from seqgc.ports import Dispatched, Failure, FloatArray, Restart, Seen, Update, WeightedPoints
from seqgc.rounds import ClosingRule
from seqgc.shards import AspDds, Resume
from tests.kit import at_some_pace
from tests.policies.decisions import decided, decided_again
from tests.shards.applied import Applied, all_parts, named

TASK_S = 0.02


def slowly(parts: Sequence[WeightedPoints]) -> FloatArray:
    time.sleep(TASK_S)
    return named(parts)


def new_worker():
    return slowly


class Killer:
    """Kills the process of whoever has just been sent a task, at three tasks of a run."""

    def __init__(self, backend: LocalBackend, at: Sequence[int]) -> None:
        self._backend, self._at = backend, at
        self.sent, self.updates, self.failures, self.killed = 0, 0, 0, set[int]()
        self.seen: list[Seen] = []

    def __call__(self, seen: Seen) -> None:
        self.seen.append(seen)
        match seen:
            case Dispatched(workers=(worker,)):
                self.sent += 1
                if self.sent in self._at:
                    pid = self._backend.pids[worker]
                    self.killed.add(pid)
                    os.kill(pid, signal.SIGKILL)
            case Failure():
                self.failures += 1
            case Update():
                self.updates += 1


@pytest.mark.parametrize("resume", ["part", "shard"])
def test_all_shards_are_done_after_three_kills_once_or_as_a_whole_again(resume: Resume) -> None:
    n, jobs = 3, 12
    defence = AspDds(n=n, M=4, resume=resume)
    policy = defence.policy(ClosingRule(), num_jobs=jobs)
    workload = Applied(n, may_repeat=resume == "shard")
    with LocalBackend(n, new_worker) as backend:
        killer = Killer(backend, at=(4, 13, 25))
        run(policy, backend, workload, observe=killer)
        assert killer.killed.isdisjoint(backend.pids)
    assert len(killer.killed) == 3
    assert 1 <= killer.failures <= 3  # its answer may have been on its way
    assert sorted(set(workload.parts)) == all_parts(jobs, n)
    assert policy.rounds == jobs
    assert killer.updates == len(workload.parts)
    assert killer.updates - n * jobs <= defence.most_again * killer.failures
    another = defence.policy(ClosingRule(), num_jobs=jobs)
    assert decided_again(another, killer.seen) == decided(killer.seen)


def test_a_process_that_hangs_is_replaced_and_its_shard_done_by_others() -> None:
    def check(limit_s: float) -> None:
        n, jobs = 3, 4
        stopped, restarts = [], []
        policy = AspDds(n=n).policy(ClosingRule(timeout_s=limit_s), num_jobs=jobs)
        workload = Applied(n)
        with LocalBackend(n, new_worker) as backend:

            def stop_one(seen: Seen) -> None:
                if isinstance(seen, Update) and not stopped:
                    stopped.append(backend.pids[2])
                    os.kill(backend.pids[2], signal.SIGSTOP)
                elif isinstance(seen, Restart):
                    restarts.append(seen.worker)

            run(policy, backend, workload, observe=stop_one)
            assert stopped[0] not in backend.pids
        assert restarts == [2]
        assert sorted(workload.parts) == all_parts(jobs, n)

    at_some_pace(check, 0.3, 2.0)
