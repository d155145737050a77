"""The forecast, the budget and the bill of a run, which are one meter fed from three sources."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seqgc.costs import (
    START_S,
    Budget,
    Estimate,
    FunctionSetup,
    Meter,
    PlannedUse,
    Traffic,
    Usage,
    estimate_plan,
    estimate_run,
    read_prices,
)
from seqgc.errors import BudgetError
from seqgc.ports import Arrival, Dispatch, Dispatched, Failure, Leases, MiniTask, Notice, Seen
from seqgc.runs.folder import EventLog, log_functions

N, ROUNDS = 4, 6
FUNCTION = FunctionSetup(memory_mb=1536, timeout_s=10.0)
TRAFFICS = [
    Traffic(where="inline", weights_bytes=0, result_bytes=900, master_outside=True),
    Traffic(where="s3", weights_bytes=900, weights_files=2, result_bytes=7, results_stored=True),
    Traffic(where="directory", weights_bytes=10**6, result_bytes=7, weights_jobs=2, versions=3),
]
PRICES = read_prices()


def usd(usage: Usage | None) -> float:
    assert usage is not None
    return PRICES.bill(usage, architecture="arm64").usd


def limited(meter: Meter, max_usd: float = 100.0) -> Budget:
    return Budget(max_usd, meter=meter, prices=PRICES, architecture="arm64")


def sent(
    round: int, *workers: int, attempt: int = 0, at: float = 0.0, minis: int = 2
) -> list[Seen]:
    task = tuple(
        MiniTask(job=max(round - i, 0), slot=i, chunks=np.array([0]), coefficients=np.ones(1))
        for i in range(minis)
    )
    left_at = tuple(at + 0.01 * i for i in range(len(workers)))
    return [
        Dispatch(round=round, attempt=attempt, assignment=dict.fromkeys(workers, task)),
        Dispatched(round=round, attempt=attempt, workers=workers, left_at=left_at),
    ]


def came(round: int, worker: int, *, at: float, attempt: int = 0, fails: bool = False) -> Seen:
    if fails:
        return Failure(round=round, worker=worker, attempt=attempt, at=at, reason="x")
    return Arrival(round=round, worker=worker, attempt=attempt, at=at, results={})


def live_run(seed: int) -> Iterator[Seen]:
    """A run with slow, failed, repeated and missing answers, and duplicates."""
    random = np.random.default_rng(seed)
    for round in range(ROUNDS):
        at = 30.0 * round
        yield from sent(round, *range(N), at=at, minis=int(random.integers(3)))
        for worker in range(N):
            kind, took_s = random.integers(6), 0.05 + float(random.pareto(1.0))
            if kind == 0:  # never answered
                continue
            yield came(round, worker, at=at + took_s, fails=kind == 1)
            if kind == 1:
                yield from sent(round, worker, at=at + took_s, attempt=1)
                yield came(round, worker, at=at + took_s + 0.1234567, attempt=1)
            if kind == 2:
                yield came(round, worker, at=at + took_s + 1.0)


@pytest.mark.parametrize("traffic", TRAFFICS, ids=lambda each: each.where)
@pytest.mark.parametrize("seed", range(5))
def test_budget_and_bill_agree_on_the_events_of_a_run(
    tmp_path: Path, traffic: Traffic, seed: int
) -> None:
    meter, log = Meter(function=FUNCTION, traffic=traffic), EventLog(tmp_path / "events.jsonl")
    meter.warm_up(N)
    budget = limited(meter)
    log(Notice(kind="run", fields={"workers": N}))
    for seen in live_run(seed):
        budget(seen)
        log(seen)
    log.close()
    bill = estimate_run(tmp_path, function=FUNCTION, traffic=traffic, warm_ups=N)
    assert bill.unanswered == meter.unanswered > 0
    assert budget.committed_usd == pytest.approx(usd(bill.at_most), abs=1e-9)
    assert usd(bill.likely) < budget.spent_usd < budget.committed_usd


@pytest.mark.parametrize("traffic", TRAFFICS, ids=lambda each: each.where)
@pytest.mark.parametrize("warm_ups", [0, N])
def test_forecast_budget_and_bill_agree_on_a_run_that_goes_as_planned(
    tmp_path: Path, traffic: Traffic, warm_ups: int
) -> None:
    """Weights are published once for each round; nobody answers, or all do after 1.5 s."""
    for answers in (False, True):
        folder = tmp_path / str(answers)
        folder.mkdir()
        plan = PlannedUse(
            workers=N,
            rounds=ROUNDS,
            jobs=ROUNDS,
            seconds_per_task=1.5,
            function=FUNCTION,
            traffic=(once := replace(traffic, versions=1)),
            warm_ups=warm_ups,
        )
        forecast, meter = estimate_plan(plan), plan.meter()
        budget, log = limited(meter), EventLog(folder / "events.jsonl")
        log(Notice(kind="run", fields={"workers": N}))
        for round in range(ROUNDS):
            starts_s = START_S if round == 0 and not warm_ups else 0.0
            events = sent(round, *range(N), at=9.0 * round, minis=once.weights_jobs)
            if answers:
                ends = [9.0 * round + 0.01 * worker + starts_s + 1.5 for worker in range(N)]
                events += [came(round, worker, at=ends[worker]) for worker in range(N)]
            for seen in events:
                budget(seen)
                log(seen)
        log.close()
        bill = estimate_run(folder, function=FUNCTION, traffic=once, warm_ups=warm_ups)
        assert budget.committed_usd == pytest.approx(usd(bill.at_most), abs=1e-9)
        if answers:
            assert usd(bill.likely) == pytest.approx(usd(forecast.likely), abs=1e-9)
            assert usd(meter.likely) == pytest.approx(usd(forecast.likely), abs=1e-9)
        else:
            assert usd(bill.at_most) == pytest.approx(usd(forecast.at_most), abs=1e-9)


def charged(traffic: Traffic, *, invocations: int, tasks: int, published: int) -> float:
    """What AWS charges if all invocations start an environment and run to their time-out."""
    billed_s = invocations * (10.0 + FUNCTION.timeout_s)
    usage = Usage(requests=invocations, gb_seconds=billed_s * FUNCTION.memory_mb / 1024)
    usage += traffic.task(fresh=True).times(tasks) + traffic.publication().times(published)
    return usd(usage)


@pytest.mark.parametrize("traffic", TRAFFICS, ids=lambda each: each.where)
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9999, 1.0])
def test_a_budget_holds_if_all_functions_run_to_their_time_out(
    traffic: Traffic, fails: bool, share: float
) -> None:
    """Nobody answers, or connections break early and the functions run on unseen."""
    first = charged(traffic, invocations=2 * N, tasks=N, published=1)
    max_usd = first * (1 + 3 * share)
    meter = Meter(function=FUNCTION, traffic=traffic)
    meter.warm_up(N)
    budget = limited(meter, max_usd)
    with pytest.raises(BudgetError, match=f"of the budget of .{max_usd:.6f}") as stopped:
        spend(budget, minis=traffic.weights_jobs, fails=fails)
    rounds = stopped.value.round
    invoked = {"tasks": N * rounds, "invocations": N + N * rounds}
    published = _versions(traffic, rounds)
    assert charged(traffic, **invoked, published=published) <= max_usd * (1 + 1e-9)
    later = {"tasks": N * (rounds + 1), "invocations": N + N * (rounds + 1)}
    assert charged(traffic, **later, published=_versions(traffic, rounds + 1)) > max_usd


def spend(budget: Budget, *, minis: int, fails: bool) -> None:
    for round in range(100):
        for seen in sent(round, *range(N), minis=minis):
            budget(seen)
        if fails:
            for worker in range(N):
                budget(came(round, worker, at=0.5, fails=True))


def _versions(traffic: Traffic, rounds: int) -> int:
    """How many versions are published in rounds of as many jobs as a task can have."""
    if traffic.versions == 1:
        return rounds
    return sum(min(round + 1, traffic.weights_jobs) for round in range(rounds))


def test_a_budget_holds_if_all_resident_functions_run_to_their_time_out() -> None:
    max_usd = 7.5 * charged(TRAFFICS[0], invocations=1, tasks=0, published=0)
    meter = Meter(function=FUNCTION, resident=True)
    budget, leases = limited(meter, max_usd), Leases(longest_s=FUNCTION.longest_s)
    budget.watch(leases)
    for tag in range(7):
        leases.admit()
        leases.begin(tag, at=0.0)
    with pytest.raises(BudgetError, match="stopped before another resident function was invoked"):
        leases.admit()
    assert budget.committed_usd == pytest.approx(max_usd * 7 / 7.5)


def test_budget_and_bill_agree_on_resident_functions(tmp_path: Path) -> None:
    traffic = Traffic(where="s3", weights_bytes=900, result_bytes=7)
    meter, log = Meter(function=FUNCTION, traffic=traffic, resident=True), tmp_path / "events.jsonl"
    budget, leases, events = limited(meter), Leases(longest_s=FUNCTION.longest_s), EventLog(log)
    budget.watch(leases)
    events(Notice(kind="run", fields={"workers": N}))
    for tag in range(N):
        leases.begin(tag, at=0.1 * tag)
    for seen in live_run(0):
        budget(seen)
        events(seen)
    leases.end(0, at=1.23456)
    leases.refuse(1)
    leases.end_by(2, at=4.0)
    events.close()
    log_functions(log, leases)
    bill = estimate_run(tmp_path, function=FUNCTION, traffic=traffic, resident=True)
    assert bill.at_most.requests == N - 1
    assert budget.committed_usd == pytest.approx(usd(bill.at_most), abs=1e-9)
    assert bill.unanswered == meter.unanswered > 0


def test_each_master_of_a_run_pays_for_its_warm_up_and_publishes_weights_again(
    tmp_path: Path,
) -> None:
    traffic = Traffic(where="s3", weights_bytes=900, weights_jobs=2, result_bytes=7)
    usages, memory = list[Estimate](), None
    for master in range(2):
        meter, log = Meter(function=FUNCTION, traffic=traffic), EventLog(tmp_path / "events.jsonl")
        meter.warm_up(N)
        budget = limited(meter)
        if memory is not None:
            budget.recall(memory)
        log(Notice(kind="resume" if master else "run", fields={"workers": N}))
        for seen in sent(master, *range(N)):
            budget(seen)
            log(seen)
        log.close()
        memory = budget.memory
        usages.append(estimate_run(tmp_path, function=FUNCTION, traffic=traffic, warm_ups=N))
        assert budget.committed_usd == pytest.approx(usd(usages[-1].at_most), abs=1e-9)
    assert usages[1].at_most.requests == 2 * usages[0].at_most.requests == 4 * N
    assert (usages[0].at_most.s3_puts, usages[1].at_most.s3_puts) == (1, 4)  # two in flight


@pytest.mark.parametrize("resident", [False, True])
def test_the_bound_of_a_plan_is_enough_to_begin_it(resident: bool) -> None:
    plan = PlannedUse(
        workers=N,
        rounds=1,
        jobs=1,
        seconds_per_task=1.0,
        function=FUNCTION,
        traffic=TRAFFICS[1],
        longest_round_s=0.1,
        resident=resident,
    )
    least = estimate_plan(plan.first_round).at_most
    assert least.gb_seconds == N * 20.0 * 1.5
    assert usd(least) <= usd(estimate_plan(plan).at_most)
    budget = limited(plan.meter(), usd(least) * (1 + 1e-9))
    if resident:
        budget.watch(leases := Leases(longest_s=FUNCTION.longest_s))
        for tag in range(N):
            leases.admit()
            leases.begin(tag, at=0.0)
    for seen in sent(0, *range(N), minis=1):
        budget(seen)
