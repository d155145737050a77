"""AntDT-ND on asynchronous workers: data are dealt out, and who stays slow is replaced."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

import numpy as np
import pytest

from seqgc.control import AntDTNDAsp, Persistence, ReplacingPolicy, TaskMonitor
from seqgc.errors import ParameterError
from seqgc.master import run
from seqgc.ports import Arrival, Dispatched, Failure, Notice, Restart, Seen, Task, Tick, Update
from seqgc.profiles import ByRound
from seqgc.profiles.slowdowns import SleepWindows
from seqgc.rounds import ClosingRule
from seqgc.schemes import parse_scheme
from seqgc.shards import AspDds, ShardPolicy
from seqgc.virtual import VirtualBackend
from tests.control.runs import virtual
from tests.policies.decisions import decided, decided_again
from tests.shards.applied import Applied, all_parts, named

N = 4
ONE = SleepWindows(n=N, intensity=0.75, probability=0.0)  # worker 0 takes 4 s, the others 1 s
SMALL = "antdt-nd-asp:per=60,act=30"


def restarts_of(seen: Sequence[Seen]) -> list[int]:
    return [each.worker for each in seen if isinstance(each, Restart)]


def test_who_stays_slow_is_replaced_once_and_the_run_is_as_fast_as_if_it_had_not_been() -> None:
    jobs = 300
    ours, shards = (virtual(spec, ONE.pace(), num_jobs=jobs) for spec in (SMALL, "asp-dds"))
    ((when, who),) = ours.restarts
    assert who == 0
    before = sum(ours.round_seconds[:when])
    assert 60 <= before < 66, "as soon as it has been slow for that long"
    lost = 60 * (1 - 1 / 4)  # parts that worker 0 would have done meanwhile, and others do
    assert ours.seconds == pytest.approx((jobs * N + lost) / N, abs=2)
    assert shards.seconds == pytest.approx(jobs * N / (N - 1 + 1 / 4), abs=5)


@pytest.mark.parametrize("M", [1, 7])
@pytest.mark.parametrize(("act", "at_work"), [(5.0, True), (3.0, False)])  # at 10 s, and at 12 s
def test_every_part_is_applied_once_though_a_worker_is_replaced_between_tasks_or_at_one(
    M: int, act: float, at_work: bool
) -> None:
    defence = AntDTNDAsp(n=N, M=M, per=10.0, act=act)
    policy, workload, seen = defence.policy(ClosingRule(), num_jobs=20), Applied(N), list[Seen]()
    backend = VirtualBackend(N, ONE.pace(), compute=named)
    run(policy, backend, workload, observe=seen.append)
    assert sorted(workload.parts) == all_parts(20, N)
    assert policy.rounds == 20
    assert restarts_of(seen) == [0]
    assert [each.worker for each in seen if isinstance(each, Failure)] == [0] * at_work
    another = defence.policy(ClosingRule(), num_jobs=20)
    assert decided_again(another, seen) == decided(seen), "told the same, it decides the same"


def test_slowness_that_does_not_last_or_is_below_lam_is_nobodys_end() -> None:
    rates = np.full((200, N), 1.0)
    rates[:8, 3] = 4.0  # half of a minute
    for times in (rates, [[1.4, 1.0, 1.0, 1.0]]):
        pace = ByRound(latencies_s=times, rates=[[0.0]])
        assert virtual(SMALL, pace, num_jobs=200).restarts == []
    pace = ByRound(latencies_s=[[1.4, 1.0, 1.0, 1.0]], rates=[[0.0]])
    assert virtual(SMALL + ",lam=1.2", pace, num_jobs=200).restarts != []


def test_a_run_that_is_shorter_than_the_window_replaces_nobody() -> None:
    spec = "antdt-nd-asp"
    ours, shards = (virtual(each, ONE.pace(), num_jobs=400) for each in (spec, "asp-dds"))
    assert ours.restarts == []
    assert ours.seconds == shards.seconds < 600


def test_the_papers_cluster_small() -> None:
    """Fig. 11 on 10 workers: a fifth of its rounds and clocks, a 25th of its windows."""

    def seconds(spec: str) -> float:
        runs = []
        for seed in range(3):
            sleeps = SleepWindows(
                n=10, intensity=0.16, clock_s=0.316, period_s=72.0, periods=8, seed=seed
            )
            runs.append(virtual(spec, sleeps.pace(), num_jobs=330).seconds)
        return mean(runs)

    asp, dds, nd = map(seconds, ("asp", "asp-dds", "antdt-nd-asp:per=24,act=12"))
    print(f"{asp:.0f}, {dds:.0f}, {nd:.0f} s")
    assert asp >= 2.5 * dds
    assert nd < 0.98 * dds


# ---- the parts of it ----------------------------------------------------------------------------


def test_a_busy_cluster_replaces_nobody_until_it_is_no_more() -> None:
    asked, when = list[int](), list[float]()

    def busy() -> bool:
        asked.append(len(asked))
        return len(asked) < 3

    rule = Persistence(lam=1.5, per=60.0, act=30.0, busy=busy)
    shards, monitor = ShardPolicy(N, ClosingRule(), num_jobs=200), TaskMonitor(N, window_s=60.0)
    run(
        ReplacingPolicy(shards, monitor=monitor, rule=rule),
        backend := VirtualBackend(N, ONE.pace()),
        observe=lambda seen: when.append(backend.now) if isinstance(seen, Restart) else None,
    )
    assert len(asked) == 3
    assert [120 <= at < 130 for at in when] == [True], "asked at 60, 90 and 120 s"


class Irreplaceable:
    """Workers that nobody can replace."""

    def __init__(self, backend: VirtualBackend) -> None:
        self._backend = backend

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        return self._backend.dispatch(round, tasks)

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        self._backend.cancel(round, workers)

    def receive(self, until: float) -> Arrival | Failure | None:
        return self._backend.receive(until)

    def close(self) -> None:
        self._backend.close()


def test_where_workers_cannot_be_replaced_it_goes_on_without_and_says_so_once() -> None:
    seen, backend = list[Seen](), VirtualBackend(N, ONE.pace())
    policy = parse_scheme(SMALL, n=N).policy(ClosingRule(), num_jobs=600)  # type: ignore[attr-defined]
    run(policy, Irreplaceable(backend), observe=seen.append)
    assert policy.done
    assert restarts_of(seen) == []
    (notice,) = [each for each in seen if isinstance(each, Notice)]
    assert (notice.kind, notice.fields) == (
        "warning",
        {
            "text": "worker 0 is 1.5 times as slow as the average for 60 s: "
            "workers of Irreplaceable cannot be replaced; the run continues"
        },
    )
    assert backend.now == virtual("asp-dds", ONE.pace(), num_jobs=600).seconds, "nothing is lost"


def test_with_functions_nobody_is_replaced_in_virtual_time_either() -> None:
    seconds = []
    for spec in (SMALL, "asp-dds"):
        backend = VirtualBackend(N, ONE.pace(), workers="function")
        run(parse_scheme(spec, n=N).policy(ClosingRule(), num_jobs=200), backend)  # type: ignore[attr-defined]
        seconds.append(backend.now)
    assert seconds[0] == seconds[1]


def test_a_worker_that_was_replaced_for_its_silence_is_measured_anew() -> None:
    """Its tasks of before, and its start, would make it a straggler for a while."""
    monitor = TaskMonitor(2, window_s=100.0)
    shards = ShardPolicy(2, ClosingRule(timeout_s=5.0), num_jobs=50)
    rule = Persistence(lam=1.5, per=100.0, act=1.0)
    policy = ReplacingPolicy(shards, monitor=monitor, rule=rule)
    policy.start()
    policy.on(Dispatched(round=0, attempt=0, workers=(0, 1), left_at=(0.0, 0.0)))
    for worker, at in ((0, 4.0), (1, 4.0)):
        policy.on(Arrival(round=0, worker=worker, attempt=0, at=at, results={}))
        policy.on(Dispatched(round=1, attempt=0, workers=(worker,), left_at=(at,)))
    assert monitor.seconds(100.0).known.tolist() == [True, True]
    policy.on(Arrival(round=1, worker=0, attempt=0, at=8.0, results={}))
    policy.on(Dispatched(round=2, attempt=0, workers=(0,), left_at=(8.0,)))
    actions = policy.on(Tick(at=9.0))
    assert restarts_of(actions) == [1]
    assert monitor.seconds(100.0).known.tolist() == [True, False]
    assert monitor.up_s.tolist() == [8.0, 0.0]


def test_what_is_not_used_is_not_measured() -> None:
    monitor = TaskMonitor(2, window_s=100.0)
    rule = Persistence(lam=1.5, per=100.0, act=1.0)
    shards = ShardPolicy(2, ClosingRule(), num_jobs=50)
    policy = ReplacingPolicy(shards, monitor=monitor, rule=rule)
    policy.start()
    policy.on(Dispatched(round=0, attempt=0, workers=(0, 1), left_at=(0.0, 0.0)))
    failure = Failure(round=0, worker=0, attempt=0, at=1.0, reason="fell")
    policy.on(failure)
    stray = Arrival(round=0, worker=0, attempt=0, at=30.0, results={})
    assert not any(isinstance(action, Update) for action in policy.on(stray))
    assert not monitor.seconds(100.0).known.any()


def test_a_resumed_run_has_its_shards_and_measures_anew() -> None:
    defence = AntDTNDAsp(n=N, M=2, per=10.0, act=1.0)
    first = defence.policy(ClosingRule(), num_jobs=30)
    seen = list[Seen]()

    class EnoughError(Exception):
        pass

    def stop(each: Seen) -> None:
        seen.append(each)
        if first.rounds == 6:
            raise EnoughError

    with pytest.raises(EnoughError):
        run(first, VirtualBackend(N, ONE.pace()), observe=stop)
    assert restarts_of(seen) == []
    kept = first.snapshot()
    plain = AspDds(n=N, M=2).policy(ClosingRule(), num_jobs=30)
    plain.restore(kept)
    second = defence.policy(ClosingRule(), num_jobs=30)
    second.restore(kept)
    assert second.snapshot() == plain.snapshot()
    when = list[float]()
    run(
        second,
        backend := VirtualBackend(N, ONE.pace()),
        observe=lambda each: when.append(backend.now) if isinstance(each, Restart) else None,
    )
    assert second.rounds == 30
    assert [10 <= at < 15 for at in when] == [True], "after as long as at the beginning"


def test_what_it_is_by_its_spec() -> None:
    defence = parse_scheme("antdt-nd-asp:M=3,lam=1.2,per=5,act=2", n=4)
    assert defence == AntDTNDAsp(n=4, M=3, lam=1.2, per=5.0, act=2.0)
    sizes = np.array([3, 3, 2, 2])
    assert defence.points_touched(sizes).tolist() == [3] * 4, "anybody may have any part"
    assert AntDTNDAsp(n=3) == AntDTNDAsp(n=3, M=1, lam=1.5, per=600.0, act=300.0)


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("M", 0, "`M` must satisfy 1 <= M"),
        ("lam", 0.5, "`lam` must be a finite number >= 1"),
        ("per", 0.0, "`per` must be a finite number > 0"),
        ("act", float("inf"), "`act` must be a finite number > 0"),
    ],
)
def test_what_cannot_be_is_refused(field: str, value: float, rule: str) -> None:
    with pytest.raises(ParameterError, match=rule):
        AntDTNDAsp(**{"n": 2, field: value})  # type: ignore[arg-type]
