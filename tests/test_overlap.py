"""The loop under a policy whose rounds overlap: who owes what, and what is known when tasks leave.

The policy deals pieces: round t of a worker is its t-th piece, and begins when its own last one is
done, whatever the others do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from seqgc import master
from seqgc.errors import ParameterError
from seqgc.ports import (
    Action,
    Arrival,
    Cancel,
    Capability,
    Close,
    Decoding,
    DemandingPolicy,
    Dispatch,
    Dispatched,
    Drop,
    Event,
    Failure,
    Finish,
    FloatArray,
    MiniTask,
    Restart,
    RoundRecord,
    Task,
    Term,
    WeightedPoints,
    WeightRef,
)
from seqgc.rounds import Setting, SwitchingPolicy
from seqgc.schemes import Uncoded

N, JOBS = 3, 4


def piece(job: int, worker: int, *, slot: int = 0) -> MiniTask:
    return MiniTask(job=job, slot=slot, chunks=np.array([worker]), coefficients=np.ones(1))


def closed(round: int) -> Close:
    record = RoundRecord(
        round=round,
        responded=np.ones(N, dtype=np.bool_),
        kappa_s=1.0,
        duration_s=1.0,
        reason="everyone",
        waited_out=False,
    )
    return Close(record=record)


def finish(job: int, n: int) -> Finish:
    terms = tuple(Term(worker=i, round=job, slot=0, weight=1.0) for i in range(n))
    return Finish(job=job, decoding=lambda: Decoding(job=job, terms=terms))


class Clocks:
    """Every worker goes from job to job by itself; job t is finished when all have done theirs."""

    def __init__(self) -> None:
        self._done = [0] * N
        self._finished = 0
        self.wake_at = math.inf

    @property
    def done(self) -> bool:
        return self._finished == JOBS

    def start(self) -> Sequence[Action]:
        assignment = {worker: (piece(0, worker),) for worker in range(N)}
        return [Dispatch(round=0, attempt=0, assignment=assignment)]

    def on(self, event: Event) -> Sequence[Action]:
        if not isinstance(event, Arrival):
            return ()
        if event.round != self._done[event.worker]:
            return (Drop(event=event, reason="twice"),)
        self._done[event.worker] += 1
        actions: list[Action] = []
        if min(self._done) > self._finished:
            # The clock closes while the fast workers' next tasks are under way.
            actions += [closed(self._finished), finish(self._finished, N)]
            self._finished += 1
        if (job := self._done[event.worker]) < JOBS:
            mini_tasks = (piece(job, event.worker),)
            actions.append(Dispatch(round=job, attempt=0, assignment={event.worker: mini_tasks}))
        return actions


class Workers:
    """Answer on a virtual clock, each after its own seconds; every answer comes twice."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self._seconds = seconds
        self._now = 0.0
        self._events: list[Arrival] = []
        self.cancelled: list[tuple[int, int]] = []

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        for task in tasks:
            results = {i.slot: _result(i.parts[0]) for i in task.items}
            at = self._now + self._seconds[task.worker]
            about = {"round": round, "worker": task.worker, "attempt": task.attempt}
            self._events.append(Arrival(**about, at=at, results=results))
            wrong = {slot: 1e6 + result for slot, result in results.items()}
            self._events.append(Arrival(**about, at=at + 0.25, results=wrong))
        self._events.sort(key=lambda event: event.at)
        return [self._now] * len(tasks)

    def receive(self, until: float) -> Arrival | Failure | None:
        assert until == math.inf
        event = self._events.pop(0)
        self._now = event.at
        return event

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        self.cancelled += [(round, worker) for worker in workers]

    def close(self) -> None:
        pass


def _result(part: WeightedPoints) -> FloatArray:
    return np.array([10.0 ** part.points[0] * (1 + part.weights.version)])


class Notes:
    """A workload that notes which gradients it has when a job's tasks are made."""

    def __init__(self) -> None:
        self.gradients: dict[int, float] = {}
        self.known: dict[tuple[int, int], tuple[int, ...]] = {}  # (job, worker) -> finished jobs
        self.begun: list[int] = []

    def needs(self, job: int, finished: int) -> bool:
        return finished < job

    def begin(self, job: int) -> None:
        self.begun.append(job)

    def result_form(self, job: int) -> None:  # noqa: ARG002 (the protocol's)
        return None

    def resolve(self, mini_task: MiniTask) -> tuple[WeightedPoints, ...]:
        worker = int(mini_task.chunks[0])
        self.known[mini_task.job, worker] = tuple(self.gradients)
        ref = WeightRef(model="m", version=mini_task.job, digest="0" * 64, dtype="float64", size=1)
        return (
            WeightedPoints(
                model="m", weights=ref, points=mini_task.chunks, coefficients=np.ones(1)
            ),
        )

    def finish(self, decoding: Decoding, gradient: FloatArray) -> None:
        self.gradients[decoding.job] = float(gradient[0])


