"""What functions that stay cost: their time, idle or not, and what is left of their leases."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from seqgc.backends.lambda_ import Staying
from seqgc.costs import (
    Budget,
    FunctionSetup,
    Meter,
    PlannedUse,
    Prices,
    Traffic,
    Usage,
    estimate_plan,
    estimate_run,
)
from seqgc.errors import BudgetError, ParameterError
from seqgc.ports import Dispatch, LastingObserver, Leases, MiniTask

# 1 GB for 150 s: with the longest start 160 s, of which a dollar each.
FUNCTION = FunctionSetup(memory_mb=1024, timeout_s=150.0)
INLINE = Traffic(where="inline", weights_bytes=0, result_bytes=0)
NOTHING = dict.fromkeys(Prices.__dataclass_fields__, 0.0)


def budget(max_usd: float, traffic: Traffic = INLINE, **more: float) -> Budget:
    meter = Meter(function=FUNCTION, traffic=traffic, resident=True)
    prices = Prices(**NOTHING | {"lambda_arm64_gb_second": 1.0} | more)
    return Budget(max_usd, meter=meter, prices=prices, architecture="arm64")


def dispatch(round: int, job: int, *, workers: int = 2) -> Dispatch:
    mini = MiniTask(job=job, slot=0, chunks=np.arange(1), coefficients=np.ones(1))
    return Dispatch(round=round, attempt=0, assignment=dict.fromkeys(range(workers), (mini,)))


def leased(count: int, max_usd: float) -> tuple[Leases, Budget]:
    """So many functions that were let in by a budget."""
    leases = Leases(longest_s=FUNCTION.longest_s)
    watch = budget(max_usd)
    watch.watch(leases)
    for tag in range(count):
        leases.admit()
        leases.begin(tag, at=0.0)
    return leases, watch


def test_what_is_left_of_a_lease_is_reserved_until_its_function_has_ended() -> None:
    leases, watch = leased(2, 1000.0)
    assert (watch.spent_usd, watch.committed_usd) == (0.0, 320.0)
    leases.end(0, at=40.0)
    leases.end(0, at=99.0)  # told twice
    assert (watch.spent_usd, watch.committed_usd) == (40.0, 200.0)
    assert watch.memory == {"committed_usd": 200.0, "open_usd": 160.0}
    assert isinstance(watch, LastingObserver)


def test_one_that_was_hung_up_on_ends_soon_and_one_that_was_refused_never_began() -> None:
    leases, watch = leased(3, 1000.0)
    leases.end_by(0, at=50.0)
    leases.end_by(1, at=500.0)  # its time is up before
    assert watch.committed_usd == 50.0 + 160.0 + 160.0
    leases.refuse(1)
    leases.end(0, at=30.0)
    assert (watch.spent_usd, watch.committed_usd) == (30.0, 190.0)


def test_each_run_s_functions_are_its_own_and_a_budget_of_two_runs_counts_both() -> None:
    first, watch = leased(2, 700.0)
    second = Leases(longest_s=FUNCTION.longest_s)
    watch.watch(second)
    assert watch.committed_usd == 320.0  # whatever becomes of the first
    for tag in range(2):
        second.admit()
        second.begin(tag, at=0.0)
    assert watch.committed_usd == 640.0
    assert (first.open, second.open) == (2, 2)
    with pytest.raises(BudgetError):
        second.admit()


def test_no_function_is_let_in_whose_lease_could_pass_the_budget() -> None:
    leases, _ = leased(2, 370.0)
    with pytest.raises(BudgetError, match=r"could cost \$160.0+: .*, \$0.0+ is spent and \$320"):
        leases.admit()
    leases.end(0, at=50.0)  # 50 + 160, and 160 more
    leases.admit()
    with pytest.raises(ParameterError, match="max_usd"):
        budget(float("nan"))


def test_tasks_pay_for_what_they_move_and_weights_for_their_publication() -> None:
    traffic = Traffic(where="s3", weights_bytes=1000, result_bytes=10)
    prices = {"s3_thousand_gets": 1000.0, "s3_thousand_puts": 2000.0}  # a dollar, two dollars
    watch = budget(9.0, traffic, **prices)
    watch(dispatch(0, 0))  # 2 + 1 + 1
    assert watch.spent_usd == pytest.approx(4.0)
    watch(dispatch(1, 0))  # the weights are there
    assert watch.spent_usd == pytest.approx(6.0)
    with pytest.raises(BudgetError, match="stopped before round 2") as stopped:
        watch(dispatch(2, 1))
    assert stopped.value.round == 2
    assert watch.spent_usd == pytest.approx(6.0)  # it has not left


@pytest.mark.parametrize("resumed", [False, True])
def test_a_job_s_weights_are_published_once_though_jobs_take_turns(resumed: bool) -> None:
    prices = {"s3_thousand_puts": 1000.0}  # a dollar, and nothing for what is read
    traffic = Traffic(where="s3", weights_bytes=1000, result_bytes=10)
    watch = budget(100.0, traffic, **prices)
    first = 5000 if resumed else 0
    if resumed:
        watch.recall({"committed_usd": 0.0, "open_usd": 0.0})
    watch(Dispatch(round=first, attempt=0, assignment={0: ()}))  # a greeting, of no job
    for _ in range(3):
        for job in range(4):
            watch(dispatch(first + job, first + job))
    # In a resumed run the weights of a job in flight are published again.
    assert watch.spent_usd == pytest.approx(4.0 + resumed)


def test_a_resumed_run_goes_on_from_all_that_was_reserved() -> None:
    _, before = leased(2, 1000.0)
    leases, watch = leased(0, 400.0)
    watch.recall(before.memory)
    assert watch.committed_usd == 320.0
    with pytest.raises(BudgetError):
        leases.admit()
    with pytest.raises(BudgetError, match="not resumed"):
        leased(0, 300.0)[1].recall(before.memory)


def plan(seconds: float | None, **more: float) -> PlannedUse:
    return PlannedUse(
        workers=2,
        rounds=100,
        jobs=100,
        seconds_per_task=seconds,
        function=FUNCTION,
        traffic=INLINE,
        resident=True,
        **more,  # type: ignore[arg-type]
    )


def test_a_plan_is_paid_for_while_it_lasts_with_starts_in_time() -> None:
    # 100 s: one stay of 130 s each, and its start of 2.5 s.
    assert estimate_plan(plan(1.0)).likely == Usage(requests=2, gb_seconds=2 * 102.5)
    # 400 s are 4 stays.
    assert estimate_plan(plan(4.0)).likely == Usage(requests=8, gb_seconds=2 * 410.0)
    # At most, rounds of 3 s: 300 s are 3 stays of 120 s, and each function may start for 10 s and
    # run until its time-out.
    assert estimate_plan(plan(None, longest_round_s=3.0)).at_most == Usage(
        requests=6, gb_seconds=6 * 160.0
    )
    assert estimate_plan(plan(None)).likely is None


def test_a_run_was_paid_for_as_long_as_it_lasted(tmp_path: Path) -> None:
    lines = [
        {"event": "run", "at_s": 0.0, "schema": 1, "workers": 3},
        {"event": "dispatch", "at_s": 1.0, "round": 0, "attempt": 0, "jobs": [0]},
        {"event": "arrival", "at_s": 2.0, "round": 0, "worker": 0, "attempt": 0, "took_s": 1.0},
        {"event": "end", "at_s": 10.0, "outcome": "finished"},
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    estimate = estimate_run(tmp_path, function=FUNCTION, resident=True)
    assert estimate.likely == Usage(requests=3, gb_seconds=3 * 12.5)
    assert estimate.at_most == Usage(requests=3, gb_seconds=3 * 160.0)


@pytest.mark.parametrize("number", range(3))
def test_functions_leave_after_13_minutes_give_or_take_one_not_all_at_once(number: int) -> None:
    usual = Staying(seed=3)
    times = [usual.leave_s(worker, number) for worker in range(50)]
    assert 12 * 60 <= min(times) < 12.4 * 60
    assert 13.6 * 60 < max(times) <= 14 * 60
    assert times == [Staying(seed=3).leave_s(worker, number) for worker in range(50)]
    assert times != [Staying(seed=4).leave_s(worker, number) for worker in range(50)]
    assert usual.end_s == 885.0


def test_a_short_time_out_leaves_room_for_what_is_being_computed_when_a_lease_ends() -> None:
    short = Staying(limit_s=60.0, beat_s=1.0)
    assert short.end_s + 5 * short.beat_s < 60.0  # so many beats, and its process ends
    assert all(short.leave_s(worker, 0) < short.end_s for worker in range(50))
    with pytest.raises(ParameterError, match=r"`limit_s` .*6 heartbeats of 1 s"):
        Staying(limit_s=6.0)
