"""What defences promise live, and what comparing all of them costs.

The live runs are of this machine's processes, with delays injected, against their own replay or
against `uncoded` in the same run; other work on the machine makes them no slower than it makes
these, up to a point.
"""

from __future__ import annotations

import os
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from experiments.slack import live as slack
from experiments.slow_worker import live as slow_worker
from seqgc.comparison import PacedWorkers, SoftmaxProblem, SoftmaxTrainees, trained
from seqgc.profiles import LAMBDA_CNN, latency_pace
from seqgc.rounds import Setting
from seqgc.schemes import parse_scheme

COMPARE = (sys.executable, "-m", "seqgc", "compare")
RECORDED = "cnn-canada-batch2048-load0.000-30rounds-d.csv"


def table(printed: str) -> list[dict[str, str]]:
    """The rows of a table of an experiment."""
    print(printed)
    header, *rows = [line.split(", ") for line in printed.splitlines()]
    return [dict(zip(header, row, strict=True)) for row in rows]


@pytest.mark.parametrize("backend", ["local", "lambda-local"])
def test_a_run_with_slack_takes_as_long_as_its_own_replay(
    backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    slack.main(["--backend", backend, "--defence", "bsp", "ssp:slack=1"])
    bsp, ssp = table(capsys.readouterr().out)
    assert abs(float(ssp["live/trace"]) - 1) <= 0.10
    assert float(ssp["live s"]) < 0.6 * float(bsp["live s"])


def test_one_slow_worker_is_levelled_or_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    slow_worker.main([])
    rows = {row["defence"].partition(":")[0]: row for row in table(capsys.readouterr().out)}
    accuracy = float(rows["uncoded"]["test accuracy"])
    for defence in ("lb-bsp", "antdt-nd"):
        assert float(rows[defence]["of uncoded"]) <= 0.6
        assert abs(float(rows[defence]["test accuracy"]) - accuracy) <= 0.01
    assert rows["antdt-nd"]["replaced"] == "1"


def test_many_trainings_cost_little_more_than_one() -> None:
    profile = LAMBDA_CNN.profile(40, workers=64, rng=np.random.default_rng(0))
    workers = PacedWorkers(pace=latency_pace(profile, alpha=14.0), kind="function")
    setting = Setting(scheme=parse_scheme("asp", n=64))
    trainings = [
        (SoftmaxTrainees(problem=SoftmaxProblem(batch=1024, seed=seed), models=1), rate)
        for rate in (1.0, 2.0, 4.0, 8.0)
        for seed in range(5)
    ]

    def cpu_s(some: list[tuple[SoftmaxTrainees, float]]) -> float:
        began = time.process_time()
        trained(setting, workers, some, target=1e-3, most=20)
        return time.process_time() - began

    pairs = [(cpu_s(trainings[:1]), cpu_s(trainings)) for _ in range(3)]
    one_s, twenty_s = (min(column) for column in zip(*pairs, strict=True))
    print(f"one training {one_s:.2f} s, twenty {twenty_s:.2f} s, ratio {twenty_s / one_s:.1f}")
    assert twenty_s <= 5 * one_s


def test_a_training_that_never_reaches_its_target_keeps_no_old_weights() -> None:
    profile = LAMBDA_CNN.profile(40, workers=16, rng=np.random.default_rng(0))
    workers = PacedWorkers(pace=latency_pace(profile, alpha=14.0), kind="function")
    setting = Setting(scheme=parse_scheme("asp", n=16))
    trainings = [
        (SoftmaxTrainees(problem=SoftmaxProblem(batch=1024, seed=seed), models=1), 4.0)
        for seed in range(5)
    ]

    def peak_bytes(most: int) -> int:
        tracemalloc.start()
        try:
            trained(setting, workers, trainings, target=1e-3, most=most)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    short, long = peak_bytes(70), peak_bytes(210)
    print(f"70 clocks {short / 1e6:.1f} MB, 210 clocks {long / 1e6:.1f} MB")
    assert long <= 1.5 * short


def compared(profile: Path, alpha: str, file: Path) -> bytes:
    """What `seqgc compare` prints, within 25 s of one core and half a gigabyte."""
    began = time.monotonic()
    with file.open("wb") as out:
        command = [*COMPARE, str(profile), "--alpha", alpha, "--json"]
        child = os.posix_spawn(
            COMPARE[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, out.fileno(), 1)]
        )
    _, status, used = os.wait4(child, 0)
    wall_s, cpu_s = time.monotonic() - began, used.ru_utime + used.ru_stime
    print(f"alpha {alpha}: {cpu_s:.1f} s of CPU in {wall_s:.1f} s, {used.ru_maxrss / 1024:.0f} MiB")
    assert status == 0
    assert cpu_s < 25
    assert used.ru_maxrss < 5e8 / 1024
    return file.read_bytes()


@pytest.mark.timeout(0)  # where other work is done, it takes as long as it takes
@pytest.mark.parametrize("alpha", ["1.12", "60"])
def test_every_defence_is_compared_in_25_seconds_and_half_a_gigabyte(
    alpha: str, recorded_profiles: Path, tmp_path: Path
) -> None:
    profile = recorded_profiles / RECORDED
    once = compared(profile, alpha, tmp_path / "once.json")
    assert compared(profile, alpha, tmp_path / "twice.json") == once
