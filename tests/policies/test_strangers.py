"""Answers for which nobody waits: under every policy they are dropped and change nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from seqgc.errors import ScheduleError, WireError
from seqgc.ports import (
    Arrival,
    Drop,
    Failure,
    Policy,
    Timetable,
)
from seqgc.rounds import Setting, policy_of
from seqgc.schemes import parse_scheme
from tests.kit import SOAK
from tests.policies.crew import SPECS, Address, Crew, Models, N, Run, Turn
from tests.policies.decisions import decided


class Gossip(Crew):
    """Workers that also answer what they were not asked; the results of these answers are zero."""

    def __init__(self, workload: Models, *, seed: int) -> None:
        super().__init__(workload, self._seconds)
        self._seed, self._rng = seed, np.random.default_rng(seed)
        self._past: list[Arrival] = []
        self.lies = 0

    def _seconds(self, address: Address) -> Turn:
        return 1.0 + float(np.random.default_rng([self._seed, *address]).pareto(1.0))

    def receive(self, until: float) -> Arrival | Failure | None:
        if self._past and self._rng.random() < 0.4:
            self.lies += 1
            return self._lie()
        event = super().receive(until)
        if isinstance(event, Arrival):
            self._past.append(event)
        return event

    def _lie(self) -> Arrival | Failure:
        """Return an answer that was given before, or the answer to a task that was not sent."""
        rng, truth = self._rng, self._past[self._rng.integers(len(self._past))]
        zero = {slot: np.zeros_like(result) for slot, result in truth.results.items()}
        lie = replace(truth, results=[zero, {}][rng.integers(2)], at=self.clock.now())
        match rng.integers(4):
            case 0:
                return lie
            case 1:
                worker, attempt = int(rng.integers(N)), int(rng.integers(1000, 1005))
                return replace(lie, worker=worker, attempt=attempt)
            case 2:
                return replace(lie, round=lie.round + int(rng.integers(1000, 1005)))
            case _:
                about = {"round": lie.round, "worker": lie.worker, "attempt": lie.attempt}
                return Failure(**about, at=lie.at, reason="gone")


def without_drops(run: Run) -> list[str]:
    return [line for line in decided(run.seen) if not line.startswith("drop")]


@pytest.mark.parametrize("spec", SPECS)
def test_answers_that_nobody_asked_for_change_nothing(spec: str) -> None:
    for seed in range(5000 if SOAK else 5):
        run = Run(spec)
        crew = Gossip(run.workload, seed=seed)
        run.play(crew)
        quiet = Run(spec)
        quiet.play(Crew(quiet.workload, crew._seconds))
        assert without_drops(run) == without_drops(quiet), seed
        drops = [each for each in run.seen if isinstance(each, Drop)]
        own = [each for each in quiet.seen if isinstance(each, Drop)]
        assert len(drops) == len(own) + crew.lies, seed
        for job, gradient in quiet.workload.gradients.items():
            np.testing.assert_array_equal(run.workload.gradients[job], gradient)


def begun(spec: str) -> Policy:
    policy = policy_of(Setting(scheme=parse_scheme(spec, n=N)), num_jobs=1)
    policy.start()
    return policy


@pytest.mark.parametrize("spec", SPECS)
def test_an_answer_of_a_worker_that_does_not_exist_is_the_fault_of_the_backend(spec: str) -> None:
    for worker in (-1, N):
        with pytest.raises(WireError, match=f"0 <= worker < 4; got {worker}"):
            begun(spec).on(Arrival(round=0, worker=worker, attempt=0, at=0.0, results={}))


@pytest.mark.parametrize("spec", ["deal:pieces=8", "bsp", "hedge", "k-sync:k=3", "asp-dds:M=2"])
def test_a_policy_without_rounds_accepts_no_timetable(spec: str) -> None:
    with pytest.raises(ScheduleError, match="timetable"):
        begun(spec).on(Timetable(round=0, at=0.0, times=np.ones(N)))
