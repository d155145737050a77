"""What a run has cost, and a budget that it must not pass."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seqgc import workers
from seqgc.costs import (
    Budget,
    FunctionSetup,
    Meter,
    Prices,
    Traffic,
    Usage,
    estimate_run,
)
from seqgc.errors import BudgetError, ParameterError
from seqgc.ports import Arrival, Dispatch, Dispatched, Failure, LastingObserver, MiniTask, Seen
from seqgc.training import TrainingPlan, train
from tests.training.reference import make_model
from tests.training.test_adaptive import replayed

ONE_GB = FunctionSetup(memory_mb=1024, timeout_s=10.0)  # 20 s with the longest start
INLINE = Traffic(where="inline", weights_bytes=0, result_bytes=0)

# ---- a finished run -----------------------------------------------------------------------------

HEADER = {"event": "run", "at_s": 0.0, "schema": 1, "workers": 3}


def write(folder: Path, *lines: dict[str, object]) -> Path:
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in (HEADER, *lines))
    (folder / "events.jsonl").write_text(text)
    return folder


def dispatch(at: float, round: int, attempt: int = 0, **more: object) -> dict[str, object]:
    return {
        "event": "dispatch",
        "at_s": at,
        "round": round,
        "attempt": attempt,
        "jobs": [round],
        **more,
    }


def answer(
    kind: str, at: float, round: int, worker: int, took: float, attempt: int = 0
) -> dict[str, object]:
    about = {"round": round, "worker": worker, "attempt": attempt, "took_s": took}
    return {"event": kind, "at_s": at, **about}


def test_a_run_is_charged_by_what_its_events_say(tmp_path: Path) -> None:
    run = write(
        tmp_path / "run",
        dispatch(1.0, 0),
        answer("arrival", 1.625, 0, 0, 0.5),  # since its task left
        answer("failure", 1.8, 0, 1, 0.75),
        dispatch(2.0, 0, attempt=1, workers=[1]),
        answer("arrival", 2.25, 0, 1, 0.25, attempt=1),  # 0.25 s after it was sent again
        {"event": "cancel", "at_s": 3.0, "round": 0, "workers": [2]},  # after 2 s
        dispatch(4.0, 1),
        answer("arrival", 4.5, 1, 0, 0.5),
        answer("arrival", 4.5, 1, 1, 0.5),
        answer("arrival", 4.6, 1, 1, 0.6),  # a duplicate
        answer("arrival", 5.0, 1, 2, 1.0),
        {"event": "end", "at_s": 5.5, "outcome": "finished"},
    )
    estimate = estimate_run(run, function=ONE_GB)
    assert estimate.unanswered == 1
    # answered: 0.5 + 0.75 + 0.25 + 0.5 + 0.5 + 1.0 = 3.5 s
    assert estimate.likely == Usage(requests=7, gb_seconds=5.5)
    # and the failed one may start for 10 s and run on for 10 s, as the one that was cancelled
    assert estimate.at_most == Usage(requests=7, gb_seconds=42.75)
    warmed = estimate_run(run, function=ONE_GB, warm_ups=3)
    # No event tells of them: a start each, which may take 10 s, and at most 10 s.
    assert warmed.likely == Usage(requests=10, gb_seconds=13.0)
    assert warmed.at_most == Usage(requests=10, gb_seconds=102.75)


def test_a_late_answer_ends_a_cancelled_task(tmp_path: Path) -> None:
    run = write(
        tmp_path / "run",
        dispatch(0.0, 0),
        *(answer("arrival", 1.0, 0, worker, 1.0) for worker in (0, 1)),
        {"event": "cancel", "at_s": 1.0, "round": 0, "workers": [2]},
        answer("arrival", 4.0, 0, 2, 4.0),
        {**answer("drop", 4.0, 0, 2, 4.0), "reason": "late"},
    )
    estimate = estimate_run(run, function=ONE_GB)
    assert estimate.likely == estimate.at_most == Usage(requests=3, gb_seconds=6.0)


def test_traffic_is_by_task_and_by_job(tmp_path: Path) -> None:
    run = write(
        tmp_path / "run",
        dispatch(0.0, 0),
        *(answer("arrival", 1.0, 0, worker, 1.0) for worker in range(3)),
    )
    traffic = Traffic(where="directory", weights_bytes=100, result_bytes=7, results_stored=True)
    estimate = estimate_run(run, function=ONE_GB, traffic=traffic)
    expected = Usage(requests=3, gb_seconds=3.0, efs_read_bytes=321, efs_write_bytes=121)
    assert estimate.likely == estimate.at_most == expected
    several = estimate_run(run, function=ONE_GB, traffic=replace(traffic, weights_jobs=2))
    assert several.likely == expected
    assert several.at_most == replace(expected, efs_read_bytes=621)  # by new environments


def test_traffic_is_of_as_many_mini_tasks_as_a_worker_was_sent(tmp_path: Path) -> None:
    run = write(
        tmp_path / "run",
        dispatch(0.0, 0, mini_tasks=1),
        *(answer("arrival", 1.0, 0, worker, 1.0) for worker in range(3)),
        dispatch(1.0, 1, mini_tasks=[0, 1, 2]),
        *(answer("arrival", 2.0, 1, worker, 1.0) for worker in range(3)),
    )
    traffic = Traffic(
        where="directory",
        weights_bytes=100,
        weights_jobs=2,
        result_bytes=14,
        results_stored=True,
    )
    estimate = estimate_run(run, function=ONE_GB, traffic=traffic)
    # Two jobs' weights are written, and 3 + 0 + 1 + 2 results written and read. Five tasks read
    # weights that are new to their environments: of one job, or in fresh ones of one in the first
    # four, and of two in the last.
    likely = Usage(requests=6, gb_seconds=6.0, efs_read_bytes=542, efs_write_bytes=242)
    assert estimate.likely == likely
    assert estimate.at_most == replace(likely, efs_read_bytes=642)


def test_a_run_that_deals_what_is_missing_is_charged_for_what_its_workers_had(
    tmp_path: Path,
) -> None:
    sent: list[int] = []

    def watch(seen: Seen) -> None:
        if isinstance(seen, Dispatch):
            sent.extend(map(len, seen.assignment.values()))

    times = 1 + np.random.default_rng(0).pareto(1.0, (9, 6))
    models = [make_model("a"), make_model("b")]
    plan = TrainingPlan(models=models, scheme="ra-sgc:s=1,q=0.5,r=2", jobs_per_round=1, steps=3)
    train(plan, workers.custom(6, replayed(times)), run=tmp_path / "run", observers=[watch])
    assert 1 in sent
    assert 2 in sent, "something was dealt"
    traffic = Traffic(
        where="directory",
        weights_bytes=0,
        weights_jobs=2,
        result_bytes=20,
        results_stored=True,
    )
    likely = estimate_run(tmp_path / "run", function=ONE_GB, traffic=traffic).likely
    assert likely is not None
    assert likely.efs_write_bytes == 10 * sum(sent)


@pytest.mark.parametrize("text", [None, "", "{}\n", "no json", '{"event": "run", "schema": 9}\n'])
def test_what_is_no_run_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "events.jsonl").write_text(text)
    with pytest.raises(ParameterError, match="`run` must be"):
        estimate_run(tmp_path, function=ONE_GB)


# ---- a budget -----------------------------------------------------------------------------------

DOLLAR_A_SECOND = Prices(
    lambda_x86_64_gb_second=9.0,
    lambda_arm64_gb_second=1.0,
    lambda_million_requests=0.0,
    efs_elastic_read_gb=0.0,
    efs_elastic_write_gb=float(2**30),  # a dollar a byte
    s3_thousand_puts=0.0,
    s3_thousand_gets=0.0,
    transfer_out_gb=0.0,
)


def budget(
    max_usd: float,
    traffic: Traffic = INLINE,
    *,
    prices: Prices = DOLLAR_A_SECOND,
    warm_ups: int = 0,
) -> Budget:
    meter = Meter(function=ONE_GB, traffic=traffic)
    meter.warm_up(warm_ups)
    return Budget(max_usd, meter=meter, prices=prices, architecture="arm64")


def send(
    watch: Budget,
    round: int,
    *workers: int,
    attempt: int = 0,
    at: float = 0.0,
    every: float = 0.0,  # seconds from task to task
    minis: int = 1,
) -> None:
    task = MiniTask(job=round, slot=0, chunks=np.array([0]), coefficients=np.ones(1))
    assignment = dict.fromkeys(workers, (task,) * minis)
    watch(Dispatch(round=round, attempt=attempt, assignment=assignment))
    watch(
        Dispatched(
            round=round,
            attempt=attempt,
            workers=workers,
            left_at=tuple(at + every * i for i in range(len(workers))),
        )
    )


def arrive(watch: Budget, round: int, worker: int, *, at: float, attempt: int = 0) -> None:
    watch(Arrival(round=round, worker=worker, attempt=attempt, at=at, results={}))


def test_a_round_leaves_only_if_its_worst_fits() -> None:
    watch = budget(44.0)
    send(watch, 0, 0, 1)  # at worst $40
    assert watch.committed_usd == 40.0
    arrive(watch, 0, 0, at=1.5)
    arrive(watch, 0, 1, at=2.0)
    assert (watch.spent_usd, watch.committed_usd) == (3.5, 3.5)
    send(watch, 1, 0, 1, at=2.0)  # 3.5 + 40
    arrive(watch, 1, 0, at=2.25)
    arrive(watch, 1, 1, at=2.25)
    assert watch.spent_usd == 4.0
    send(watch, 2, 0, 1, at=2.25)  # 4 + 40, exactly
    arrive(watch, 2, 0, at=2.375)
    arrive(watch, 2, 1, at=2.25)
    with pytest.raises(BudgetError, match=r"stopped before round 3, which could cost \$40\.0+:"):
        send(watch, 3, 0, 1)


def test_stragglers_under_way_count_for_a_start_and_until_the_timeout() -> None:
    watch = budget(79.0)
    send(watch, 0, 0, 1)
    arrive(watch, 0, 0, at=1.0)  # worker 1 straggles: it may cost $20
    send(watch, 1, 0, 1, at=1.0)
    arrive(watch, 1, 0, at=2.0)
    arrive(watch, 1, 1, at=2.0)
    assert watch.committed_usd == 23.0
    with pytest.raises(
        BudgetError, match=r"\$3\.0+ is spent and \$20\.0+ reserved for the functions that"
    ) as info:
        send(watch, 2, 0, 1, 2)
    assert (info.value.round, info.value.spent_usd) == (2, 3.0)
    arrive(watch, 0, 1, at=4.0)  # the late answer
    assert watch.committed_usd == 7.0
    send(watch, 2, 0, 1, 2)


def test_each_function_is_charged_from_when_its_own_task_left() -> None:
    watch = budget(100.0)
    send(watch, 0, 0, at=1.0)
    arrive(watch, 0, 0, at=2.0)
    assert watch.spent_usd == 1.0
    send(watch, 1, 0, 1, at=5.0, every=3.0)  # it took 3 s to send one
    arrive(watch, 1, 0, at=8.0)
    assert watch.spent_usd == 4.0
    send(watch, 1, 1, attempt=1, at=9.0)
    arrive(watch, 1, 1, at=9.5)  # to the first attempt
    assert watch.spent_usd == 5.5
    arrive(watch, 1, 1, attempt=1, at=11.0)
    assert watch.spent_usd == 7.5


def test_failures_and_further_attempts_count_and_duplicates_do_not() -> None:
    watch = budget(100.0)
    send(watch, 0, 0)
    watch(Failure(round=0, worker=0, attempt=0, at=2.0, reason="x"))
    assert watch.spent_usd == 20.0  # the function of a broken connection may start, and run on
    send(watch, 0, 0, attempt=1, at=2.0)
    arrive(watch, 0, 0, attempt=1, at=5.0)
    arrive(watch, 0, 0, attempt=1, at=6.0)
    assert watch.spent_usd == 23.0


def test_an_answer_s_cold_start_is_charged_beyond_the_timeout_and_no_more() -> None:
    watch = budget(100.0)
    send(watch, 0, 0, 1)
    arrive(watch, 0, 0, at=13.0)  # 4 s of a start, which are billed too, and 9 s
    assert watch.spent_usd == 13.0
    arrive(watch, 0, 1, at=50.0)
    assert watch.spent_usd == 33.0


def test_weights_are_charged_once_per_job_when_they_are_published() -> None:
    watch = budget(100.0, Traffic(where="directory", weights_bytes=3, result_bytes=0))
    send(watch, 4, 0)  # jobs 0 to 4
    assert watch.spent_usd == 15.0
    send(watch, 4, 1, attempt=1)
    assert watch.spent_usd == 15.0


def test_weights_that_are_published_anew_are_charged_for_each_group_of_tasks(
    tmp_path: Path,
) -> None:
    """A job is sent in two parts, one of which is sent again: three versions at most."""
    once = Traffic(where="directory", weights_bytes=3, result_bytes=0)
    anew = replace(once, versions=2)
    for traffic, times in ((once, 1), (anew, 3)):
        watch = budget(100.0, traffic)
        for worker, attempt in ((0, 0), (1, 0), (1, 1)):
            send(watch, 0, worker, attempt=attempt)
        assert watch.spent_usd == 3 * times
        parts = [dispatch(1.0, 0, workers=[0]), dispatch(1.5, 0, workers=[1])]
        run = write(tmp_path / "run", *parts, dispatch(2.0, 0, attempt=1, workers=[1]))
        estimate = estimate_run(run, function=ONE_GB, traffic=traffic)
        assert estimate.at_most.efs_write_bytes == 3 * times


def test_an_environment_that_may_have_just_started_is_charged_for_all_weights_of_a_task() -> None:
    prices = replace(DOLLAR_A_SECOND, s3_thousand_gets=1000.0)  # a dollar each
    with pytest.raises(ParameterError, match="`weights_jobs` must be an integer >= 1; got 0"):
        Traffic(where="s3", weights_bytes=9, weights_jobs=0, result_bytes=1)
    traffic = Traffic(where="s3", weights_bytes=9, weights_files=2, weights_jobs=3, result_bytes=1)
    watch = budget(100.0, traffic, prices=prices)
    for job in range(3):
        send(watch, job, 0, minis=3)
        arrive(watch, job, 0, at=1.0)
    assert watch.spent_usd == 3 * (1.0 + 2 * 3)
    send(watch, 3, 0, minis=1)
    arrive(watch, 3, 0, at=1.0)
    assert watch.spent_usd == 3 * (1.0 + 2 * 3) + 1.0 + 2


def test_the_warm_up_is_charged_before_it_is_sent() -> None:
    traffic = Traffic(where="directory", weights_bytes=3, result_bytes=0)
    watch = budget(83.0, traffic, warm_ups=3)  # each a start, and to the time-out; no weights
    assert (watch.spent_usd, watch.committed_usd) == (60.0, 60.0)
    send(watch, 0, 0)  # $20, and $3 for the weights
    assert watch.committed_usd == 83.0
    with pytest.raises(
        ParameterError, match=r"`max_usd` must be at least \$60\.0+, the highest cost"
    ):
        budget(59.0, traffic, warm_ups=3)


def test_a_resumed_run_goes_on_with_what_was_spent_and_what_was_under_way() -> None:
    traffic = Traffic(where="directory", weights_bytes=3, result_bytes=0)
    before, after = budget(100.0, traffic), budget(100.0, traffic)
    assert isinstance(before, LastingObserver), "or no checkpoint remembers it"
    send(before, 0, 0, 1)  # $20 each, and $3 for the weights
    arrive(before, 0, 0, at=5.0)
    assert (before.memory["committed_usd"], before.memory["open_usd"]) == (28.0, 20.0)
    after.recall(before.memory)
    assert after.committed_usd == 31.0, "the weights in flight are published again"
    send(after, 7, 0, 1, 2)  # of the jobs before it all weights but these have been paid for
    assert after.committed_usd == 94.0
    with pytest.raises(BudgetError, match=r"\$34\.0+ is spent and \$60\.0+ reserved"):
        send(after, 8, 0)
    with pytest.raises(
        BudgetError, match=r"not resumed: .* may have spent \$31\.0+ of a budget of \$30"
    ):
        budget(30.0, traffic).recall(before.memory)


def test_one_s_own_machines_cost_nothing() -> None:
    watch = Budget(0.0)
    send(watch, 0, 0, 1, 2)
    assert watch.committed_usd == 0.0


@pytest.mark.parametrize("amount", [-0.01, float("nan")])
def test_an_amount_that_is_none_is_refused(amount: float) -> None:
    with pytest.raises(ParameterError, match="`max_usd` must be an amount"):
        Budget(amount)
