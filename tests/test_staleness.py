"""Weights of updates by their staleness; `check_defence` tests the bound on it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from seqgc.master import run
from seqgc.ports import Decoding, FloatArray, MiniTask, WeightedPoints
from seqgc.profiles import ByRound
from seqgc.rounds import ClosingRule, PolicyDefence, StalenessAware
from seqgc.schemes import parse_scheme
from seqgc.virtual import VirtualBackend

N, JOBS = 4, 6


@dataclass
class Sets:
    """A workload whose weights are the parts that have been applied."""

    applied: dict[tuple[int, int], float] = field(default_factory=dict)  # and their weights
    read: list[tuple[int, int, frozenset[tuple[int, int]]]] = field(default_factory=list)

    def needs(self, job: int, finished: int) -> bool:  # noqa: ARG002
        return True

    def begin(self, job: int) -> None: ...

    def result_form(self, job: int) -> None: ...

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        (part,) = map(int, mini_task.chunks)
        self.read.append((mini_task.job, part, frozenset(self.applied)))
        return ()

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        assert decoding.part is not None
        key = decoding.job, decoding.part.index
        assert key not in self.applied, "an update is applied once"
        self.applied[key] = float(gradient[0])


def trained(spec: str, times: FloatArray, *, aware: bool = False) -> Sets:
    defence, workload = parse_scheme(spec, n=N), Sets()
    assert isinstance(defence, PolicyDefence)
    policy = defence.policy(ClosingRule(timeout_s=500.0), num_jobs=JOBS)
    pace = ByRound(latencies_s=times, rates=[[0.0] * N])
    backend = VirtualBackend(N, pace, compute=lambda _: np.ones(1))
    run(StalenessAware(policy, n=N) if aware else policy, backend, workload)
    assert workload.applied.keys() == {(job, part) for job in range(JOBS) for part in range(N)}
    return workload


def test_updates_weigh_the_less_the_more_has_come_since_their_task_left() -> None:
    times = np.ones((JOBS, N))
    times[0, 0] = 4.5  # meanwhile the others do twelve parts: three clocks
    aware = trained("asp", times, aware=True)
    plain = trained("asp", times)
    assert set(plain.applied.values()) == {1.0}
    assert aware.applied == plain.applied | {(0, 0): 1 / 4}
    assert [read[:2] for read in aware.read] == [read[:2] for read in plain.read]


def test_where_all_wait_for_all_every_update_weighs_the_same() -> None:
    times = 1 + np.random.default_rng(0).pareto(1.0, size=(JOBS, N))
    assert set(trained("bsp", times, aware=True).applied.values()) == {1.0}
