"""Bad results: under every policy another worker is asked, and the model fails if it agrees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from seqgc import master
from seqgc.errors import ModelError
from seqgc.master._blame import Blame
from seqgc.ports import (
    Arrival,
    Failure,
    FloatArray,
    MiniTask,
    WeightedPoints,
    WeightRef,
    WorkItem,
)
from seqgc.rounds import Setting, policy_of
from seqgc.schemes import parse_scheme
from seqgc.testing import ChunkWorkload
from tests.policies.crew import JOBS, SPECS, WITHOUT_ONE, Address, Crew, N, Run, trained


def without_b(result: FloatArray, value: float = 0.0) -> FloatArray:
    return np.append(result[:2], [value, 0.0])


@pytest.mark.parametrize("kind", ["raised", "diverged"])
@pytest.mark.parametrize("spec", SPECS)
def test_a_model_that_fails_everywhere_fails_once_and_the_other_keeps_its_bits(
    spec: str, kind: str
) -> None:
    def damage(_: Address, result: FloatArray) -> tuple[FloatArray, bool]:
        return without_b(result, math.nan if kind == "diverged" else 0.0), kind == "raised"

    run, expected = trained(spec, damage), trained(spec).workload.gradients
    assert list(run.workload.parked) == ["b"]
    assert run.workload.parked["b"].startswith(kind)
    gradients = run.workload.gradients
    assert sorted(gradients) == list(range(JOBS))
    for job, gradient in gradients.items():
        np.testing.assert_array_equal(gradient[:2], expected[job][:2])
        np.testing.assert_array_equal(gradient[2:], 0.0)
    flawed = run.failures()
    assert flawed
    assert all(list(each.flaws) == ["b"] for each in flawed)
    assert len({(each.round, each.worker) for each in flawed}) == len(flawed)


@pytest.mark.parametrize("spec", WITHOUT_ONE)
def test_no_model_fails_because_of_a_single_worker(spec: str) -> None:
    def damage(address: Address, result: FloatArray) -> tuple[FloatArray, bool]:
        is_bad = address[1] == 1
        return (without_b(result) if is_bad else result), is_bad

    run = trained(spec, damage)
    assert run.workload.parked == {}
    assert {each.worker for each in run.failures()} == {1}
    run.workload.check()


@pytest.mark.parametrize("spec", SPECS)
def test_a_result_that_is_right_the_second_time_is_used(spec: str) -> None:
    once = set[Address]()

    def damage(address: Address, result: FloatArray) -> tuple[FloatArray, bool]:
        if not once:
            once.add(address)
        return (without_b(result), True) if address in once else (result, False)

    run = trained(spec, damage)
    assert run.workload.parked == {}
    assert len(run.failures()) == 1
    run.workload.check()


class Dying(Crew):
    """Workers of which worker 1 dies in every task, always while it computes ``model``."""

    def __init__(self, workload: ChunkWorkload, model: str) -> None:
        super().__init__(workload)
        self._model = model

    def receive(self, until: float) -> Arrival | Failure | None:
        event = super().receive(until)
        if not isinstance(event, Arrival) or event.worker != 1 or not event.results:
            return event
        task = self.tasks[event.round, event.worker, event.attempt]
        if not any(len(p.points) and self._model in ("", p.model) for p in task.items[0].parts):
            return event
        about = {"round": event.round, "worker": 1, "attempt": event.attempt, "at": event.at}
        return Failure(**about, reason="killed by SIGSEGV", model=self._model)


@pytest.mark.parametrize("model", ["b", ""])
@pytest.mark.parametrize("spec", WITHOUT_ONE)
def test_no_model_fails_because_a_single_worker_dies(spec: str, model: str) -> None:
    run = Run(spec)
    run.play(Dying(run.workload, model))
    assert run.workload.parked == {}
    assert run.failures()
    run.workload.check()


# ---- which model is to blame --------------------------------------------------------------------


def item(job: int, models: str) -> WorkItem:
    of = WeightRef(model="", version=0, digest="", dtype="float64", size=2)
    data = {"points": np.arange(2), "coefficients": np.ones(2)}
    parts = [WeightedPoints(model=m, weights=replace(of, model=m), **data) for m in models]
    return WorkItem(slot=job, parts=tuple(parts))


def sent_without(blame: Blame, address: Address, items: Sequence[WorkItem]) -> str:
    """Send a task with an item for each job; return the models that were left out."""
    chunks = {"chunks": np.arange(1), "coefficients": np.ones(1)}
    mini_tasks = [MiniTask(slot=each.slot, job=each.slot, **chunks) for each in items]
    sent = blame.send(address, mini_tasks, items)
    return "".join(p.model for each in sent for p in each.parts if not len(p.points))


def test_models_are_left_out_one_by_one_in_a_task_of_several_jobs() -> None:
    items, blame, left_out = [item(0, "ab"), item(1, "cd")], Blame(), list[str]()
    for attempt in range(8):
        left_out.append(sent_without(blame, (0, 1, attempt), items))
        about = {"round": 0, "worker": 1, "attempt": attempt, "at": 0.0}
        blame.lost(Failure(**about, reason="killed", model=""))
    assert left_out == ["", "", "", "a", "b", "c", "d", ""], "each once: no single one is to blame"


def test_a_death_after_a_mini_task_was_answered_is_no_evidence_about_it() -> None:
    first, second, blame = item(0, "ab"), item(1, "ab"), Blame()
    for attempt in range(3):
        address = 0, 1, attempt
        assert sent_without(blame, address, [first, second]) == ""
        chunks = {"chunks": np.arange(1), "coefficients": np.ones(1)}
        assert blame.clear_part(address, [MiniTask(slot=0, job=0, **chunks)])
        about = {"round": 0, "worker": 1, "attempt": attempt, "at": 0.0}
        blame.lost(Failure(**about, reason="killed", model="b"))
    assert sent_without(blame, (0, 1, 3), [first]) == ""
    assert sent_without(blame, (0, 1, 4), [second]) == "b"
    assert not blame.clear_part((0, 1, 4), []), "the whole answer tells if the model was at fault"


def test_the_last_model_is_not_left_out_after_another_one_has_failed() -> None:
    blame = Blame(names={"a", "b"}, failed={"a": "crashed"})
    for attempt in range(4):
        assert sent_without(blame, (0, 1, attempt), [item(0, "ab")]) == "a"
        about = {"round": 0, "worker": 1, "attempt": attempt, "at": 0.0}
        blame.lost(Failure(**about, reason="killed", model="b"))


def test_where_no_other_worker_has_the_question_two_answers_to_it_decide() -> None:
    def damage(address: Address, result: FloatArray) -> tuple[FloatArray, bool]:
        is_bad = address[:2] == (2, 1)
        return (without_b(result) if is_bad else result), is_bad

    run = trained("uncoded", damage)
    assert list(run.workload.parked) == ["b"]
    assert [each.attempt for each in run.failures()] == [0]


def test_reports_of_two_jobs_are_no_agreement() -> None:
    def damage(address: Address, result: FloatArray) -> tuple[FloatArray, bool]:
        is_bad = address[0] == address[1]
        return (without_b(result) if is_bad else result), is_bad

    run = trained("gc-rep:s=1", damage)
    assert run.workload.parked == {}
    assert len(run.failures()) == N


def test_a_workload_that_cannot_continue_without_the_model_ends_the_run() -> None:
    scheme = parse_scheme("uncoded", n=N)
    workload = ChunkWorkload(scheme, seed=0)

    def damage(_: Address, result: FloatArray) -> tuple[FloatArray, bool]:
        return result * math.nan, False

    policy = policy_of(Setting(scheme=scheme), num_jobs=JOBS)
    with pytest.raises(ModelError) as caught:
        master.run(policy, Crew(workload, damage=damage), workload)
    assert list(caught.value.models) == ["m"]
