"""A controller on real processes: one that sleeps before every task is replaced by a fresh one."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from seqgc.backends import LocalBackend
from seqgc.backends.dask_ import DaskBackend
from seqgc.control import AntDTND, AntDTNDAsp
from seqgc.master import run
from seqgc.ports import (
    Action,
    Arrival,
    Close,
    Dispatch,
    Dispatched,
    Failure,
    FloatArray,
    Restart,
    Seen,
    Tick,
    WeightedPoints,
)
from seqgc.rounds import ClosingRule
from seqgc.worker import Compute
from tests.backends.dask import warm as warm
from tests.control.sums import Sums, summed
from tests.kit import at_some_pace
from tests.policies.decisions import decided as all_decided
from tests.policies.decisions import decided_again
from tests.shards.applied import Applied, all_parts, named

POINTS = 64  # in a batch, of 4 workers


Opened = Callable[[int, Callable[[], Compute]], DaskBackend | LocalBackend]


def own_cluster(n: int, compute: Callable[[], Compute]) -> DaskBackend:
    """Workers on dask, each with a process of its own."""
    return DaskBackend(n, compute, processes=n)


def processes(backend: DaskBackend | LocalBackend) -> tuple[int, ...]:
    """The processes of all workers, of dask's in any order."""
    if isinstance(backend, LocalBackend):
        return backend.pids
    return tuple(int(str(each.pid)) for each in multiprocessing.active_children())


@dataclass(frozen=True, kw_only=True)
class Sleepy:
    """A worker of so many seconds a share; it takes 4 times as long if the folder names it."""

    folder: Path
    share_s: float

    deals: bool = False  # a share is one part of a batch, by its number

    def __call__(self) -> Callable[[tuple[WeightedPoints, ...]], FloatArray]:
        return self._part if self.deals else self._compute

    def _part(self, parts: tuple[WeightedPoints, ...]) -> FloatArray:
        time.sleep(self.share_s * (4 if (self.folder / str(os.getpid())).exists() else 1))
        return named(parts)

    def _compute(self, parts: tuple[WeightedPoints, ...]) -> FloatArray:
        if (self.folder / str(os.getpid())).exists():
            time.sleep(3 * self.share_s)
        time.sleep(self.share_s * len(parts[0].points) / (POINTS / 4))
        return summed(parts)


def decided(actions: Iterable[object]) -> list[object]:
    """What a policy has asked of workers: which chunks of which jobs, and whom to replace."""
    return [
        action.worker
        if isinstance(action, Restart)
        else [
            (worker, task.job, task.slot, task.chunks.tolist())
            for worker, tasks in action.assignment.items()
            for task in tasks
        ]
        for action in actions
        if isinstance(action, Restart | Dispatch)
    ]


@pytest.mark.parametrize("opened", [LocalBackend, own_cluster])
def test_a_process_that_is_four_times_as_slow_as_the_others_is_replaced(
    opened: Opened, tmp_path: Path
) -> None:
    def check(share_s: float) -> None:
        defence = AntDTND(n=4, trans=10 * share_s, per=30 * share_s, act=10 * share_s)
        policy = defence.policy(ClosingRule(), num_jobs=40, batches=[POINTS])
        workload = Sums(policy, batch=POINTS)
        restarts: list[int] = []
        seconds: list[float] = []
        seen_all: list[Seen] = []

        def watch(seen: Seen) -> None:
            seen_all.append(seen)
            if isinstance(seen, Restart):
                restarts.append(seen.worker)
            elif isinstance(seen, Close):
                seconds.append(seen.record.duration_s)

        with opened(4, Sleepy(folder=tmp_path, share_s=share_s)) as backend:
            slow = processes(backend)[1]
            (tmp_path / str(slow)).touch()
            run(policy, backend, workload, observe=watch)
            assert slow not in processes(backend)
        assert workload.done == list(range(40)), "each gradient is exact, and made once"
        assert len(restarts) == 1
        assert restarts == [1] or opened is own_cluster
        assert median(seconds[-5:]) < 0.6 * median(seconds[:3])
        again = defence.policy(ClosingRule(), num_jobs=40, batches=[POINTS])
        actions: list[Action] = list(again.start())
        for event in seen_all:
            if isinstance(event, Dispatched | Arrival | Failure | Tick):
                actions += again.on(event)
        assert again.done
        assert decided(actions) == decided(seen_all), "told the same, it decides the same"

    paces = (0.06, 0.2) if opened is own_cluster else (0.02, 0.06)  # dask takes longer over each
    at_some_pace(check, *paces)


def test_a_slow_process_that_is_dealt_parts_is_replaced_and_each_part_is_applied_once(
    tmp_path: Path,
) -> None:
    n, jobs = 4, 60

    def check(share_s: float) -> None:
        defence = AntDTNDAsp(n=n, M=2, per=20 * share_s, act=5 * share_s)
        policy, workload = defence.policy(ClosingRule(), num_jobs=jobs), Applied(n)
        seen_all, restarts = list[Seen](), list[int]()

        def watch(seen: Seen) -> None:
            seen_all.append(seen)
            if isinstance(seen, Restart):
                restarts.append(seen.worker)

        with LocalBackend(n, Sleepy(folder=tmp_path, share_s=share_s, deals=True)) as backend:
            slow = backend.pids[1]
            (tmp_path / str(slow)).touch()
            run(policy, backend, workload, observe=watch)
            assert slow not in backend.pids
        assert sorted(workload.parts) == all_parts(jobs, n)
        assert policy.rounds == jobs
        assert restarts == [1]
        another = defence.policy(ClosingRule(), num_jobs=jobs)
        assert decided_again(another, seen_all) == all_decided(seen_all), (
            "told the same, it decides so"
        )

    at_some_pace(check, 0.02, 0.06)
