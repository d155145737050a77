"""``seqgc profile`` as a user types it: records, lints, fits, counts, and refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seqgc.cli import main
from seqgc.profiles import (
    LAMBDA_CNN,
    DelayProfile,
    GilbertElliott,
    ProfileMeta,
    fit,
    read_profile,
    write_profile,
)
from tests.cli.refused import refused

Out = pytest.CaptureFixture[str]

QUICK = ["-n", "2", "--rounds", "2", "--module", "mlp", "--batch-size", "32"]


@pytest.fixture(autouse=True)
def in_a_folder_with_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good.csv").write_text("1.0,1.1,5\n1.2,1.3,1.4\n1.4,1.5,1.7\n")
    Path("bad.csv").write_text("1,2\n3,0\n")
    Path("ragged.csv").write_text("1,2\n3\n")
    Path("constant.csv").write_text("1,1\n1,1\n")


def run(*arguments: str) -> int:
    return main(["profile", *arguments])


def told(capsys: Out) -> dict[str, object]:
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 1, "--json prints one object and nothing else"
    return json.loads(out)


# ---- recording ----------------------------------------------------------------------------------


def test_a_recording_is_written_and_reported_by_its_documented_keys(capsys: Out) -> None:
    options = ["--backend", "local", *QUICK, "--loads", "1,0"]
    assert run(*options, "-o", "p.npz", "--every-load", "--json") == 0
    report = told(capsys)
    profile = read_profile("p.npz")
    assert report["file"] == "p.npz"
    assert (report["rounds"], report["workers"]) == profile.times.shape == (2, 2)
    assert report["median_s"] == np.median(profile.times)
    assert report["alpha"] == profile.meta.alpha
    assert report["rtt_s"] == profile.meta.rtt_s
    assert profile.meta.rtt_s > 0
    assert report["load_model"]["loads"] == [1 / 32, 1.0]
    assert profile.meta.base_load == 1 / 32
    assert (profile.meta.batch, profile.meta.model) == (32, "mlp")
    assert report["other_files"] == ["p-load1.0.npz"]
    assert read_profile("p-load1.0.npz").meta.base_load == 1.0


def test_delays_of_a_file_are_injected_as_its_alpha_says(capsys: Out) -> None:
    injected = DelayProfile.from_times(
        [[1.0, 2.0], [1.5, 1.0], [9.0, 9.0]], meta=ProfileMeta(alpha=2.0)
    )
    write_profile(injected, path="delays.npz")
    options = [*QUICK, "--loads", "0,1", "--delays", "delays.npz", "--delay-scale", "0.1"]
    assert run(*options, "-o", "p.npz") == 0
    shown = capsys.readouterr().out
    assert "2 rounds of 2 workers at each load" in shown
    assert "s per unit of load" in shown
    profile = read_profile("p.npz")
    # 0.2 * 1 / 32 s more for the one data point, and whatever else the machine has to do. Without
    # the scale it would be ten times as much.
    more = profile.times - [[0.1, 0.2], [0.15, 0.1]]
    assert -0.02 < more.min() < 0.7
    assert profile.meta.alpha == pytest.approx(0.2, abs=0.15)


# ---- looking at a recording ---------------------------------------------------------------------


def test_lint_says_what_is_suspicious_and_where(capsys: Out) -> None:
    times = np.random.default_rng(0).uniform(1, 1.3, (5, 6))
    times[2, 4] = 26.0
    write_profile(DelayProfile.from_times(times), path="late.npz")
    assert run("lint", "late.npz") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("warning (stall): row 2, column 4: took 26.000 s")
    assert lines[-1] == "late.npz: 0 errors, 1 warnings"
    assert run("lint", "late.npz", "--json") == 0
    report = told(capsys)
    assert (report["file"], report["errors"]) == ("late.npz", 0)
    (found,) = report["findings"]
    assert (found["rule"], found["severity"]) == ("stall", "warning")
    assert (found["row"], found["column"]) == (2, 4)


def test_lint_of_a_useless_recording_exits_with_1(capsys: Out) -> None:
    assert run("lint", "constant.csv") == 1
    assert "error (constant): all times are the same, 1.0 s" in capsys.readouterr().out
    assert run("lint", "constant.csv", "--json") == 1
    assert told(capsys)["errors"] == 1


@pytest.mark.filterwarnings("default")
def test_a_profile_in_milliseconds_is_asked_about_in_one_line(capsys: Out) -> None:
    times = 1000 * np.random.default_rng(0).uniform(1.1, 1.3, (5, 6))
    np.savetxt("ms.csv", times, delimiter=",")
    assert main(["replay", "ms.csv", "--scheme", "uncoded", "--alpha", "1"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "loading" not in line]
    assert len(said) == 1
    assert "ms.csv: the median answer took 12" in said[0]
    assert "milliseconds" in said[0]


def test_fit_prints_a_generator_that_evaluates_to_itself(capsys: Out) -> None:
    profile = LAMBDA_CNN.profile(40, workers=32, rng=np.random.default_rng(1))
    write_profile(profile, path="p.npz")
    assert run("fit", "p.npz", "--json") == 0
    report = told(capsys)
    expected = fit(profile)
    assert eval(report["generator"]["repr"], {"GilbertElliott": GilbertElliott}) == expected
    assert report["generator"]["p_bad"] == expected.p_bad
    assert report["load_model"] is None
    assert run("fit", "p.npz") == 0
    assert f"{expected.p_bad:.4f}" in capsys.readouterr().out


def test_fit_names_a_worker_that_is_always_slow(capsys: Out) -> None:
    times = np.exp(0.1 * np.random.default_rng(0).standard_normal((20, 8)))
    times[:, 5] *= 3
    write_profile(DelayProfile.from_times(times), path="slow.csv")
    assert run("fit", "slow.csv") == 0
    shown = " ".join(capsys.readouterr().out.split())
    factor = fit(read_profile("slow.csv")).factors[5]
    assert f"workers 5 ({factor:.2f} times as long)" in shown


def test_fit_of_several_loads_says_what_load_costs(capsys: Out) -> None:
    base = LAMBDA_CNN.profile(40, workers=32, rng=np.random.default_rng(1))
    for load in (0.0, 0.5, 1.0):
        write_profile(DelayProfile.from_times(base.times + 3 * load), path=f"{load}.csv")
    files = ["0.0.csv", "0.5.csv", "1.0.csv"]
    assert run("fit", *files, "--base-loads", "0,0.5,1", "--per-worker", "--json") == 0
    report = told(capsys)
    assert report["load_model"]["alpha"] == pytest.approx(3.0)
    assert report["generator"]["alpha"] == pytest.approx(3.0)
    assert report["load_model"]["r_squared"] == pytest.approx(1.0)
    assert report["load_model"]["worker_alpha"] == pytest.approx([3.0] * 32)
    assert run("fit", *files, "--base-loads", "0,0.5,1", "--per-worker") == 0
    shown = capsys.readouterr().out
    assert "3.0000 s per unit of load (95% interval 3.0000 … 3.0000)" in " ".join(shown.split())
    assert "100.00% (R²), over 3 loads" in shown


def test_what_load_costs_is_said_with_its_interval_where_no_generator_fits(capsys: Out) -> None:
    # As ResNet-18 on Lambda: a few workers answer at once, most of them ten times as late.
    rng = np.random.default_rng(1)
    times = np.where(rng.random((20, 32)) < 0.05, 1.5, 16.0) + rng.random((20, 32))
    files = [f"{load}.csv" for load in (0.0, 0.5, 1.0)]
    for file in files:
        write_profile(DelayProfile.from_times(times + 0.1 * rng.random(times.shape)), path=file)
    assert run("fit", *files, "--base-loads", "0,0.5,1", "--json") == 0
    report = told(capsys)
    assert report["generator"] is None
    assert report["problem"].startswith("no generator fits: with mu = 1, 80% of the answers are")
    low, high = report["load_model"]["alpha_interval"]
    assert low < report["load_model"]["alpha"] < high
    assert low < 0 < high
    assert run("fit", *files, "--base-loads", "0,0.5,1") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "no generator fits" in shown
    assert (
        f"95% interval {low:.4f} … {high:.4f}: the cost of load cannot be told from noise" in shown
    )
    assert run("fit", files[0]) == 2  # there is nothing else to say
    assert "raise mu" in capsys.readouterr().err


def test_lint_and_fit_name_a_recording_of_calls_that_crashed(capsys: Out) -> None:
    base = LAMBDA_CNN.profile(20, workers=32, rng=np.random.default_rng(1)).times
    files = [f"{load}.csv" for load in (0.0, 0.5, 1.0)]
    for file, seconds in zip(files, (0.01 * base, 15 + base, 16 + base), strict=True):
        write_profile(DelayProfile.from_times(seconds), path=file)
    assert run("lint", *files, "--base-loads", "0,0.5,1", "--json") == 0
    assert [found["rule"] for found in told(capsys)["findings"]] == ["crashed"]
    assert run("fit", *files, "--base-loads", "0,0.5,1") == 0
    assert "warning (crashed): the recording at base load 0: " in capsys.readouterr().out
    assert run("fit", *files, "--base-loads", "0,0.5,1", "--json") == 0
    assert [found["rule"] for found in told(capsys)["findings"]] == ["crashed"]


def test_stats_counts_stragglers(capsys: Out) -> None:
    assert run("stats", "good.csv", "--mu", "1", "--max-window", "2", "--json") == 0
    report = told(capsys)
    assert (report["rounds"], report["workers"]) == (3, 3)
    assert report["rate"] == pytest.approx(1 / 9)
    assert report["rate_after_straggling"] == 0
    assert (report["bursts"], report["smallest_s"]) == ([1], 1)
    assert report["smallest_lam"] == [{"B": 1, "W": 2, "bursty": 1, "arbitrary": 1}]
    assert run("stats", "good.csv", "--mu", "0.1") == 0
    shown = capsys.readouterr().out
    assert "33.33%, at tolerance mu = 0.1" in shown
    assert "(B, W, λ)-bursty" in shown


def test_what_is_wrong_with_one_of_several_recordings_is_said_with_its_file(capsys: Out) -> None:
    heavy = ProfileMeta(base_load=1.0, alpha=9.0)  # 9 s for answers that took less
    write_profile(replace(read_profile("good.csv"), meta=heavy), path="heavy.npz")
    assert run("fit", "good.csv", "heavy.npz", "--base-loads", "0,1") == 0
    assert "error (alpha): heavy.npz: 9 of 9 answers" in capsys.readouterr().out


# ---- refusals -----------------------------------------------------------------------------------

BAD = {
    "": "`output` must name a new .npz file; got None (-o FILE.npz)",
    "-o good.csv": "`output` must end in .npz",
    "-o taken.npz": "`output` must not exist: seqgc profile never overwrites a file",
    "-o p.npz --loads 0,1 --every-load": "got 'p-load1.0.npz'",
    "-o nowhere/p.npz": "`output` must be in an existing folder",
    "-o /proc/p.npz": "`output` must be a file that can be written (",
    f"-o {300 * 'p'}.npz": "`output` must be a file that can be written (File name too long)",
    "-o p.npz --backend cloud": "'lambda-local', 'lambda' or 'dask'; got 'cloud'",
    "-o p.npz -n nan": "got 'nan'",
    "-o p.npz -n 0": "`workers` should be greater than or equal to 1; got 0",
    "-o p.npz --rounds 0": "`rounds` must be an integer >= 1 and <= 262144; got 0",
    "-o p.npz --warm-up-rounds -1": "`warmup` must be an integer >= 0 and <= 10000; got -1",
    f"-o p.npz --warm-up-rounds {10**30}": "`warmup` must be an integer >= 0 and <= 10000; got",
    "-o p.npz --timeout-s 0": "`timeout_s` should be greater than 0; got 0.0",
    "-o p.npz --loads 0,x": "`loads` must be numbers, separated by commas; got 'x'",
    "-o p.npz --loads ,": "`loads` must be numbers from 0 to 1000, at least one",
    "-o p.npz --loads 0,nan": "`loads` must be numbers from 0 to 1000",
    "-o p.npz -n 1 --loads 1e308": "`loads` must be numbers from 0 to 1000",
    "-o p.npz --loads 1e300,0": "`loads` must be numbers from 0 to 1000",
    "-o p.npz --loads 0,0": "`loads` must give different numbers of data points",
    "-o p.npz --batch-size 0": "`models.0.batch_size` should be greater than or equal to 1",
    "-o p.npz --module digits-cm": "(did you mean 'digits-cnn'?)",
    "-o p.npz --delays gone.csv": "gone.csv: not a delay profile",
    "-o p.npz --delays good.csv -n 4": "`delays.source` must have a column for each of the 4",
    "-o p.npz --delays good.csv --delay-scale 0": "`delays.scale` should be greater than 0",
    "lint": "Missing argument",
    "lint gone.npz": "gone.npz: not a delay profile: No such file",
    "lint bad.csv": "bad.csv: row 1, column 1 (round, worker; from 0): a time must be 1e-09 to",
    "lint good.csv --plugin nowhere": "`plugin` must be importable (ModuleNotFoundError",
    "lint ragged.csv": "ragged.csv: row 1 (line 2) has 1 columns, the lines above 2",
    "lint taken.npz": "taken.npz: not a delay profile",
    "fit bad.csv": "row 1, column 1",
    "fit constant.csv": "constant.csv: nothing to fit",
    "fit silent.npz good.csv --base-loads 0,1": "silent.npz, good.csv: no worker answered in",
    "fit good.csv --mu 0": "`mu` must be a finite number > 0; got 0.0",
    "fit good.csv good.csv": "`profiles` must be recorded at two different base loads or more",
    "fit good.csv good.csv --base-loads 0": "`base_loads` must be 2 numbers, one for each file",
    "fit good.csv bad.csv --base-loads 0,1": "bad.csv: row 1, column 1",
    "stats ragged.csv": "ragged.csv: row 1 (line 2)",
    "stats good.csv --mu -1": "`mu` must be a finite number >= 0; got -1.0",
    "stats good.csv --max-window 0": "`max_window` must be an integer >= 1 and <= 5; got 0",
    "statistics good.csv": "stats",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_one_line_exit_2_and_nothing_written(line: str, capsys: Out) -> None:
    Path("taken.npz").write_text("something else")
    Path("p-load1.0.npz").write_text("something else")
    silent = DelayProfile(times=np.ones((3, 3)), status=np.ones((3, 3), dtype=np.int8))
    write_profile(silent, path="silent.npz")
    assert BAD[line] in refused(capsys, "profile", *line.split())
