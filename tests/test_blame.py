"""Whether a worker or a model is to blame for a result that cannot be used, under every policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

import examples.ksync  # noqa: F401 (registers k-sync)
from seqgc import master
from seqgc.errors import ModelError
from seqgc.master._blame import Blame
from seqgc.ports import (
    Arrival,
    Decoding,
    Failure,
    Flaw,
    FloatArray,
    MiniTask,
    Seen,
    Task,
    WeightedPoints,
    WeightRef,
    WorkItem,
)
from seqgc.rounds import ClosingRule, Setting, policy_of
from seqgc.schemes import Scheme, parse_scheme
from seqgc.testing import ChunkWorkload, ScriptedBackend

N, JOBS = 4, 6
SPECS = [
    "uncoded",
    "gc:s=1",
    "gc-rep:s=1",
    "sr-sgc:B=1,W=2,lam=2",
    "m-sgc:B=1,W=2,lam=2",
    "deal:pieces=8",
    "bsp",
    "hedge",
    "hedge:q=0.1,factor=0.1",
    "k-sync:k=3",
    "ssp:slack=2",
    "asp",
    "asp-dds:M=2",
    "antdt-dd",
]
Address = tuple[int, int, int]  # round, worker, attempt


class Pair(ChunkWorkload):
    """Each job has two models of two parameters; errors are those of the first one."""

    def __init__(self, scheme: Scheme) -> None:
        super().__init__(scheme, seed=0, size=4)
        self.parked: dict[str, str] = {}
        self._parts: dict[int, dict[int, FloatArray]] = {}  # by job and part

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        (part,) = super().resolve(mini_task)
        halves = [replace(part.weights, model=model, size=2) for model in "ab"]
        return tuple(replace(part, model=half.model, weights=half) for half in halves)

    def compute(self, parts: tuple[WeightedPoints, ...]) -> FloatArray:
        return super().compute(parts[:1])

    def park(self, names: Sequence[str], *, why: str, kind: str) -> None:
        assert not self.parked.keys() & set(names), "a model fails once"
        self.parked |= dict.fromkeys(names, f"{kind}: {why}")

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        part = 0 if decoding.part is None else decoding.part.index
        self._parts.setdefault(decoding.job, {})[part] = gradient

    @property
    def gradients(self) -> dict[int, FloatArray]:
        """The gradient (4,) of each job, whose parts are added in a fixed order."""
        return {job: sum(parts[p] for p in sorted(parts)) for job, parts in self._parts.items()}


Damage = Callable[[Address, FloatArray], tuple[FloatArray, bool]]


class Damaged(ScriptedBackend):
    """A backend whose answers are changed: ``damage`` returns a result, and whether b raised."""

    def __init__(self, workload: ChunkWorkload, damage: Damage) -> None:
        super().__init__({})
        self._compute, self._damage = workload.compute, damage
        self._tasks: dict[Address, Task] = {}

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        self._tasks |= {(round, task.worker, task.attempt): task for task in tasks}
        return super().dispatch(round, tasks)

    def receive(self, until: float) -> Arrival | Failure | None:
        event = super().receive(until)
        if not isinstance(event, Arrival):
            return event
        address = event.round, event.worker, event.attempt
        results, raised = dict[int, FloatArray](), False
        for item in self._tasks[address].items:
            results[item.slot], bad = self._damage(address, self._compute(item.parts))
            raised |= bad
        flaws = {"b": Flaw(kind="raised", why="no memory")} if raised else {}
        return replace(event, results=results, flaws=flaws)


def trained(spec: str, damage: Damage) -> tuple[Pair, list[Seen]]:
    scheme = parse_scheme(spec, n=N)
    workload, seen = Pair(scheme), list[Seen]()
    setting = Setting(scheme=scheme, rule=ClosingRule(timeout_s=60.0))
    policy = policy_of(setting, num_jobs=JOBS)
    master.run(policy, Damaged(workload, damage), workload, observe=seen.append, max_norm=1e6)
    return workload, seen


def fine(_: Address, result: FloatArray) -> tuple[FloatArray, bool]:
    return result, False


def without_b(result: FloatArray, value: float = 0.0) -> FloatArray:
    return np.append(result[:2], [value, 0.0])


@pytest.mark.parametrize("kind", ["raised", "diverged"])
@pytest.mark.parametrize("spec", SPECS)
def test_a_model_that_fails_everywhere_fails_once_and_the_other_keeps_its_bits(
    spec: str, kind: str
) -> None:
    def damage(_: Address, result: FloatArray) -> tuple[FloatArray, bool]:
        return without_b(result, math.nan if kind == "diverged" else 0.0), kind == "raised"

    expected, _ = trained(spec, fine)
    workload, seen = trained(spec, damage)
    assert list(workload.parked) == ["b"]
    assert workload.parked["b"].startswith(kind)
    assert sorted(workload.gradients) == list(range(JOBS))
    for job, gradient in workload.gradients.items():
        np.testing.assert_array_equal(gradient[:2], expected.gradients[job][:2])
        np.testing.assert_array_equal(gradient[2:], 0.0)
    flawed = [each for each in seen if isinstance(each, Failure)]
    assert flawed
    assert all(list(each.flaws) == ["b"] for each in flawed)
    assert len({(each.round, each.worker) for each in flawed}) == len(flawed)


# Schemes under which a job can always be finished without one of the workers.
WITHOUT_ONE = [spec for spec in SPECS if spec not in ("uncoded", "antdt-dd", "m-sgc:B=1,W=2,lam=2")]


@pytest.mark.parametrize("spec", WITHOUT_ONE)
def test_no_model_fails_because_of_a_single_worker(spec: str) -> None:
    def damage(address: Address, result: FloatArray) -> tuple[FloatArray, bool]:
        is_bad = address[1] == 1
        return (without_b(result) if is_bad else result), is_bad

    workload, seen = trained(spec, damage)
    assert workload.parked == {}
    assert any(isinstance(each, Failure) and each.worker == 1 for each in seen)
    expected, _ = trained(spec, fine)
    for job, gradient in workload.gradients.items():
        np.testing.assert_allclose(gradient, expected.gradients[job], rtol=0, atol=1e-9)


class Dying(Damaged):
    """A backend of which worker 1 dies in every task, always while it computes ``model``."""

    def __init__(self, workload: ChunkWorkload, model: str) -> None:
        super().__init__(workload, fine)
        self._model = model

    def receive(self, until: float) -> Arrival | Failure | None:
        event = super().receive(until)
        if not isinstance(event, Arrival) or event.worker != 1 or not event.results:
            return event
        task = self._tasks[event.round, event.worker, event.attempt]
        if not any(len(p.points) and self._model in ("", p.model) for p in task.items[0].parts):
            return event
        about = {"round": event.round, "worker": 1, "attempt": event.attempt, "at": event.at}
        return Failure(**about, reason="killed by SIGSEGV", model=self._model)


@pytest.mark.parametrize("model", ["b", ""])
@pytest.mark.parametrize("spec", WITHOUT_ONE)
def test_no_model_fails_because_a_single_worker_dies(spec: str, model: str) -> None:
    scheme = parse_scheme(spec, n=N)
    workload, seen = Pair(scheme), list[Seen]()
    setting = Setting(scheme=scheme, rule=ClosingRule(timeout_s=60.0))
    policy = policy_of(setting, num_jobs=JOBS)
    master.run(policy, Dying(workload, model), workload, observe=seen.append, max_norm=1e6)
    assert workload.parked == {}
    assert any(isinstance(each, Failure) for each in seen)
    expected, _ = trained(spec, fine)
    for job, gradient in workload.gradients.items():
        np.testing.assert_allclose(gradient, expected.gradients[job], rtol=0, atol=1e-9)


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


def test_the_last_model_is_not_left_out_after_another_one_has_failed() -> None:
    blame = Blame(names={"a", "b"}, failed={"a": "crashed"})
    for attempt in range(4):
        assert sent_without(blame, (0, 1, attempt), [item(0, "ab")]) == "a"
        about = {"round": 0, "worker": 1, "attempt": attempt, "at": 0.0}
        blame.lost(Failure(**about, reason="killed", model="b"))


@pytest.mark.parametrize("spec", SPECS)
def test_a_result_that_is_right_the_second_time_is_used(spec: str) -> None:
    once = set[Address]()

    def damage(address: Address, result: FloatArray) -> tuple[FloatArray, bool]:
        if not once:
            once.add(address)
        return (without_b(result), True) if address in once else (result, False)

    workload, seen = trained(spec, damage)
    assert workload.parked == {}
    assert len([each for each in seen if isinstance(each, Failure)]) == 1
    expected, _ = trained(spec, fine)
    for job, gradient in workload.gradients.items():
        np.testing.assert_allclose(gradient, expected.gradients[job], rtol=0, atol=1e-9)


def test_where_no_other_worker_has_the_question_two_answers_to_it_decide() -> None:
    def damage(address: Address, result: FloatArray) -> tuple[FloatArray, bool]:
        is_bad = address[:2] == (2, 1)
        return (without_b(result) if is_bad else result), is_bad

    workload, seen = trained("uncoded", damage)
    assert list(workload.parked) == ["b"]
    assert [each.attempt for each in seen if isinstance(each, Failure)] == [0]


def test_reports_of_two_jobs_are_no_agreement() -> None:
    def damage(address: Address, result: FloatArray) -> tuple[FloatArray, bool]:
        is_bad = address[0] == address[1]
        return (without_b(result) if is_bad else result), is_bad

    workload, seen = trained("gc-rep:s=1", damage)
    assert workload.parked == {}
    assert len([each for each in seen if isinstance(each, Failure)]) == N


def test_a_workload_that_cannot_go_on_without_the_model_ends_the_run() -> None:
    scheme = parse_scheme("uncoded", n=N)
    workload = ChunkWorkload(scheme, seed=0)

    def damage(_: Address, result: FloatArray) -> tuple[FloatArray, bool]:
        return result * math.nan, False

    policy = policy_of(Setting(scheme=scheme), num_jobs=JOBS)
    with pytest.raises(ModelError) as caught:
        master.run(policy, Damaged(workload, damage), workload)
    assert list(caught.value.models) == ["m"]
