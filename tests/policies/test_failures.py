"""Tasks that fail: under every policy they are retried with growing waits, up to the time limit."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from seqgc.errors import WorkerError
from seqgc.rounds import PolicyDefence
from seqgc.schemes import registered
from tests.policies.crew import (
    NEED_ALL,
    SPECS,
    TIMEOUT_S,
    WITHOUT_ONE,
    Address,
    Crew,
    N,
    Run,
    Turn,
)
from tests.policies.decisions import decided, decided_again


def test_the_table_has_every_policy() -> None:
    names = {spec.partition(":")[0] for spec in SPECS}
    own = {n for n, entry in registered().items() if entry.kind.__module__.startswith("seqgc.")}
    assert own <= names
    assert any(issubclass(registered()[name].kind, PolicyDefence) for name in own)


def crashes(address: Address) -> Turn:
    """Three tasks in ten fail."""
    rng = Random(f"{address}")
    seconds = rng.random()
    return (seconds, "crashed") if rng.random() < 0.3 else 0.5 + seconds


@pytest.mark.parametrize("spec", SPECS)
def test_all_jobs_are_finished_though_three_tasks_in_ten_fail(spec: str) -> None:
    """Another policy that gets the same events decides the same."""
    run = Run(spec, jobs=12)
    run.play(Crew(run.workload, crashes))
    run.workload.check(jobs=12)
    assert run.failures()
    assert decided_again(run.policy(), run.seen) == decided(run.seen)


@pytest.mark.parametrize("spec", SPECS)
def test_an_answer_makes_up_for_the_failures_before_it(spec: str) -> None:
    """Every second task of a worker fails."""
    tasks = Counter[int]()

    def turn(address: Address) -> Turn:
        tasks[address[1]] += 1
        return (0.01, "crashed") if tasks[address[1]] % 2 else 1.0

    run = Run(spec, jobs=40)
    crew = Crew(run.workload, turn)
    run.play(crew)
    run.workload.check(jobs=40)
    assert crew.elapsed_s < 105.0, "a second a task, and two tasks a job in dealing"


@pytest.mark.parametrize("outage_s", [2.0, 50.0])
@pytest.mark.parametrize("spec", SPECS)
def test_an_outage_that_is_shorter_than_the_time_limit_is_outlasted(
    spec: str, outage_s: float
) -> None:
    """Few tasks are sent during the outage, because the waits grow."""

    def turn(_: Address) -> Turn:
        return 1.0 if crew.elapsed_s >= outage_s else (0.1, "connection reset")

    run = Run(spec)
    crew = Crew(run.workload, turn)
    run.play(crew)
    run.workload.check()
    assert crew.elapsed_s < outage_s + 12.0, "at most 5 s until the next try, and 6 jobs"
    for worker in range(N):
        sent = [at for at in run.sent_at(worker) if at < outage_s]
        assert len([at for at in sent if at < 1.0]) >= 3
        assert len([at for at in sent if at >= 40.0]) <= 3, "one in 5 s, later"
        assert len(sent) <= 22


@pytest.mark.parametrize("spec", SPECS)
def test_if_every_task_fails_the_run_ends_and_names_a_worker_and_its_reason(spec: str) -> None:
    run = Run(spec)
    crew = Crew(run.workload, lambda address: (0.01, f"worker {address[1]} was killed"))
    with pytest.raises(WorkerError) as caught:
        run.play(crew)
    worker = caught.value.worker
    assert worker is not None
    assert f"worker {worker}: worker {worker} was killed" in str(caught.value)
    assert 0.8 * TIMEOUT_S <= crew.elapsed_s <= 1.1 * TIMEOUT_S
    assert 17 * N <= len(crew.sent) <= 23 * N


@pytest.mark.parametrize("spec", WITHOUT_ONE)
def test_the_others_do_the_work_of_a_worker_that_always_fails(spec: str) -> None:
    run = Run(spec, jobs=12)
    crew = Crew(run.workload, lambda address: (0.01, "killed") if address[1] == 1 else 1.0)
    run.play(crew)
    run.workload.check(jobs=12)
    assert crew.elapsed_s <= 25.0, "two seconds a job"
    assert run.failures()


@pytest.mark.parametrize("spec", NEED_ALL)
def test_a_worker_that_always_fails_ends_the_run_if_nobody_can_do_its_work(spec: str) -> None:
    run = Run(spec)
    crew = Crew(run.workload, lambda address: (0.01, "killed") if address[1] == 1 else 1.0)
    with pytest.raises(WorkerError, match="worker 1: killed"):
        run.play(crew)
    assert crew.elapsed_s <= 1.1 * TIMEOUT_S
