"""The backend in virtual time: when tasks begin and are answered, what becomes of the others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqgc.errors import ParameterError, ScheduleError, WorkerError
from seqgc.ports import (
    Arrival,
    Failure,
    Flaw,
    FlawedResult,
    FloatArray,
    RestartingBackend,
    Task,
    WorkItem,
)
from seqgc.profiles import (
    ByRound,
    ByWork,
    DelayProfile,
    Pace,
    ProfileMeta,
    latency_pace,
    read_profile,
)
from seqgc.virtual import Fault, RandomFaults, VirtualBackend

EVEN = ByRound(latencies_s=[[0.5, 0.5]], rates=[[2.0, 8.0]])
ALONE = ByRound(latencies_s=[[0.0]], rates=[[1.0]])


def task(round: int, worker: int = 0, *, load: float = 1.0, attempt: int = 0) -> Task:
    return Task(round=round, worker=worker, attempt=attempt, items=(), load=load)


def sent(backend: VirtualBackend, *tasks: Task) -> None:
    for each in tasks:
        backend.dispatch(each.round, [each])


def heard(backend: VirtualBackend, until: float = 1e9) -> list[tuple[float, int, int]]:
    """Return (at, round, worker) of all that comes by then; failures have a round below 0."""
    events = iter(lambda: backend.receive(until), None)
    return [(e.at, e.round if isinstance(e, Arrival) else -e.round - 1, e.worker) for e in events]


def test_a_resident_does_one_task_at_a_time_as_they_arrive() -> None:
    backend = VirtualBackend(1, ALONE)
    sent(backend, task(5), task(3), task(4))
    assert heard(backend, 0.5) == []
    sent(backend, task(1), task(4, attempt=1))
    assert heard(backend) == [(1, 5, 0), (2, 3, 0), (3, 4, 0), (4, 1, 0), (5, 4, 0)]


def test_functions_do_not_wait_for_each_other() -> None:
    backend = VirtualBackend(1, ALONE, workers="function")
    sent(backend, task(0), task(1, load=0.5))
    assert heard(backend, 0.25) == []
    sent(backend, task(2, load=0.25))
    assert heard(backend) == [(0.5, 1, 0), (0.5, 2, 0), (1, 0, 0)]
    assert backend.busy_s.tolist() == [1.75]
    assert backend.free_at.tolist() == [1.0]


def test_a_message_takes_its_time_each_way() -> None:
    backend = VirtualBackend(2, EVEN, message_s=0.25)
    assert backend.dispatch(0, [task(0, 0), task(0, 1)]) == [0.0, 0.0]
    assert heard(backend) == [(3.0, 0, 0), (9.0, 0, 1)]
    assert backend.busy_s.tolist() == [2.5, 8.5]


def test_what_is_cancelled_before_it_begins_is_left_out() -> None:
    backend = VirtualBackend(1, ALONE)
    sent(backend, task(0), task(1), task(2))
    assert heard(backend, 0.5) == []
    backend.cancel(1, [0])
    assert heard(backend) == [(1, 0, 0), (2, 2, 0)]
    assert backend.busy_s.tolist() == [2.0]


@pytest.mark.parametrize(("kind", "next_at"), [("resident", 1.5), ("function", 1.0)])
def test_what_has_begun_is_finished_and_not_answered(kind: str, next_at: float) -> None:
    backend = VirtualBackend(1, ALONE, workers=kind)
    sent(backend, task(0))
    assert heard(backend, 0.5) == []
    backend.cancel(0, [0])
    sent(backend, task(1, load=0.5))
    assert heard(backend) == [(next_at, 1, 0)]
    assert backend.busy_s.tolist() == [1.5]


TWO_ROWS = ByWork(rates=np.array([[4.0], [1.0]]), width=0.5)
"""The first half of a batch takes the worker 2 s, the second 0.5 s."""


@pytest.mark.parametrize(
    ("kind", "message_s", "done", "next_at"),
    [
        ("function", 0.0, 0.25, 2.25),  # 0.25 of the first row in 1 s; then 1 s and 0.25 s
        ("function", 0.5, 0.375, 3.375),  # heard at 2 s, after 1.5 s of work; then 0.5 s, 0.375 s
        ("resident", 0.0, 0.5, 2.5),  # all of it, to its end
    ],
)
def test_of_a_cancelled_task_counts_what_was_done_by_then(
    kind: str, message_s: float, done: float, next_at: float
) -> None:
    backend = VirtualBackend(1, TWO_ROWS, workers=kind, message_s=message_s)
    sent(backend, task(0, load=0.5))
    assert heard(backend, 1.0 + message_s) == []
    backend.cancel(0, [0])
    assert backend.done.tolist() == pytest.approx([done])
    sent(backend, task(1, load=0.5))
    ((at, round, worker),) = heard(backend)
    assert (at, round, worker) == (pytest.approx(next_at), 1, 0)


def test_of_a_task_cut_off_by_a_restart_counts_what_was_done() -> None:
    backend = VirtualBackend(1, TWO_ROWS)
    sent(backend, task(0, load=0.5))
    assert heard(backend, 1.0) == []
    backend.restart(0)
    assert backend.done.tolist() == pytest.approx([0.25])
    sent(backend, task(1, load=0.5))
    assert [at for at, *_ in heard(backend)] == pytest.approx([1.0, 2.25])


def test_a_cancel_takes_a_message_to_be_heard() -> None:
    backend = VirtualBackend(1, ALONE, message_s=0.5)
    sent(backend, task(0), task(1), task(2))  # begun at 0.5, 1.5, 2.5
    assert heard(backend, 1.25) == []
    backend.cancel(1, [0])  # heard at 1.75, when it has begun
    backend.cancel(2, [0])
    assert heard(backend) == [(2.0, 0, 0)]
    assert backend.busy_s.tolist() == [2.0]


def test_time_passes_to_until_and_never_back() -> None:
    backend = VirtualBackend(1, ALONE)
    assert backend.receive(3.0) is None
    assert backend.receive(-math.inf) is None
    assert backend.now == 3.0
    assert backend.dispatch(0, [task(0)]) == [3.0]
    assert backend.receive(3.5) is None
    assert heard(backend) == [(4.0, 0, 0)]
    with pytest.raises(ScheduleError, match="waits for ever"):
        backend.receive(math.inf)


def test_answers_of_one_time_come_by_worker() -> None:
    pace = ByRound(latencies_s=np.ones((1, 4)), rates=[[0.0]])
    backend = VirtualBackend(4, pace)
    backend.dispatch(0, [task(0, worker) for worker in (2, 0, 3, 1)])
    assert heard(backend) == [(1, 0, worker) for worker in range(4)]


def test_results_are_computed_and_flaws_are_told() -> None:
    def compute(parts: Sequence[object]) -> FloatArray:
        if not parts:
            return np.ones(2)
        raise FlawedResult(np.zeros(2), {"net": Flaw(kind="raised", why="no loss")})

    backend = VirtualBackend(1, ALONE, compute=compute)
    items = (WorkItem(slot=0, parts=()), WorkItem(slot=3, parts=(None,)))  # type: ignore[arg-type]
    backend.dispatch(0, [Task(round=0, worker=0, attempt=0, items=items)])
    answer = backend.receive(math.inf)
    assert isinstance(answer, Arrival)
    assert {slot: result.tolist() for slot, result in answer.results.items()} == {
        0: [1, 1],
        3: [0, 0],
    }
    assert answer.flaws["net"].why == "no loss"


def test_a_failing_task_costs_a_share_of_its_time() -> None:
    fault = Fault(share=0.25)
    faulty = VirtualBackend(1, ALONE, faults=lambda each: fault if each.round == 0 else None)
    sent(faulty, task(0), task(1))
    assert heard(faulty) == [(0.25, -1, 0), (1.25, 1, 0)]
    assert faulty.busy_s.tolist() == [1.25]


def test_with_a_resident_dies_all_that_it_owes() -> None:
    def faults(each: Task) -> Fault | None:
        return Fault(share=0.5, dies=True) if each.round == 1 else None

    backend = VirtualBackend(2, EVEN, faults=faults, restart_s=3.0, message_s=0.125)
    sent(backend, task(1, 0), task(2, 0), task(3, 0), task(2, 1))
    assert heard(backend, 1.5) == [(1.5, -2, 0), (1.5, -3, 0), (1.5, -4, 0)]
    sent(backend, task(4, 0))  # the next worker is there at 1.375 + 3
    assert heard(backend) == [(7.0, 4, 0), (8.75, 2, 1)]
    assert backend.busy_s.tolist() == [1.25 + 2.5, 8.5]


def test_a_function_that_dies_takes_nobody_with_it() -> None:
    backend = VirtualBackend(
        1, ALONE, workers="function", faults=lambda each: Fault(dies=True) if each.round else None
    )
    sent(backend, task(1, load=0.5), task(0))
    assert heard(backend) == [(0.5, -2, 0), (1.0, 0, 0)]


def test_a_restart_fails_at_once_what_is_owed_and_nothing_else() -> None:
    backend = VirtualBackend(1, ALONE, restart_s=0.25)
    sent(backend, task(0), task(1), task(2))
    assert heard(backend, 0.5) == []
    backend.cancel(1, [0])
    backend.restart(0)
    sent(backend, task(3))
    assert heard(backend) == [(0.5, -1, 0), (0.5, -3, 0), (1.75, 3, 0)]
    assert backend.busy_s.tolist() == [1.5]
    assert isinstance(backend, RestartingBackend)


def test_a_function_is_nobody_to_be_replaced() -> None:
    backend = VirtualBackend(2, Sluggish(), workers="function", restart_s=5.0)
    assert not isinstance(backend, RestartingBackend)
    sent(backend, task(0, 0), task(0, 1))
    sent(backend, task(1, 1))
    assert heard(backend) == [(10.0, 0, 0), (10.0, 0, 1), (10.0, 1, 1)]


def test_an_answer_on_its_way_outlives_its_worker() -> None:
    backend = VirtualBackend(1, ALONE, message_s=0.5)
    sent(backend, task(0))
    assert heard(backend, 1.75) == []  # done at 1.5
    backend.restart(0)
    assert heard(backend) == [(2.0, 0, 0)]


@dataclass(frozen=True)
class Sluggish:
    """Ten times as slow until it is restarted."""

    fresh: dict[int, float] = field(default_factory=dict)
    n: int = 2

    def latency_s(self, worker: int, *, round: int, at: float) -> float:  # noqa: ARG002
        return 0.0

    def seconds(self, worker: int, *, round: int, at: float, done: float, load: float) -> float:  # noqa: ARG002
        return load if at >= self.fresh.get(worker, math.inf) else 10 * load

    def restarted(self, worker: int, *, at: float) -> Pace:
        return Sluggish({**self.fresh, worker: at})


def test_a_pace_that_knows_restarts_is_told() -> None:
    backend = VirtualBackend(2, Sluggish())
    assert heard(backend, 2.0) == []
    backend.restart(1)
    sent(backend, task(0, 0), task(0, 1))
    assert heard(backend) == [(3.0, 0, 1), (12.0, 0, 0)]


def test_it_refuses_what_it_cannot_do() -> None:
    for wrong, argument in (
        ({"n": 3}, "pace"),
        ({"n": 2, "workers": "thread"}, "workers"),
        ({"n": 2, "message_s": -1.0}, "message_s"),
    ):
        with pytest.raises(ParameterError, match=f"`{argument}`"):
            VirtualBackend(pace=EVEN, **wrong)
    backend = VirtualBackend(2, EVEN)
    with pytest.raises(ParameterError, match="`worker`"):
        backend.dispatch(0, [task(0, 0), task(0, 2)])
    with pytest.raises(ParameterError, match="`tasks`"):
        backend.dispatch(0, [task(0, 0), task(1, 0)])
    assert heard(backend) == []
    backend.close()
    backend.close()
    with pytest.raises(WorkerError, match="closed"):
        backend.receive(0.0)


def test_functions_take_the_recorded_times_to_the_last_bit() -> None:
    rng = np.random.default_rng(0)
    times, loads = rng.uniform(0.7, 3.0, (3, 5)), rng.uniform(0.0, 1.0, 5)
    profile = DelayProfile.from_times(times, meta=ProfileMeta(base_load=0.3, alpha=1.7))
    for round in range(6):
        backend = VirtualBackend(5, latency_pace(profile), workers="function")
        tasks = [task(round, i, load=loads[i]) for i in range(5)]
        backend.dispatch(round, tasks)
        due = profile.times_at(loads, round=round % 3)
        assert sorted(due) == [at for at, *_ in heard(backend)]


# ---- bounded staleness, driven by hand: the recursion, and the figures of a recording ------------


def seconds_with_slack(backend: VirtualBackend, slack: int, clocks: int, load: float) -> float:
    """Run workers that begin clock t when all others have completed t - slack; 1 clock a task."""
    n = len(backend.busy_s)
    completed, begun = np.zeros(n, dtype=int), np.zeros(n, dtype=int)
    while completed.min() < clocks:
        may = (begun == completed) & (begun < clocks) & (begun - completed.min() <= slack)
        for worker in np.flatnonzero(may):
            backend.dispatch(begun[worker], [task(int(begun[worker]), int(worker), load=load)])
            begun[worker] += 1
        answer = backend.receive(math.inf)
        assert answer is not None
        completed[answer.worker] += 1
    return backend.now


def recursion(times: FloatArray, slack: int, clocks: int) -> float:
    """Return the end of the slowest worker's last clock (defined clock by clock)."""
    ends = [np.zeros(times.shape[1])]
    for t in range(clocks):
        gate = ends[t - slack].max() if t >= slack else 0.0
        ends.append(np.maximum(ends[t], gate) + times[t % len(times)])
    return float(ends[-1].max())


