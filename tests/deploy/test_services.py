"""The cost of a plan on other services, against sums made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seqgc.costs import (
    Architecture,
    FunctionSetup,
    PlannedUse,
    Prices,
    ServiceCost,
    Traffic,
    compare_services,
    read_prices,
)

USE = PlannedUse(
    workers=4,
    rounds=100,
    jobs=100,
    seconds_per_task=36.0,
    function=FunctionSetup(memory_mb=2048, timeout_s=60.0),
    traffic=Traffic(where="inline", weights_bytes=0, result_bytes=0),
)


def compared(
    use: PlannedUse, prices: Prices | None = None, architecture: Architecture = "arm64"
) -> dict[str, ServiceCost]:
    stays = replace(use, resident=True)
    known = prices or read_prices("us-east-1")
    return {
        each.service: each
        for each in compare_services(use, stays, known, architecture=architecture)
    }


def test_an_hour_of_four_workers_costs_what_a_calculator_says() -> None:
    usd = {name: each.usd for name, each in compared(USE).items()}
    seconds, start_s = 4 * 3600.0, 4 * 2.5
    assert usd["functions"] == pytest.approx(
        (seconds + start_s) * 2 * 0.0000133334 + 400 * 0.0000002
    )
    # five functions one after the other: each is replaced after four fifths of its minute
    assert usd["resident"] == pytest.approx(
        (seconds + 75 * start_s) * 2 * 0.0000133334 + 4 * 75 * 0.0000002
    )
    vcpus = 2048 / 1769  # more than the 1 vCPU of a MicroVM of 2 GB
    rate = vcpus * 0.0000276944 + 2 * 0.0000036667
    assert usd["microvms"] == pytest.approx(seconds * rate + 4 * 2 * 0.0015467699)
    # 4.63 vCPUs: three machines of 2, or one of 8
    assert usd["managed"] == pytest.approx(3 * 2 * 0.03625 * 1.15 + 400 * 0.0000002)
    assert usd["machine"] == pytest.approx(8 * 0.03625 * 3602.5 / 3600)


def test_a_short_run_pays_a_minute_of_a_machine() -> None:
    short = compared(replace(USE, seconds_per_task=0.01))
    assert short["machine"].usd == pytest.approx(8 * 0.03625 / 60)
    assert short["managed"].usd == pytest.approx(3 * 2 * 0.03625 * 1.15 / 60 + 400 * 0.0000002)
    assert "for 60 s" in short["machine"].uses


def test_the_other_processor_has_other_machines_and_no_microvms_of_its_own() -> None:
    intel = compared(USE, architecture="x86_64")
    assert intel["machine"].usd == pytest.approx(8 * 0.044625 * 3602.5 / 3600)
    assert "c7i.2xlarge" in intel["machine"].uses
    assert intel["microvms"].usd == pytest.approx(compared(USE)["microvms"].usd)
    assert "only on arm64" in intel["microvms"].uses


@pytest.mark.parametrize(
    ("workers", "memory_mb", "machine", "managed", "microvm"),
    [
        (1, 128, "1 x c7g.large", "3 x c7g.large", "0.5 GB and 0.25 vCPU"),
        (55, 2048, "1 x c7g.16xlarge", "3 x c7g.8xlarge", "2 GB and 1.16 vCPU"),
        (256, 1769, "4 x c7g.16xlarge", "4 x c7g.16xlarge", "2 GB and 1 vCPU"),
        (1, 10240, "1 x c7g.2xlarge", "3 x c7g.large", "10 GB and 5.79 vCPU"),
    ],
)
def test_workers_get_what_is_as_large_as_their_functions(
    workers: int, memory_mb: int, machine: str, managed: str, microvm: str
) -> None:
    function = FunctionSetup(memory_mb=memory_mb, timeout_s=60.0)
    uses = {
        name: each.uses
        for name, each in compared(replace(USE, workers=workers, function=function)).items()
    }
    assert machine in uses["machine"]
    assert managed in uses["managed"]
    assert microvm in uses["microvms"]


def test_a_microvm_is_launched_again_after_eight_hours() -> None:
    long = replace(USE, rounds=1000)  # ten hours
    vcpus = 2048 / 1769
    rate = vcpus * 0.0000276944 + 2 * 0.0000036667
    assert compared(long)["microvms"].usd == pytest.approx(4 * 36000 * rate + 8 * 2 * 0.0015467699)


def test_bytes_cost_the_same_wherever_workers_run_except_on_one_machine() -> None:
    traffic = Traffic(where="s3", weights_bytes=10**6, result_bytes=3 * 2**28, master_outside=True)
    plain, moved = compared(USE), compared(replace(USE, traffic=traffic))
    # 400 answers of 0.75 GB, which base64 makes 1 GB; 400 GETs and 100 PUTs
    usd = 400 * 0.09 + 400 * 0.0000004 + 100 * 0.000005
    for name in ("functions", "resident", "microvms", "managed"):
        before, after = plain[name].usd, moved[name].usd
        assert before is not None
        assert after is not None
        assert after - before == pytest.approx(usd)
    assert moved["machine"].usd == plain["machine"].usd


def test_what_is_unknown_has_no_price_and_a_reason() -> None:
    unknown = replace(read_prices("us-east-1"), microvm_vcpu_second=None, ec2_arm64_vcpu_hour=None)
    found = compared(USE, unknown)
    assert [name for name, each in found.items() if each.usd is None] == [
        "microvms", "managed", "machine",
    ]  # fmt: skip
    assert "does not have this region" in found["machine"].why
    dealt = compared(replace(USE, pieces=8))
    assert [name for name, each in dealt.items() if each.usd is None] == ["functions", "managed"]
    assert "stay" in dealt["functions"].why
    assert compared(replace(USE, seconds_per_task=None)) == {}
