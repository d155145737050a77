"""Arithmetic on prices, against sums made by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from seqgc.costs import (
    PRICES_FILE,
    FunctionSetup,
    Meter,
    PlannedUse,
    Traffic,
    Usage,
    estimate_plan,
    prices_date,
    read_prices,
)
from seqgc.errors import ParameterError

MB = 2**20


def test_every_kind_of_usage_has_its_price() -> None:
    usage = Usage(
        requests=3_000_000,
        gb_seconds=90_000.0,
        efs_read_bytes=10 * 2**30,
        efs_write_bytes=5 * 2**30,
        s3_puts=2_000,
        s3_gets=10_000,
        transfer_out_bytes=2**31,
        restored_gb=1000.0,
    )
    bill = read_prices("us-east-1").bill(usage, architecture="arm64")
    assert bill.functions == pytest.approx(1.200006)  # 90,000 * 0.0000133334
    assert bill.requests == pytest.approx(0.60)  # 3 * 0.20
    assert bill.efs == pytest.approx(0.60)  # 10 * 0.03 + 5 * 0.06
    assert bill.s3 == pytest.approx(0.014)  # 2 * 0.005 + 10 * 0.0004
    assert bill.transfer == pytest.approx(0.18)  # 2 * 0.09
    assert bill.restores == pytest.approx(0.1397998)  # 1000 * 0.0001397998
    assert bill.usd == pytest.approx(2.7338058)


def test_functions_from_a_snapshot_start_sooner_and_pay_for_restored_memory() -> None:
    function = FunctionSetup(memory_mb=2048, timeout_s=60.0)
    use = PlannedUse(
        workers=4, rounds=5, jobs=5, seconds_per_task=2.0, function=function,
        traffic=Traffic(where="inline", weights_bytes=0, result_bytes=0), warm_ups=4,
    )  # fmt: skip
    restored = replace(use, function=replace(function, snapstart=True))
    for each, start_s, restores in ((use, 2.5, 0), (restored, 0.05, 4)):
        usage = estimate_plan(each).likely
        assert usage is not None
        assert usage.gb_seconds == pytest.approx(2 * (20 * 2.0 + 4 * start_s))
        assert usage.restored_gb == 2 * restores
    at_most = estimate_plan(restored).at_most
    assert at_most.restored_gb == 2 * 24  # any invocation may start an environment
    assert at_most.gb_seconds == estimate_plan(use).at_most.gb_seconds
    prices = read_prices("us-east-1")
    assert prices.snapshot_usd_a_day(function) == 0.0
    assert prices.snapshot_usd_a_day(restored.function) == pytest.approx(2 * 86_400 * 1.5046e-6)
    unknown = replace(prices, snapstart_restored_gb=None, snapstart_cached_gb_second=None)
    assert unknown.snapshot_usd_a_day(restored.function) is None
    with pytest.raises(ParameterError, match="`snapstart` must be false in a region"):
        unknown.bill(at_most, architecture="arm64")


def test_a_live_run_and_its_budget_count_a_restore_for_each_invocation() -> None:
    function = FunctionSetup(memory_mb=1024, timeout_s=10.0, snapstart=True)
    meter = Meter(function=function)
    meter.send(0, 0, tasks={0: 1, 1: 1}, jobs=[0], at=5.0)
    assert meter.at_most.restored_gb == 2.0
    meter.answer((0, 0, 0), at=6.5)
    assert (meter.at_most.restored_gb, meter.ended.restored_gb) == (2.0, 1.0)
    assert (meter.likely.restored_gb, meter.invocations(3).restored_gb) == (0.0, 3.0)


def test_x86_seconds_cost_what_x86_seconds_cost() -> None:
    usage = Usage(gb_seconds=60_000.0)
    bill = read_prices("us-west-2").bill(usage, architecture="x86_64")
    assert bill.usd == pytest.approx(1.000002)  # 60,000 * 0.0000166667


@pytest.mark.parametrize(
    ("seconds", "gb_seconds"),
    [
        (0.0, 0.0),
        (0.001, 0.002),
        (1.001, 2.002),
        (1.0011, 2.004),
        (5.0, 10.0),  # 2 s of it are the start's, which the time-out does not count
        (15.0, 26.0),
        (-1.0, 0.0),
    ],
)
def test_seconds_are_billed_by_the_millisecond_up_to_a_start_and_the_timeout(
    seconds: float, gb_seconds: float
) -> None:
    meter = Meter(function=FunctionSetup(memory_mb=2048, timeout_s=3.0))
    meter.send(0, 0, tasks={0: 1}, jobs=[0], at=0.0)
    meter.answer((0, 0, 0), at=seconds)
    assert meter.likely == meter.at_most == Usage(requests=1, gb_seconds=gb_seconds)


def test_the_recorded_system_s_plan() -> None:
    # Section 4 of the paper: 256 functions of 2.5 GB, 480 jobs in 481 rounds, 269,998 parameters.
    # Weights of 1,079,992 bytes are read from files once per task, results are answered inline.
    plan = PlannedUse(
        workers=256,
        rounds=481,
        jobs=480,
        seconds_per_task=1.2,
        function=FunctionSetup(memory_mb=2560, timeout_s=30.0),
        traffic=Traffic(where="directory", weights_bytes=1_079_992, result_bytes=1_079_996),
    )
    estimate = estimate_plan(plan)
    assert estimate.likely is not None
    assert estimate.likely.requests == 123_136  # 256 * 481
    # 123,136 * 1.2 s * 2.5 GB, and 256 starts of 2.5 s
    assert estimate.likely.gb_seconds == pytest.approx(371_008.0)
    assert estimate.likely.efs_read_bytes == 132_985_894_912  # 123,136 * 1,079,992
    assert estimate.likely.efs_write_bytes == 518_396_160  # 480 * 1,079,992
    assert estimate.at_most.gb_seconds == pytest.approx(12_313_600.0)  # 123,136 * 40 s * 2.5 GB
    bill = read_prices("us-east-1").bill(estimate.likely, architecture="x86_64")
    # 371,008 * 0.0000166667 + 0.123136 * 0.20 + 123.8528 GB * 0.03 + 0.482794 GB * 0.06
    assert bill.functions == pytest.approx(6.1834790)
    assert bill.requests == pytest.approx(0.0246272)
    assert bill.efs == pytest.approx(3.7445511, abs=1e-5)


def test_without_seconds_only_a_start_and_the_timeout_bound_a_plan() -> None:
    plan = PlannedUse(
        workers=1,
        rounds=1,
        jobs=1,
        seconds_per_task=None,
        function=FunctionSetup(memory_mb=1024, timeout_s=7.0),
        traffic=Traffic(where="inline", weights_bytes=0, result_bytes=0),
    )
    assert estimate_plan(plan).likely is None
    assert estimate_plan(plan).at_most.gb_seconds == 17.0


def test_a_plan_s_warm_up_runs_and_moves_nothing() -> None:
    plan = PlannedUse(
        workers=2,
        rounds=3,
        jobs=3,
        seconds_per_task=0.5,
        function=FunctionSetup(memory_mb=1024, timeout_s=7.0),
        traffic=Traffic(where="directory", weights_bytes=10, result_bytes=0),
        warm_ups=4,
    )
    estimate = estimate_plan(plan)
    moved = {"efs_read_bytes": 60, "efs_write_bytes": 30}
    # A warm-up is a start; at most each invocation has an environment started, in 10 s.
    assert estimate.likely == Usage(requests=10, gb_seconds=6 * 0.5 + 4 * 2.5, **moved)
    assert estimate.at_most == Usage(requests=10, gb_seconds=170.0, **moved)
    with pytest.raises(ParameterError, match="`warm_ups` must be an integer >= 0"):
        replace(plan, warm_ups=-1)


def test_results_through_the_store_are_written_once_and_read_once() -> None:
    files = Traffic(
        where="directory", weights_bytes=10 * MB, result_bytes=3 * MB, results_stored=True
    )
    assert files.task() == Usage(efs_read_bytes=13 * MB, efs_write_bytes=3 * MB)
    assert files.publication() == Usage(efs_write_bytes=10 * MB)
    objects = Traffic(
        where="s3", weights_bytes=10, weights_files=2, result_bytes=3, results_stored=True
    )
    assert objects.task() == Usage(s3_gets=3, s3_puts=1)
    assert objects.publication() == Usage(s3_puts=2)


def test_a_master_outside_pays_for_what_it_reads() -> None:
    inline = Traffic(where="inline", weights_bytes=0, result_bytes=300, master_outside=True)
    assert inline.task() == Usage(transfer_out_bytes=400)  # base64
    stored = Traffic(
        where="s3", weights_bytes=1, result_bytes=300, results_stored=True, master_outside=True
    )
    assert stored.task().transfer_out_bytes == 300


@pytest.mark.parametrize(
    ("made", "rule"),
    [
        (lambda: FunctionSetup(memory_mb=64, timeout_s=1.0), "`memory_mb` must satisfy 128"),
        (lambda: FunctionSetup(memory_mb=128, timeout_s=901.0), "`timeout_s` must satisfy 0 <"),
        (lambda: read_prices("moon-1"), r"`region` must be one of us-east-1.*add its prices"),
        (
            lambda: Traffic(where="inline", weights_bytes=0, result_bytes=1, results_stored=True),
            "`where` must be directory or s3",
        ),
        (
            lambda: read_prices("us-east-1").bill(Usage(), architecture="arm"),  # type: ignore[arg-type]
            r"`arch` must be x86_64 or arm64; got 'arm' \(did you mean 'arm64'\?\)",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(made: object, rule: str) -> None:
    with pytest.raises(ParameterError, match=rule):
        made()  # type: ignore[operator]


def test_the_file_names_its_day_and_its_sources() -> None:
    assert prices_date() >= date(2026, 1, 1)
    text = PRICES_FILE.read_text()
    assert text.count("https://aws.amazon.com/") == 4
    assert "compare it with the pages" in text


@pytest.mark.parametrize(
    ("old", "new", "rule"),
    [
        ("s3_thousand_puts = 0.005\n", "", "s3_thousand_puts"),
        ("= 0.005", '= "0.30"', "must be a price"),
        ("= 0.005", "= -0.30", "must be a price"),
        ("schema = 1", "schema = 2", "must have schema = 1"),
        ("schema = 1", "schema 1", "must be a TOML file"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, old: str, new: str, rule: str) -> None:
    text = PRICES_FILE.read_text()
    assert old in text
    path = tmp_path / "prices.toml"
    path.write_text(text.replace(old, new))
    with pytest.raises(ParameterError, match=rule):
        read_prices("us-east-1", path=path)
