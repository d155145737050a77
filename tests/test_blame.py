"""A model that ends or hangs the workers that compute it is found, and the others lose nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from seqgc import master
from seqgc.clocks import ClockPolicy
from seqgc.errors import WorkerError
from seqgc.ports import (
    Arrival,
    Computing,
    Decoding,
    Failure,
    FloatArray,
    MiniTask,
    Policy,
    Task,
    WeightedPoints,
)
from seqgc.rounds import ClosingRule, DealingPolicy, RoundPolicy
from seqgc.schemes import Deal, Scheme, parse_scheme
from seqgc.shards import ShardPolicy
from seqgc.testing.scripted import ChunkWorkload, HandWoundClock

N, JOBS, LIMIT_S = 4, 3, 5.0
RULE = ClosingRule(timeout_s=LIMIT_S)


class Trio(ChunkWorkload):
    """Each job is of three models; what has been parked is computed no more in later jobs."""

    def __init__(self, scheme: Scheme | Deal, names: str = "abc") -> None:
        super().__init__(scheme, seed=0)  # type: ignore[arg-type] (it looks at the chunks)
        self.names, self.parked, self.kinds = list(names), list[str](), list[str]()
        self.sums: dict[int, FloatArray] = {}

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        (part,) = super().resolve(mini_task)
        return tuple(
            replace(part, model=model, weights=replace(part.weights, model=model))
            for model in self.names
        )

    def compute(self, parts: tuple[WeightedPoints, ...]) -> FloatArray:
        return np.concatenate([super(Trio, self).compute((part,)) for part in parts])

    def park(self, names: Sequence[str], *, why: str, kind: str) -> None:
        assert why
        self.parked += names
        self.kinds.append(kind)

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        self.sums[decoding.job] = self.sums.get(decoding.job, 0.0) + gradient

    def check(self, models: str) -> None:
        """Compare the gradients of these models with the sums of the partial ones."""
        assert sorted(self.sums) == list(range(JOBS))
        for job, total in self.sums.items():
            by_model = dict(zip(self.names, np.split(total, len(self.names)), strict=True))
            for model in models:
                np.testing.assert_allclose(by_model[model], self.partials(job).sum(axis=0))


class Mortal:
    """Workers that die, or hang, of the models that ``ends`` names in a task of theirs."""

    def __init__(
        self,
        workload: Trio,
        ends: Callable[[Task], str],
        *,
        hang: bool = False,
        knows: bool = True,
        is_stuck: bool = True,
    ) -> None:
        self._workload, self._ends, self._hang, self._knows = workload, ends, hang, knows
        self._is_stuck = is_stuck
        self.clock = HandWoundClock()
        self.deaths = 0
        self._at: dict[int, Computing] = {}  # by worker, where it hangs
        self._waiting: dict[int, list[Failure]] = {}  # by worker, what a restart will say
        self._events: list[Arrival | Failure] = []

    def dispatch(self, round: int, tasks: Sequence[Task]) -> list[float]:
        now = self.clock.now()
        for task in tasks:
            address = {"round": round, "worker": task.worker, "attempt": task.attempt}
            if model := self._ends(task):
                self.deaths += 1
                said = model if self._knows else ""
                if self._hang:
                    at = Computing(
                        round=round, attempt=task.attempt, model=said, is_stuck=self._is_stuck
                    )
                    self._at[task.worker] = at
                    lost = Failure(**address, at=now, reason="restarted")
                    self._waiting.setdefault(task.worker, []).append(lost)
                else:
                    dead = Failure(**address, at=now + 0.01, reason="exit 7", model=said)
                    self._events.append(dead)
                continue
            results = {item.slot: self._workload.compute(item.parts) for item in task.items}
            self._events.append(Arrival(**address, at=now + 0.1, results=results))
        self._events.sort(key=lambda event: event.at)
        return [now] * len(tasks)

    def restart(self, worker: int) -> Computing | None:
        lost = self._waiting.pop(worker, [])
        self._events[:0] = [replace(each, at=self.clock.now()) for each in lost]
        return self._at.pop(worker, None)

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        gone = [e for e in self._events if e.round == round and e.worker in workers]
        self._events = [event for event in self._events if event not in gone]

    def receive(self, until: float) -> Arrival | Failure | None:
        due = bool(self._events) and self._events[0].at <= until
        at = self._events[0].at if due else until
        assert at < math.inf
        self.clock.wind(max(0.0, at - self.clock.now()))
        return self._events.pop(0) if due else None

    def close(self) -> None:
        pass


def computes(task: Task, model: str) -> bool:
    return any(p.model == model and len(p.points) for item in task.items for p in item.parts)


def first_of(models: str, *, on: Callable[[Task], bool] = lambda _: True) -> Callable[[Task], str]:
    """Have a task end its worker by the first of these models that it computes."""
    return lambda task: next((m for m in models if on(task) and computes(task, m)), "")


def uncoded(spec: str = "uncoded") -> tuple[Policy, Trio]:
    scheme = parse_scheme(spec, n=N)
    return RoundPolicy(scheme.start(JOBS), RULE), Trio(scheme)


def in_parts(policy: Policy) -> tuple[Policy, Trio]:
    return policy, Trio(parse_scheme("uncoded", n=N))


POLICIES: dict[str, Callable[[], tuple[Policy, Trio]]] = {
    "uncoded": uncoded,
    "gc": lambda: uncoded("gc:s=1"),
    "gc-rep": lambda: uncoded("gc-rep:s=1"),
    "bsp": lambda: in_parts(ClockPolicy(N, RULE, num_jobs=JOBS)),
    "asp-dds": lambda: in_parts(ShardPolicy(N, RULE, num_jobs=JOBS)),
    "deal": lambda: (
        DealingPolicy(Deal(n=N, pieces=N), RULE, num_jobs=JOBS),
        Trio(Deal(n=N, pieces=N)),
    ),
}


@pytest.mark.parametrize("how", ["dies", "dies, nobody knows where", "hangs"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("model", "ac")
def test_one_model_of_three_is_parked_and_the_others_gradients_are_right(
    model: str, policy: str, how: str
) -> None:
    driven, workload = POLICIES[policy]()
    backend = Mortal(workload, first_of(model), hang=how == "hangs", knows="nobody" not in how)
    master.run(driven, backend, workload)
    assert set(workload.parked) == {model}
    assert set(workload.kinds) == {"hung" if how == "hangs" else "crashed"}
    assert backend.deaths <= 7 * N
    workload.check("abc".replace(model, ""))


def test_it_is_found_if_one_worker_meets_it_alone() -> None:
    for hang in (False, True):
        driven, workload = uncoded()
        ends = first_of("b", on=lambda task: task.worker == 2)
        master.run(driven, Mortal(workload, ends, hang=hang), workload)
        assert workload.parked == ["b"]
        workload.check("ac")


def test_two_deaths_in_a_row_are_no_models_fault() -> None:
    driven, workload = uncoded()
    ends = first_of("b", on=lambda task: task.attempt < 2)
    master.run(driven, Mortal(workload, ends), workload)
    assert workload.parked == []
    workload.check("abc")


def test_a_worker_that_is_slow_with_all_models_is_no_models_fault() -> None:
    driven, workload = uncoded()
    ends = first_of("c", on=lambda task: task.attempt < 2)
    master.run(driven, Mortal(workload, ends, hang=True, is_stuck=False), workload)
    assert workload.parked == []
    workload.check("abc")


@pytest.mark.parametrize("names", ["a", "abc"])
def test_what_happens_to_most_models_ends_the_run(names: str) -> None:
    scheme = parse_scheme("uncoded", n=N)
    workload = Trio(scheme, names)
    with pytest.raises(WorkerError, match="exit 7"):
        master.run(
            RoundPolicy(scheme.start(JOBS), RULE), Mortal(workload, first_of(names)), workload
        )
    assert len(workload.parked) <= len(names) // 2


class Deaf(Mortal):
    """Workers that nobody can replace, as functions are: the backend cannot restart them."""

    restart = None  # type: ignore[assignment]


def test_if_silent_workers_end_a_run_the_model_that_they_are_at_is_named() -> None:
    class Alone(Trio):
        def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
            return super().resolve(mini_task)[mini_task.job : mini_task.job + 1]

    scheme = parse_scheme("uncoded", n=N)
    workload = Alone(scheme)
    backend = Deaf(workload, first_of("b"), hang=True)
    with pytest.raises(
        WorkerError, match=r"silent.*; all tasks in flight belong to model 'b'"
    ) as caught:
        master.run(RoundPolicy(scheme.start(JOBS), RULE), backend, workload)
    assert caught.value.round == 1
