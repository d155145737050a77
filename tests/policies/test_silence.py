"""Workers that do not answer: under every policy they are replaced after the time limit."""

from __future__ import annotations

import math

import pytest

from seqgc.errors import WorkerError
from seqgc.ports import Restart
from tests.policies.crew import (
    NEED_ALL,
    SPECS,
    WITHOUT_ONE,
    Address,
    Crew,
    N,
    Replaceable,
    Run,
    Turn,
)

LIMIT_S = 4.5

# Without one worker, SR-SGC needs all others in each window. Dealing does not ask a silent worker
# again: it waits for the late answer, or for the failure of a worker that was replaced.
WITHOUT_ONE_AND_LATE = [each for each in WITHOUT_ONE if not each.startswith(("sr-sgc", "deal"))]


@pytest.mark.parametrize("spec", SPECS)
def test_a_silent_worker_is_replaced_after_the_time_limit(spec: str) -> None:
    def turn(address: Address) -> Turn:
        return math.inf if address[1] == 1 and 1 not in crew.restarted else 1.0

    run = Run(spec, jobs=12, timeout_s=LIMIT_S)
    crew = Replaceable(run.workload, turn)
    run.play(crew)
    run.workload.check(jobs=12)
    assert set(crew.restarted) == {1}
    assert crew.elapsed_s < 12 * 1.5 + LIMIT_S


@pytest.mark.parametrize("spec", SPECS)
def test_a_worker_that_cannot_be_replaced_is_asked_again(spec: str) -> None:
    silent = set[Address]()

    def turn(address: Address) -> Turn:
        if address[1] == 1 and not silent:
            silent.add(address)
        return math.inf if address in silent else 1.0

    run = Run(spec, jobs=12, timeout_s=LIMIT_S)
    run.play(Crew(run.workload, turn))
    run.workload.check(jobs=12)
    assert silent
    assert not [each for each in run.seen if isinstance(each, Restart)]


@pytest.mark.parametrize("spec", WITHOUT_ONE)
def test_the_others_do_the_work_of_a_worker_that_hangs(spec: str) -> None:
    run = Run(spec, jobs=12, timeout_s=LIMIT_S)
    run.play(Replaceable(run.workload, lambda address: math.inf if address[1] == 1 else 1.0))
    run.workload.check(jobs=12)


@pytest.mark.parametrize("spec", WITHOUT_ONE_AND_LATE)
def test_a_worker_that_hangs_ends_no_run_in_which_the_others_are_late_now_and_then(
    spec: str,
) -> None:
    late = set[tuple[int, int]]()  # round and worker

    def turn(address: Address) -> Turn:
        round, worker, attempt = address
        is_late = round in (3, 7, 11, 14) and attempt == 0 and (round, worker) not in late
        if is_late:
            late.add((round, worker))
        return math.inf if worker == 1 or is_late else 0.6 * LIMIT_S

    run = Run(spec, jobs=30, timeout_s=LIMIT_S)
    run.play(Replaceable(run.workload, turn))
    run.workload.check(jobs=30)
    assert len(late) >= 4 * (N - 1)


@pytest.mark.parametrize("spec", NEED_ALL)
def test_a_worker_that_hangs_ends_the_run_if_nobody_can_do_its_work(spec: str) -> None:
    run = Run(spec, timeout_s=LIMIT_S)
    crew = Replaceable(run.workload, lambda address: math.inf if address[1] == 1 else 1.0)
    with pytest.raises(WorkerError, match="worker 1 did not answer, though asked three times"):
        run.play(crew)
    assert crew.restarted == [1, 1]
    assert crew.elapsed_s <= 3 * LIMIT_S + 2


@pytest.mark.parametrize("spec", SPECS)
def test_if_nobody_answers_the_run_ends_and_says_what_to_change(spec: str) -> None:
    run = Run(spec, timeout_s=LIMIT_S)
    crew = Replaceable(run.workload, lambda _: math.inf)
    with pytest.raises(WorkerError, match="raise the time limit"):
        run.play(crew)
    assert 3 * LIMIT_S <= crew.elapsed_s <= 4 * LIMIT_S, "some begin a second round"
    assert len(crew.sent) <= 4 * N
    assert set(crew.restarted) == set(range(N))


@pytest.mark.parametrize("spec", SPECS)
def test_without_a_time_limit_a_run_in_which_nothing_is_awaited_ends(spec: str) -> None:
    run = Run(spec, timeout_s=math.inf)
    with pytest.raises(WorkerError):
        run.play(Crew(run.workload, lambda _: math.inf))