@given(
    times=st.lists(st.lists(st.floats(0.1, 9.0), min_size=3, max_size=3), min_size=1, max_size=5),
    slack=st.integers(0, 3),
    workers=st.sampled_from(["resident", "function"]),
)
def test_slack_takes_as_long_as_its_recursion(
    times: list[list[float]], slack: int, workers: str
) -> None:
    profile = DelayProfile.from_times(times)
    backend = VirtualBackend(3, latency_pace(profile, alpha=1.5), workers=workers)
    due = recursion(profile.times_at(0.25, alpha=1.5), slack, 6)
    assert seconds_with_slack(backend, slack, 6, 0.25) == pytest.approx(due, abs=1e-12)


@pytest.mark.parametrize(
    ("alpha", "slack", "work", "due_s"),
    [
        (1.12, 0, 1, 48.2392),  # uncoded
        (1.12, 0, 2, 24.1794),  # two clocks of work in each
        (1.12, 1, 1, 31.8063),
        (1.12, 30, 1, 29.2193),  # nobody waits
        (60.0, 0, 1, 55.1392),
        (60.0, 1, 1, 38.0695),
    ],
)
def test_the_figures_of_a_recording(
    recorded_profiles: Path, alpha: float, slack: int, work: int, due_s: float
) -> None:
    name = "cnn-canada-batch2048-load0.000-30rounds-d.csv"
    profile = read_profile(recorded_profiles / name)
    backend = VirtualBackend(256, latency_pace(profile, alpha=alpha), workers="function")
    took_s = seconds_with_slack(backend, slack, 30 // work, work / 256)
    assert took_s == pytest.approx(due_s, abs=1e-4)
    times = profile.times_at(work / 256, alpha=alpha)
    assert took_s == pytest.approx(recursion(times, slack, 30 // work), abs=1e-9)


# ---- whatever is sent, cancelled and restarted --------------------------------------------------


@given(data=st.data(), workers=st.sampled_from(["resident", "function"]))
def test_every_task_is_answered_once_or_cancelled(data: st.DataObject, workers: str) -> None:
    pace = ByRound(latencies_s=[[0.25, 0.0, 1.0]], rates=[[1.0]])
    faults = RandomFaults(seed=data.draw(st.integers(0, 99)), fail=0.2, die=0.2)
    backend = VirtualBackend(
        3, pace, workers=workers, message_s=0.125, faults=faults, restart_s=0.5
    )
    owed: set[tuple[int, int, int]] = set()
    attempts = itertools.count()
    last_at = 0.0

    def hear(until: float) -> None:
        nonlocal last_at
        for event in iter(lambda: backend.receive(until), None):
            assert isinstance(event, Arrival | Failure)
            assert last_at <= event.at <= until
            last_at = event.at
            owed.remove((event.round, event.worker, event.attempt))

    can = ["send", "send", "cancel", "wait"]
    can += ["restart"] * isinstance(backend, RestartingBackend)
    for _ in range(data.draw(st.integers(1, 12))):
        what = data.draw(st.sampled_from(can))
        round, worker = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 2))
        if what == "send":
            attempt = next(attempts)
            load = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
            sent(backend, task(round, worker, load=load, attempt=attempt))
            owed.add((round, worker, attempt))
        elif what == "cancel":
            backend.cancel(round, [worker])
            owed = {each for each in owed if each[:2] != (round, worker)}
        elif what == "restart":
            backend.restart(worker)
        else:
            hear(backend.now + data.draw(st.sampled_from([0.0, 0.25, 1.0])))
    hear(1e6)
    assert owed == set()
