"""Recording: every worker awaited, loads in turns, failures kept, what load costs recovered."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from seqgc.errors import ParameterError, WorkerError
from seqgc.ports import Arrival, Failure, Notice, Observer, Seen, Task
from seqgc.profiles import DelayProfile, lint
from seqgc.training import RecordingPlan, TorchComputeFactory
from seqgc.training.record import FAILED, LATE, record_profile
from seqgc.worker import run_task
from seqgc.workers import custom, local
from tests.kit import at_some_pace
from tests.training.reference import make_model

BATCH = 16
ALPHA = 0.5
RTT_S = 0.01

Seconds = Callable[[int, int, float], float]  # (round, worker, load) -> seconds


def steady(round: int, worker: int, load: float) -> float:
    return 1.0 + worker / 10 + round / 1000 + ALPHA * load


class Workers:
    """A backend by the book, on a virtual clock; ``seconds`` below 0 are failures."""

    def __init__(self, seconds: Seconds) -> None:
        self.seconds = seconds
        self.now = 100.0
        self.rounds: list[tuple[Task, ...]] = []
        self.cancelled: list[tuple[int, tuple[int, ...]]] = []
        self.closed = 0
        self.sizes: set[int] = set()  # of the results
        self._events: list[Arrival | Failure] = []

    def __call__(self, n: int, factory: TorchComputeFactory) -> Workers:
        self.n, self._compute = n, factory()
        return self

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        if not tasks[0].items:
            return self._answer_at_once(tasks)
        assert [task.worker for task in tasks] == list(range(self.n))
        self.rounds.append(tuple(tasks))
        for task in tasks:
            took = self.seconds(round, task.worker, load_of(task))
            about = {"round": round, "worker": task.worker, "attempt": 0}
            at = self.now + abs(took)
            if took < 0:
                self._events.append(Failure(**about, at=at, reason="the worker fell over"))
            else:
                results, _ = run_task(task, self._compute) or ({}, {})
                self.sizes |= {result.size for result in results.values()}
                self._events.append(Arrival(**about, at=at, results=results))
        self._events.sort(key=lambda event: event.at)
        return [self.now] * len(tasks)

    def _answer_at_once(self, tasks: Sequence[Task]) -> Sequence[float]:
        left_at = self.now
        for task in tasks:
            at = self.now + RTT_S * (1 + task.worker)
            address = {"round": task.round, "worker": task.worker, "attempt": 0}
            self._events.append(Arrival(**address, at=at, results={}))
        return [left_at] * len(tasks)

    def receive(self, until: float) -> Arrival | Failure | None:
        if self._events and self._events[0].at <= until:
            self.now = max(self.now, self._events[0].at)
            return self._events.pop(0)
        self.now = until
        return None

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        self.cancelled.append((round, tuple(workers)))

    def close(self) -> None:
        self.closed += 1


def points_of(task: Task) -> tuple[int, ...]:
    ((part,),) = (item.parts for item in task.items)
    return tuple(part.points.tolist())


def load_of(task: Task) -> float:
    return len(points_of(task)) / BATCH


def record(
    workers: Workers,
    *,
    n: int = 3,
    rounds: int = 4,
    loads: Sequence[float] = (0, 0.5, 1),
    observers: Sequence[Observer] = (),
    **options: float,
) -> list[DelayProfile]:
    model = make_model(batch_size=BATCH)
    plan = RecordingPlan(model=model, rounds=rounds, loads=loads, **options)
    return record_profile(plan, custom(n, workers), observers=observers)


def test_times_are_those_of_the_workers_and_alpha_is_what_load_costs() -> None:
    workers = Workers(lambda _round, worker, load: steady(0, worker, load))
    profiles = record(workers, rounds=4)
    assert [p.meta.base_load for p in profiles] == [1 / BATCH, 0.5, 1.0]
    for profile in profiles:
        expected = [[steady(0, worker, profile.meta.base_load) for worker in range(3)]] * 4
        np.testing.assert_allclose(profile.times, expected, rtol=1e-12)
        assert not profile.status.any()
        assert profile.meta.alpha == pytest.approx(ALPHA, rel=1e-9)
        assert (profile.meta.batch, profile.meta.model) == (BATCH, "net")
        assert profile.meta.provider == "custom"
        assert profile.meta.rtt_s == pytest.approx(2 * RTT_S)  # the median of three
    assert workers.closed == 1


def test_loads_take_turns_and_who_begins_moves_on() -> None:
    workers = Workers(steady)
    record(workers, rounds=2, loads=(1, 0.5, 0.25), warmup=1)
    seen = [{load_of(task) for task in tasks} for tasks in workers.rounds]
    low, middle, high = {0.25}, {0.5}, {1.0}
    assert seen == [low, middle, high, middle, high, low, high, low, middle]


def test_a_drift_of_the_workers_is_not_taken_for_load() -> None:
    drifting = Workers(lambda round, _worker, _load: 1.0 + 0.2 * round)
    profiles = record(drifting, rounds=9, warmup=0)
    assert profiles[0].meta.alpha == pytest.approx(0.0, abs=0.05)
    assert np.ptp(profiles[0].times) > 4, "there is no drift to resist"


def test_a_slope_that_only_noise_can_have_is_kept_as_none_at_all() -> None:
    faster = Workers(lambda _round, _worker, load: 2.0 - load)
    assert [p.meta.alpha for p in record(faster)] == [0.0] * 3
    assert record(Workers(steady), loads=(0.5,))[0].meta.alpha is None


def test_warm_up_rounds_are_played_and_left_out() -> None:
    def slow_at_first(round: int, worker: int, load: float) -> float:
        return 30.0 if round < 6 else steady(round, worker, load)

    cold = Workers(slow_at_first)
    profiles = record(cold, rounds=3, warmup=2, timeout_s=40.0)
    assert len(cold.rounds) == 3 * (2 + 3)
    assert max(p.times.max() for p in profiles) < 2
    assert record(Workers(slow_at_first), rounds=3, warmup=1)[0].times.max() == 30.0


def test_every_worker_computes_its_load_of_one_batch_starting_at_its_own_place() -> None:
    workers = Workers(steady)
    record(workers, n=4, rounds=1, loads=(0, 0.25, 2), warmup=0)
    one, quarter, double = workers.rounds
    assert [len(points_of(task)) for task in one] == [1] * 4
    batch = [point for task in quarter for point in points_of(task)]
    assert len(set(batch)) == BATCH, "four quarters make the batch"
    for task in double:
        points = points_of(task)
        assert points == points[:BATCH] * 2, "the batch, twice round"
    ((part,),) = (item.parts for item in quarter[2].items)
    np.testing.assert_array_equal(part.coefficients, np.full(4, 1 / BATCH))
    assert part.pieces[:2] == (part.weights.size, 1), "the gradient and the loss"
    assert workers.sizes == {sum(part.pieces)}


def test_a_worker_that_fails_is_recorded_with_the_time_at_which_that_was_known() -> None:
    def one_falls(round: int, worker: int, load: float) -> float:
        return -7.0 if worker == 1 and round >= 3 else steady(round, worker, load)

    profile = record(Workers(one_falls), rounds=2)[0]
    assert profile.status.tolist() == [[0, FAILED, 0]] * 2
    assert profile.times[:, 1] == pytest.approx([7.0, 7.0])
    assert profile.meta.alpha == pytest.approx(ALPHA, rel=1e-2)
    assert [f.rule for f in lint(profile)] == ["often-failed", "silent-worker"]


def test_a_worker_that_is_too_late_is_cancelled_and_its_answer_belongs_to_no_other_round() -> None:
    def one_hangs(round: int, worker: int, load: float) -> float:
        return 11.0 if (round, worker) == (1, 2) else steady(0, worker, load)

    workers = Workers(one_hangs)
    (profile,) = record(workers, rounds=3, loads=(0.5,), warmup=0, timeout_s=10.0)
    assert profile.status.tolist() == [[0, 0, 0], [0, 0, LATE], [0, 0, 0]]
    assert profile.times[:, 2] == pytest.approx([steady(0, 2, 0.5), 10.0, steady(0, 2, 0.5)])
    assert workers.cancelled == [(1, (2,))]


def test_when_nobody_answers_the_cause_is_told_and_the_backend_closed() -> None:
    fallen = Workers(lambda round, _worker, _load: -1.0 if round == 4 else 1.0)
    with pytest.raises(WorkerError, match=r"round 4 \(load 1\): the worker fell over"):
        record(fallen)
    assert fallen.closed == 1
    silent = Workers(lambda _round, _worker, _load: math.inf)
    with pytest.raises(WorkerError, match=r"round 0 .* time limit"):
        record(silent)
    assert silent.closed == 1


def test_progress_is_told_after_every_round() -> None:
    told: list[tuple[object, int]] = []
    workers = Workers(steady)

    def watch(seen: Seen) -> None:
        if isinstance(seen, Notice) and seen.kind == "round":
            assert seen.fields["total"] == 9
            told.append((seen.fields["done"], len(workers.rounds)))

    record(workers, rounds=2, warmup=1, observers=[watch])
    assert told == [(round, round) for round in range(1, 10)]


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"n": 0}, "workers"),
        ({"n": 2.0}, "workers"),
        ({"rounds": 0}, "rounds"),
        ({"warmup": -1}, "warmup"),
        ({"warmup": 10_001}, "warmup"),
        ({"loads": ()}, "loads"),
        ({"loads": (0, -0.5)}, "loads"),
        ({"loads": (0, math.nan)}, "loads"),
        ({"loads": (1e308,)}, "loads"),
        ({"loads": (1e300, 0)}, "loads"),
        ({"loads": (1e12,)}, "loads"),
        ({"loads": (0.5, 0.5)}, "loads"),
        ({"loads": (0, 1 / BATCH)}, "loads"),
        ({"timeout_s": 0.0}, "timeout_s"),
        ({"timeout_s": math.inf}, "timeout_s"),
        ({"precision": "float16"}, "precision"),
    ],
)
def test_an_argument_outside_its_rule_is_named_before_anything_is_played(
    options: dict[str, float], argument: str
) -> None:
    workers = Workers(steady)
    with pytest.raises(ParameterError) as caught:
        record(workers, **options)
    assert caught.value.argument == argument
    assert workers.rounds == []


def test_what_is_injected_into_local_workers_is_recorded() -> None:
    at_some_pace(assert_recorded, 1.0, 5.0, 20.0)


def assert_recorded(unit_s: float) -> None:
    """The delays are deterministic, and far above the time that computing takes."""

    def injected(round: int, worker: int, load: float) -> float:
        return unit_s * (0.06 + 0.04 * worker + 0.02 * round + 0.4 * load)

    plan = RecordingPlan(model=make_model(batch_size=BATCH), rounds=2, loads=(0, 1))
    with local(3, delays=injected) as w:
        light, heavy = record_profile(plan, w)
    for profile, load in ((light, 0.0), (heavy, 1.0)):
        expected = [[injected(round, worker, load) for worker in range(3)] for round in range(2)]
        # A task reaches its worker a moment before the last one is sent, which starts the round.
        assert (profile.times > np.array(expected) - 0.02 * unit_s).all()
        assert np.median(profile.times - expected) < 0.1 * unit_s
        assert not profile.status.any()
    assert light.meta.alpha == pytest.approx(0.4 * unit_s, abs=0.15 * unit_s)
    assert light.meta.provider == "local"
