"""Tasks that fail, fall silent or were never sent: a run goes on while its time limit allows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from seqgc.errors import WireError, WorkerError
from seqgc.master import run
from seqgc.ports import (
    Action,
    Arrival,
    Close,
    Dispatch,
    Dispatched,
    Drop,
    Event,
    Failure,
    Finish,
    Restart,
    RoundRecord,
    Task,
)
from seqgc.rounds import ClosingRule, RoundPolicy
from seqgc.schemes import GC, Scheme, Uncoded, parse_scheme
from seqgc.search import ReplayBackend
from seqgc.testing import ChunkWorkload, ScriptedBackend
from tests.kit import SOAK, left

Address = tuple[int, int, int]
Turn = float | tuple[float, str]

SPECS = [
    "uncoded",
    "gc:s=8",
    "gc-rep:s=7",
    "gc-binary:s=8",
    "sr-sgc:B=2,W=3,lam=12",
    "sr-sgc-rep:B=1,W=2,lam=6",
    "m-sgc:B=2,W=3,lam=16",
    "m-sgc-rep:B=2,W=3,lam=15",
    "ra-sgc:s=0,q=0.5,r=2,late=drop",
    "ra-sgc:s=0,q=0.5,r=2",
    "ra-sgc:s=1,q=0.75,r=2,p=2",
    "sr-sgc:B=2,W=3,lam=12,late=take",
    "m-sgc:B=2,W=3,lam=16,late=take",
    "m-sgc-rep:B=2,W=3,lam=15,late=take",
]


class Script(dict[Address, Turn]):
    """What becomes of a task, worked out when it is sent."""

    def __init__(self, turn: Callable[[Address], Turn]) -> None:
        self._turn = turn

    def get(self, address: Address, default: object = None) -> Turn:  # type: ignore[override]  # noqa: ARG002
        return self._turn(address)


class Workers(ScriptedBackend):
    """Workers that can be replaced; their tasks go as ``turn`` says of (round, worker, attempt)."""

    def __init__(self, turn: Callable[[Address], Turn]) -> None:
        super().__init__(Script(turn))
        self.restarted: list[int] = []

    def restart(self, worker: int) -> None:
        self.restarted.append(worker)


def chance(seed: int, crashes: float) -> Callable[[Address], Turn]:
    def turn(address: Address) -> Turn:
        rng = Random(f"{seed} {address}")
        extra_s = rng.random()
        return (extra_s, "crashed") if rng.random() < crashes else 0.5 + extra_s

    return turn


def watched(
    scheme: Scheme,
    backend: ScriptedBackend,
    *,
    jobs: int = 1,
    timeout_s: float = 60.0,
    max_attempts: int = 3,
) -> list[Event | Action]:
    seen: list[Event | Action] = []
    rule = ClosingRule(timeout_s=timeout_s, max_attempts=max_attempts)
    run(RoundPolicy(scheme.start(jobs), rule), backend, observe=seen.append)
    return seen


def records(seen: list[Event | Action]) -> list[RoundRecord]:
    return [each.record for each in seen if isinstance(each, Close)]


# ---- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout_s", [60.0, math.inf])
@pytest.mark.parametrize("spec", SPECS)
def test_however_many_tasks_crash_all_jobs_are_done(spec: str, timeout_s: float) -> None:
    scheme = parse_scheme(spec, n=64)
    for seed in range(100 if SOAK else (timeout_s == 60.0) != spec.startswith("m-sgc:")):
        backend = ScriptedBackend(Script(chance(seed, 0.3)))
        seen = watched(scheme, backend, jobs=40, timeout_s=timeout_s)
        assert sum(isinstance(each, Finish) for each in seen) == 40, seed


def test_a_task_is_sent_again_at_once_and_then_after_waits_of_full_jitter() -> None:
    backend, gaps = Workers(lambda _: (0.0, "refused")), []
    sent: dict[tuple[int, int], float] = {}

    def watch(seen: Event | Action) -> None:
        if isinstance(seen, Dispatched):
            sent.update({(w, seen.attempt): seen.at - 100.0 for w in seen.workers})

    policy = RoundPolicy(Uncoded(n=300).start(1), ClosingRule(timeout_s=60.0))
    with pytest.raises(WorkerError, match="300 failed; first failure, worker 0: refused"):
        run(policy, backend, observe=watch)
    at = np.array([[sent[worker, attempt] for attempt in range(20)] for worker in range(300)])
    assert len(sent) == at.size, "20 times each"
    assert at.max() < 60.0
    gaps = np.diff(at, axis=1)
    assert (gaps[:, 0] == 0.0).all()
    for k in range(1, 8):
        bound_s = min(5.0, 0.1 * 2 ** (k - 1))
        assert gaps[:, k].max() <= bound_s
        assert gaps[:, k].min() <= 0.05 * bound_s
        assert abs(gaps[:, k].mean() - bound_s / 2) < 0.1 * bound_s
    for attempt in range(9, 20):
        assert at[:, attempt].min() >= 5.0 * (attempt - 8), "one in each twelfth of the limit"


@pytest.mark.parametrize("outage_s", [0.1, 0.3, 2.0, 10.0, 30.0, 50.0])
@pytest.mark.parametrize("took_s", [0.0, 0.5])
def test_a_run_outlasts_every_outage_that_is_shorter_than_its_limit(
    outage_s: float, took_s: float
) -> None:
    for seed in range(40 if SOAK else 1):

        def turn(_: Address) -> Turn:
            is_over = backend.clock.now() - 100.0 >= outage_s  # noqa: B023 (called before the next)
            return 1.0 if is_over else (took_s, "connection reset")

        backend = Workers(turn)
        watched(Uncoded(n=64 + seed), backend)
        most = Counter(worker for _, worker, _ in backend.sent).most_common(1)[0][1]
        assert most <= 20


def test_a_fifth_of_all_calls_may_fail() -> None:
    rounds = 10_000 if SOAK else 300
    seen = watched(Uncoded(n=8), ScriptedBackend(Script(chance(1, 0.2))), jobs=rounds)
    assert len(records(seen)) == rounds
    assert all(record.responded.all() for record in records(seen))


def test_max_attempts_bounds_what_the_round_can_do_without() -> None:
    def turn(address: Address) -> Turn:
        _, worker, _ = address
        return (0.1, "killed") if worker == 2 else 30.0

    backend = Workers(turn)
    (record,) = records(watched(GC(n=3, s=1), backend))
    assert [attempt for _, worker, attempt in backend.sent if worker == 2] == [0, 1, 2]
    assert record.responded.tolist() == [True, True, False]


def test_who_was_given_up_is_asked_again_when_it_is_needed() -> None:
    """Worker 1 never answers: then worker 2 must, which fails four times, too often for a spare."""

    def turn(address: Address) -> Turn:
        _, worker, attempt = address
        return (0.1 * worker, "killed") if worker == 1 or (worker == 2 and attempt < 4) else 9.0

    backend = Workers(turn)
    (record,) = records(watched(GC(n=3, s=1), backend, max_attempts=1))
    assert record.responded.tolist() == [True, False, True]
    sent = Counter(worker for _, worker, _ in backend.sent)
    assert (sent[0], sent[2]) == (1, 5)
    assert sent[1] > 1


@pytest.mark.parametrize("fails", [1, 3, 6])
def test_who_was_given_up_is_asked_again_when_another_is_silent(fails: int) -> None:
    """Worker 1 hangs for good: at the time limit worker 2, which a spare could replace, is due."""

    def turn(address: Address) -> Turn:
        _, worker, attempt = address
        if worker == 2 and attempt < fails:
            return 0.1, "reset"
        return math.inf if worker == 1 else 1.0

    backend = Workers(turn)
    (record,) = records(watched(GC(n=3, s=1), backend, timeout_s=30.0, max_attempts=1))
    assert record.responded.tolist() == [True, False, True]
    assert 30.0 < record.duration_s < 45.0
    assert [attempt for _, worker, attempt in backend.sent if worker == 2] == [*range(fails + 1)]


def test_the_same_failures_give_the_same_decisions() -> None:
    def times() -> list[float]:
        seen = watched(GC(n=16, s=3), ScriptedBackend(Script(chance(5, 0.6))), jobs=5)
        return [each.at for each in seen if isinstance(each, Dispatched)]

    assert len(times()) > 50
    assert times() == times()


@pytest.mark.parametrize("turn", [(0.01, "killed"), math.inf], ids=["fails", "hangs"])
@pytest.mark.parametrize("spec", ["uncoded", "gc:s=3", "m-sgc:B=1,W=2,lam=4"])
@pytest.mark.parametrize("limit_s", [0.5, 7.0, 60.0])
def test_when_nothing_works_it_ends_within_three_limits_with_one_cause_and_few_tasks(
    turn: Turn, spec: str, limit_s: float
) -> None:
    backend, n = Workers(lambda _: turn), 8
    with pytest.raises(WorkerError, match=r"; (first failure, )?worker 0") as caught:
        watched(parse_scheme(spec, n=n), backend, timeout_s=limit_s)
    assert caught.value.worker == 0
    assert backend.clock.now() - 100.0 <= 3 * limit_s
    assert len(backend.sent) <= 20 * n


# ---- silence -------------------------------------------------------------------------------------


def hung_until_restarted(*hung: int) -> Workers:
    def turn(address: Address) -> Turn:
        return math.inf if address[1] in set(hung) - set(backend.restarted) else 1.0

    backend = Workers(turn)
    return backend


def test_who_is_silent_is_replaced_and_asked_again_before_a_round_is_given_up() -> None:
    backend = hung_until_restarted(1, 3)
    seen = watched(Uncoded(n=4), backend, jobs=3, timeout_s=7.0)
    assert [record.duration_s for record in records(seen)] == [8.0, 1.0, 1.0]
    assert backend.restarted == [1, 3]
    assert backend.sent[4:6] == [(0, 1, 1), (0, 3, 1)]
    kinds = [type(each).__name__ for each in seen if isinstance(each, Restart | Dispatch)]
    assert kinds == ["Dispatch", "Restart", "Restart", "Dispatch", "Dispatch", "Dispatch"]


def test_where_workers_cannot_be_replaced_silent_ones_are_asked_again_all_the_same() -> None:
    seen: list[Event | Action] = []
    backend = ScriptedBackend({(0, 1, 0): math.inf, (1, 0, 0): 9.5})
    policy = RoundPolicy(Uncoded(n=2).start(2), ClosingRule(timeout_s=9.0))
    run(policy, backend, observe=seen.append)
    assert [record.duration_s for record in records(seen)] == [10.0, 9.5]
    assert not any(isinstance(each, Restart) for each in seen)
    assert [record.reason for record in records(seen)] == ["everyone", "everyone"]


def test_who_is_silent_over_rounds_that_do_without_is_replaced() -> None:
    backend = hung_until_restarted(3)
    seen = watched(GC(n=4, s=1), backend, jobs=12, timeout_s=4.5)
    assert backend.restarted == [3]
    answered = [bool(record.responded[3]) for record in records(seen)]
    assert answered == [False] * 5 + [True] * 7


def test_who_fails_or_answers_late_is_not_silent() -> None:
    def turn(address: Address) -> Turn:
        return {2: (0.1, "killed"), 3: 1.5}.get(address[1], 1.0)

    backend = Workers(turn)
    watched(GC(n=4, s=2), backend, jobs=30, timeout_s=4.5)
    assert backend.restarted == []


# ---- what nobody asked for -----------------------------------------------------------------------


def arrival(round: int, worker: int, attempt: int, at: float = 6.0) -> Arrival:
    return Arrival(round=round, worker=worker, attempt=attempt, at=at, results={})


@pytest.mark.parametrize("address", [(1, 0, 0), (0, 0, 1), (0, 0, -1), (7, 0, 3)])
def test_what_was_not_sent_is_dropped(address: Address) -> None:
    policy = RoundPolicy(GC(n=3, s=1).start(2), ClosingRule())
    policy.start()
    policy.on(left(0, 3, at=5.0))
    round, worker, attempt = address
    for event in (
        arrival(*address),
        Failure(round=round, worker=worker, attempt=attempt, at=6.0, reason="no"),
    ):
        (drop,) = policy.on(event)
        assert isinstance(drop, Drop)
        assert drop.reason == "nobody asked for it"
    assert policy.on(arrival(0, 0, 0)) == (), "it may still answer"


def test_while_a_task_waits_to_be_sent_again_an_answer_to_it_counts() -> None:
    policy = RoundPolicy(Uncoded(n=1).start(1), ClosingRule())
    policy.start()
    policy.on(left(0, 1, at=5.0))
    failed = Failure(round=0, worker=0, attempt=0, at=6.0, reason="reset")
    policy.on(failed)
    assert policy.on(replace(failed, attempt=1)) == []
    (drop,) = policy.on(replace(failed, attempt=1))
    assert isinstance(drop, Drop)
    (drop,) = policy.on(arrival(0, 0, 2))
    assert isinstance(drop, Drop)
    assert policy.wake_at > 6.0
    assert policy.on(arrival(0, 0, 0)) == ()
    assert policy.wake_at == 6.0


@pytest.mark.parametrize("worker", [3, -1])
def test_a_worker_that_there_is_not_is_refused(worker: int) -> None:
    policy = RoundPolicy(GC(n=3, s=1).start(2), ClosingRule())
    policy.start()
    policy.on(left(0, 3, at=5.0))
    with pytest.raises(WireError, match=rf"must satisfy 0 <= worker < 3; got {worker}"):
        policy.on(arrival(0, worker, 0))


class Gossip(ReplayBackend):
    """Tells the truth, and beside it what nobody asked for, with results that are all zero."""

    def __init__(self, scheme: Scheme, workload: ChunkWorkload, *, jobs: int, seed: int) -> None:
        self._rng, self._scheme = np.random.default_rng(seed), scheme
        times = 1 + self._rng.pareto(1.0, (jobs + scheme.delay, scheme.n))
        super().__init__(times, compute=workload.compute)
        self._past: list[Arrival] = []
        self._round = self.lies = 0

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        self._round, self._now = round, 0.0
        return super().dispatch(round, tasks)

    def receive(self, until: float) -> Arrival | None:
        if self._past and self._rng.random() < 0.5:
            return self._lie()
        event = super().receive(until)
        self._now = until if event is None else event.at
        if event is not None:
            self._past.append(event)
        return event

    def _lie(self) -> Arrival:
        rng, told = self._rng, self._past[self._rng.integers(len(self._past))]
        zero = {slot: np.zeros_like(result) for slot, result in told.results.items()}
        lie = replace(told, results=[zero, {}][rng.integers(2)], at=self._now)
        self.lies += 1
        match rng.integers(3):
            case 0:
                return lie  # what is settled or late, once more
            case 1:
                attempt, worker = int(rng.integers(1, 5)), int(rng.integers(self._scheme.n))
                return replace(lie, round=self._round, attempt=attempt, worker=worker)
            case _:
                return replace(lie, round=self._round + int(rng.integers(1, 5)))


@pytest.mark.parametrize(
    "spec", ["uncoded", "gc:s=2", "sr-sgc:B=1,W=2,lam=2", "m-sgc:B=1,W=2,lam=2"]
)
def test_answers_that_nobody_asked_for_never_reach_a_gradient(spec: str) -> None:
    scheme, jobs = parse_scheme(spec, n=6), 6
    for seed in range(25_000 if SOAK else 40):
        workload, seen = ChunkWorkload(scheme, seed=seed), list[Event | Action]()
        backend = Gossip(scheme, workload, jobs=jobs, seed=seed)
        policy = RoundPolicy(scheme.start(jobs), ClosingRule(mu=0.3))
        run(policy, backend, workload, observe=seen.append)
        assert len(workload.errors) == jobs, seed
        assert max(workload.errors.values()) <= 1e-10, seed
        assert sum(isinstance(each, Drop) for each in seen) == backend.lies, "all are counted"
