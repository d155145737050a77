"""A sweep: one table of several settings on several profiles, which can be continued."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import seqgc
from seqgc.cli import main
from seqgc.errors import ParameterError
from seqgc.profiles import DelayProfile, ProfileMeta, named_profile, write_profile
from seqgc.search import ResultTable, latex_table, mean_interval, replay, sweep
from tests.cli.refused import refused

Out = pytest.CaptureFixture[str]
LAMBDA = "lambda-cnn:workers=4,rounds=6"


def recorded(seed: int = 0, *, rounds: int = 12) -> DelayProfile:
    times = 1 + np.random.default_rng(seed).exponential(size=(rounds, 4))
    return DelayProfile.from_times(times, meta=ProfileMeta(alpha=0.5))


def test_each_row_is_the_mean_of_the_replays_of_all_seeds() -> None:
    table = sweep(["uncoded", "gc-rep:s=1"], [LAMBDA], seeds=5)
    assert table["scheme"].tolist() == ["uncoded", "gc-rep:s=1"]
    for spec, jobs, job_s, runs_s in zip(
        *(table[name] for name in ("scheme", "jobs", "job_s", "runs_s")), strict=True
    ):
        runs = [replay(spec, named_profile(f"{LAMBDA},seed={k}")).runtime_s for k in range(5)]
        assert list(map(float, runs_s.split())) == runs
        assert job_s == pytest.approx(np.mean(runs) / jobs, rel=1e-12)
    assert (table["low_s"] <= table["job_s"]).all()
    assert (table["job_s"] <= table["high_s"]).all()
    assert set(table["interval"]) == {"seeds"}


def test_a_recording_has_an_interval_over_its_rounds_and_a_run_without_rounds_none() -> None:
    table = seqgc.sweep(["uncoded", "ssp:slack=1"], {"mine": recorded()})
    assert table["interval"].tolist() == ["rounds", ""]
    assert table["low_s"][0] < table["job_s"][0] < table["high_s"][0]
    assert np.isnan(table["low_s"][1])
    assert table["profile"].tolist() == ["mine", "mine"]


def test_a_profile_whose_alpha_nobody_knows_has_two_rows() -> None:
    times = [[1.0, 2.0], [2.0, 2.5]]
    profile = DelayProfile.from_times(times, meta=ProfileMeta(base_load=0.5))
    table = sweep(["uncoded"], {"mine": profile})
    assert table["alpha_s_per_load"].tolist() == [0.0, pytest.approx(0.999 * 2.0 / 0.5)]
    assert table["job_s"].tolist() == [2.25, 2.25], "the load is that of the recording"


def test_the_interval_of_a_mean_holds_it_and_shrinks() -> None:
    values = np.random.default_rng(0).exponential(size=400)
    for count in (5, 400):
        low, high = mean_interval(values[:count])
        assert low < values[:count].mean() < high
    assert high - low < 0.25
    assert mean_interval(np.array([2.0, 2.0])) == (2.0, 2.0)
    # 95 % of the intervals hold the mean of the distribution, to within chance.
    draws = np.random.default_rng(1).normal(size=(60, 30))
    held = sum(low <= 0 <= high for low, high in map(mean_interval, draws))
    assert held >= 50


def test_rows_that_a_file_has_are_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, profile = tmp_path / "table.csv", recorded()
    first = sweep(["uncoded"], {"mine": profile}, output=path)
    called: list[str] = []

    def counted(setting: seqgc.Setting, on: object) -> object:
        called.append(setting.scheme.spec)
        return replay(setting, on)  # type: ignore[arg-type]

    monkeypatch.setattr("seqgc.search._sweep.replay", counted)
    again = sweep(["uncoded", "gc-rep:s=1"], {"mine": profile}, output=path)
    assert called == ["gc-rep:s=1"]
    assert again["job_s"][0] == first["job_s"][0]
    # Another recording of the same name, other options and other seeds are other rows.
    sweep(["uncoded"], {"mine": recorded(1)}, output=path)
    sweep(["uncoded"], {"mine": profile}, output=path, num_jobs=3)
    assert called == ["gc-rep:s=1", "uncoded", "uncoded"]
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    assert len({tuple(row.values()) for row in rows}) == 4


def test_an_interrupted_sweep_leaves_the_rows_that_it_had(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"

    def interrupt(_name: str, share: float) -> None:
        if share == 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(["uncoded", "gc-rep:s=1"], {"mine": recorded()}, output=path, progress=interrupt)
    assert len(path.read_text().splitlines()) == 2
    table = sweep(["uncoded", "gc-rep:s=1"], {"mine": recorded()}, output=path)
    assert table["scheme"].tolist() == ["uncoded", "gc-rep:s=1"]


def test_latex_has_a_line_for_each_setting_and_a_column_for_each_profile(tmp_path: Path) -> None:
    path = tmp_path / "table.tex"
    table = sweep(["uncoded", "gc-rep:s=1"], {"a_b": recorded(), "c": recorded(1)}, output=path)
    text = path.read_text()
    assert text == latex_table(table)
    assert text.count("&") == 3 * 2
    assert r"a\_b" in text
    assert text.count(r"\textbf") == 2
    best = f"{table['job_s'].reshape(2, 2).min(axis=1)[0]:.4g}"
    assert rf"\textbf{{{best}}}" in text
    assert path.with_suffix(".csv").exists()


def test_what_does_not_fit_is_refused_before_the_first_row(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    for arguments, named in (
        ((["uncoded", "gc-rep:s=9"], {"mine": recorded()}), "`s` must"),
        ((["uncoded"], []), "`profiles` must name"),
        (([], {"mine": recorded()}), "`settings` must name"),
        ((["uncoded"], ["absent.npz"]), "absent.npz"),
    ):
        with pytest.raises(seqgc.errors.SeqgcError, match=named):
            sweep(*arguments, output=path)
        assert not path.exists()
    with pytest.raises(ParameterError, match=r"`output` must end in \.csv or \.tex"):
        sweep(["uncoded"], {"mine": recorded()}, output=tmp_path / "table.txt")
    path.write_text("round,w0\n1,2\n")
    with pytest.raises(ParameterError, match="`output` must be a new file"):
        sweep(["uncoded"], {"mine": recorded()}, output=path)
    assert path.read_text() == "round,w0\n1,2\n"


def test_a_result_table_keeps_the_rows_of_a_case(tmp_path: Path) -> None:
    table = ResultTable(tmp_path / "t.csv", ("case", "value"), keys=1)
    table.append([{"case": 1, "value": 0.5}, {"case": 1, "value": None}])
    assert (1,) in table
    assert (2,) not in table
    assert ResultTable(tmp_path / "t.csv", ("case", "value"), keys=1).rows() == [
        {"case": "1", "value": "0.5"},
        {"case": "1", "value": ""},
    ]
    with pytest.raises(ParameterError, match="'other'"):
        table.append([{"case": 2, "value": 1, "other": 2}])


# ---- on the command line ------------------------------------------------------------------------


def test_the_command_line_sweeps_files_and_generators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    monkeypatch.chdir(tmp_path)
    write_profile(recorded(), path="mine.npz")
    command = ["sweep", "uncoded", "gc-rep:s=1", "--on", LAMBDA, "--on", "mine.npz"]
    command += ["--seeds", "3", "--mu", "0,1", "-o", "table.tex"]
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    rows = report["rows"]
    assert report["file"] == "table.tex"
    assert [(row["profile"], row["scheme"], row["mu"], row["seeds"]) for row in rows] == [
        (profile, spec, mu, seeds)
        for profile, seeds in ((LAMBDA, 3), ("mine.npz", 1))
        for spec in ("uncoded", "gc-rep:s=1")
        for mu in (0.0, 1.0)
    ]
    assert all(len(row["runs_s"].split()) == row["seeds"] for row in rows)
    written = Path("table.csv").read_text()
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "gc-rep:s=1" in shown
    assert f"{rows[0]['job_s']:.4g}" in shown
    assert Path("table.csv").read_text() == written


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("uncoded", "`on` must name delays"),
        ("uncoded --on absent.npz", "absent.npz"),
        ("unknown --on lambda-cnn", "unknown"),
        ("uncoded --on lambda-cnn --seeds 0", "`seeds` must"),
        ("uncoded --on lambda-cnn -o table.txt", "`output` must end in .csv or .tex"),
        ("uncoded --on lambda-cnn --base-load 1", "`base_load` must be left out"),
        ("uncoded --on lambda-cnn --mu x", "`mu` must be numbers"),
    ],
)
def test_wrong_sweeps_are_refused_in_one_line(
    arguments: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Out
) -> None:
    monkeypatch.chdir(tmp_path)
    assert named in refused(capsys, "sweep", *arguments.split())