def test_what_a_worker_owes_outlives_the_closing_of_other_rounds() -> None:
    workload, seen = Notes(), []
    master.run(Clocks(), Workers([1.0, 2.0, 5.0]), workload, observe=seen.append)
    assert workload.begun == list(range(JOBS))
    assert workload.gradients == {job: 111.0 * (1 + job) for job in range(JOBS)}
    drops = sum(isinstance(event, Drop) for event in seen)
    assert drops >= 2 * JOBS, "second answers, after the first ones were taken"


def test_what_is_decoded_is_handed_over_before_every_task_that_needs_it() -> None:
    workload = Notes()
    master.run(Clocks(), Workers([1.0, 2.0, 5.0]), workload)
    # Worker 0 began job 3 at 3 s, when nothing was known; worker 2 at 15 s, with all before it.
    assert workload.known[3, 0] == ()
    assert workload.known[3, 2] == (0, 1, 2)
    assert workload.known[1, 2] == (0,), "its own answer completed job 0"


def test_a_cancel_ends_a_debt_and_an_answer_after_it_is_nobodys() -> None:
    class Once:
        """Cancels worker 1's task, and takes any answer to it; worker 2's is out meanwhile."""

        wake_at, done = math.inf, False

        def start(self) -> Sequence[Action]:
            assignment = {worker: (piece(0, worker),) for worker in range(3)}
            dispatch = Dispatch(round=0, attempt=0, assignment=assignment)
            return [dispatch, Cancel(round=0, workers=(1,))]

        def on(self, event: Event) -> Sequence[Action]:
            if isinstance(event, Arrival) and event.worker == 1:
                self.done = True
                return [finish(0, 2)]
            return ()

    with pytest.raises(Exception, match="worker 1, round 0, slot 0, which has not arrived"):
        master.run(Once(), Workers([1.0, 2.0, 5.0]), Notes())


# ---- who left when, and who is to begin again ---------------------------------------------------


class Plan:
    """Performs some actions, and is done with the first event after them."""

    wake_at = math.inf

    def __init__(self, *actions: Action) -> None:
        self._actions, self.events = actions, []

    @property
    def done(self) -> bool:
        return any(isinstance(event, Arrival) for event in self.events)

    def start(self) -> Sequence[Action]:
        return self._actions

    def on(self, event: Event) -> Sequence[Action]:
        self.events.append(event)
        return ()


def test_the_policy_hears_who_left_and_when() -> None:
    class Slowly(Workers):
        def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
            super().dispatch(round, tasks)
            return [7.0 + task.worker for task in tasks]

    plan = Plan(Dispatch(round=5, attempt=1, assignment={2: (), 0: ()}))
    master.run(plan, Slowly([1.0] * N))
    event = plan.events[0]
    assert event == Dispatched(round=5, attempt=1, workers=(2, 0), left_at=(9.0, 7.0))
    assert event.at == 7.0


def test_a_restart_is_the_backends_and_a_policy_that_needs_it_is_refused_in_one_line() -> None:
    class Replacing(Workers):
        restarted = ()

        def restart(self, worker: int) -> None:
            self.restarted += (worker,)

    dispatch = Dispatch(round=0, attempt=0, assignment={0: ()})
    plan = (Restart(worker=2), dispatch)
    backend = Replacing([1.0] * N)
    master.run(Plan(*plan), backend)
    assert backend.restarted == (2,)

    class Demanding(Plan):
        needs: frozenset[Capability] = frozenset({"restart"})

    master.run(Plan(*plan), Workers([1.0] * N))  # goes on without
    master.run(Demanding(*plan), backend)
    assert backend.restarted == (2, 2)
    refused = Demanding(*plan)
    with pytest.raises(ParameterError) as caught:
        master.run(refused, Workers([1.0] * N))
    assert str(caught.value) == (
        "`backend` must be able to replace its workers: the policy needs it; got 'Workers' "
        "(use local processes, resident functions (--resident), or another defence)"
    )
    assert refused.events == [], "nothing has been sent"
    refused.needs = frozenset({"fly"})  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match=r"`needs` .*restart"):
        master.run(refused, backend)


def test_what_a_director_needs_its_policy_needs() -> None:
    class Demanding:
        needs: frozenset[Capability] = frozenset({"restart"})

        def on(self, event: Event) -> None: ...

        def close(self, record: RoundRecord, *, setting: Setting) -> None: ...

        def choose(self, *, setting: Setting, jobs_left: int) -> None: ...

    setting = Setting(scheme=Uncoded(n=N))
    assert SwitchingPolicy(setting, num_jobs=1).needs == frozenset()
    policy = SwitchingPolicy(setting, num_jobs=1, director=Demanding())
    assert isinstance(policy, DemandingPolicy)
    with pytest.raises(ParameterError, match="must be able to replace its workers"):
        master.run(policy, Workers([1.0] * N))
