"""Which scheme when, and switching to it: what their pages say is what their tables have."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.fig18_switching import run as fig18
from experiments.fig20_resnet18 import run as fig20
from experiments.results import Table
from experiments.which_defence import run as defence
from experiments.which_scheme import run as which
from seqgc import DelayProfile
from seqgc.search import SearchSpace

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


def readme(experiment: str) -> str:
    return (EXPERIMENTS / experiment / "README.md").read_text(encoding="utf-8")


def test_the_readme_of_which_scheme_says_what_its_table_says() -> None:
    rows = Table(EXPERIMENTS / "which_scheme/schemes.csv", which.FIELDS, keys=4).rows()
    ratios = {
        (row["models"], row["recording"], float(row["alpha_s"]), row["scheme"]): row["over_r1"]
        for row in rows
    }
    parts = re.split(r"^## (Four|Sixteen) models$", readme("which_scheme"), flags=re.MULTILINE)
    for title, text in zip(parts[1::2], parts[2::2], strict=True):
        models = {"Four": "4", "Sixteen": "16"}[title]
        lines = [line.strip("| ") for line in text.splitlines() if line.startswith("| ")]
        head, *body = ([cell.strip(" *") for cell in line.split(" | ")] for line in lines)
        assert len(body) == len(which.RECORDINGS) * len(which.ALPHAS)
        for place, *stated in body:
            recording, alpha = place.split(", ")
            for scheme, ratio in zip(head[1:], stated, strict=True):
                assert ratios[models, recording, float(alpha), scheme] == ratio


def test_every_family_is_chosen_on_one_half_and_judged_on_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    space = SearchSpace(families=("deal", "gc-rep", "uncoded"), jobs_per_round=(1, 2), mus=(0.0,))
    monkeypatch.setitem(which.SPACES, 4, space)
    monkeypatch.setitem(which.JOBS, 4, 16)
    times = 1 + np.random.default_rng(5).exponential(0.5, size=(8, 4))
    profile = DelayProfile.from_times(times)
    found = {row["scheme"]: row for row in which.cases("x", profile, alpha=1.0, models=4)}
    assert set(found) == {"deal", "deal, resident", "gc-rep", "uncoded"}
    uncoded_s = times[4:].max(axis=1).mean()  # the half that was held out, and no wait-out
    bundles = 2 if "2 jobs" in str(found["uncoded"]["setting"]) else 1
    expected = (uncoded_s + bundles * 1.0 / 4) / bundles
    assert float(str(found["uncoded"]["job_s"])) == pytest.approx(expected, rel=1e-3)
    for row in found.values():
        low, mean, high = (float(str(row[field])) for field in ("low_s", "job_s", "high_s"))
        assert low <= mean <= high


def test_the_readme_of_which_defence_says_what_its_table_says() -> None:
    rows = Table(EXPERIMENTS / "which_defence/defences.csv", defence.FIELDS, keys=5).rows()
    known = {tuple(row[field] for field in defence.FIELDS[:5]): row for row in rows}
    parts = re.split(
        r"^## (\w+)s, (one|four) models?$", readme("which_defence"), flags=re.MULTILINE
    )
    stated = 0
    for who, count, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        lines = [line.strip("| ") for line in text.splitlines() if line.startswith("| ")]
        head, *body = ([cell.strip(" *") for cell in line.split(" | ")] for line in lines)
        for place, *cells in body:
            recording, alpha = place.split(", ")
            for name, cell in zip(head[1:], cells, strict=True):
                models = {"one": "1", "four": "4"}[count]
                row = known[who.lower(), models, recording, str(float(alpha)), name]
                spread = "" if count == "four" else f" ({row['low_s']}–{row['high_s']})"
                assert cell.replace("*", "") == f"{row['seconds']}{spread}"
                stated += 1
    assert stated == len(rows)


def test_residents_are_compared_by_the_speed_that_an_uncoded_batch_had() -> None:
    times = 1 + np.random.default_rng(5).exponential(0.5, size=(8, 4))
    field = replace(defence.RUNS[1], seeds=1, defences=("gc-rep:s=1", "uncoded", "backup:b=1"))
    assert field.workers == "resident"
    found = defence.case(DelayProfile.from_times(times), alpha=2.0, field=field)
    assert found.keys() == set(field.defences)
    judged = (times[4:] + 2 / 4).max(axis=1).mean()  # the second half
    assert float(str(found["uncoded"]["clock_s"])) == pytest.approx(judged, rel=1e-3)
    assert float(str(found["gc-rep:s=1"]["wasted"])) == 1
    for row in found.values():
        low, middle, high = (float(str(row[name])) for name in ("low_s", "seconds", "high_s"))
        assert low <= middle <= high


def test_functions_are_compared_with_the_code_that_suits_their_recording() -> None:
    times = np.ones((8, 4))
    times[np.arange(8), np.arange(8) % 4] = 9.0
    field = replace(defence.RUNS[0], seeds=1, defences=("code", "uncoded"))
    row = defence.case(DelayProfile.from_times(times), alpha=1.0, field=field)["code"]
    assert str(row["setting"]).startswith("gc-rep:s=1")
    assert float(str(row["clock_s"])) == pytest.approx(1 + 1.0 * 2 / 4)


def test_the_readme_of_fig_18_says_what_its_table_says() -> None:
    rows = Table(EXPERIMENTS / "fig18_switching/runs.csv", fig18.RUNS, keys=3).rows()
    for kind in fig18.KINDS:
        for seed in fig18.SEEDS:
            mine = [row for row in rows if (row["delays"], row["seed"]) == (kind, str(seed))]
            assert [row["family"] for row in mine] == list(fig18.FAMILIES)
            cells = " | ".join(f"{row['run_s']} ({row['coded_s']})" for row in mine)
            assert f"| {kind}, {seed} | {cells} |" in readme("fig18_switching")


def test_a_small_run_switches_to_what_it_has_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"N": 4, "STEPS": 4, "PROBE": 4, "SEARCHING": 2}.items():
        monkeypatch.setattr(fig18, name, value)
    monkeypatch.setattr(fig18, "ALPHA", 0.0)
    row, ends = fig18.trained("canada, no stalls", 0, "gc")
    assert str(row["found"]).startswith("gc:s=")
    assert row["switched_at"] == 4 + 2
    assert len(ends) == fig18.MODELS * 4
    assert float(str(row["run_s"])) == pytest.approx(ends[-1], abs=0.05)
    assert float(str(row["coded_s"])) <= float(str(row["run_s"]))


def test_the_readme_of_fig_20_says_what_its_table_says() -> None:
    rows = Table(EXPERIMENTS / "fig20_resnet18/runs.csv", fig20.RUNS, keys=3).rows()
    text = readme("fig20_resnet18")
    cases = dict.fromkeys((row["alpha_s"], row["mu"]) for row in rows)
    assert len(cases) == 2 * len(fig20.MUS)
    for alpha, mu in cases:
        means = []
        for family in fig20.FAMILIES:
            case = alpha, mu, family
            mine = [row for row in rows if (row["alpha_s"], row["mu"], row["family"]) == case]
            assert len(mine) == fig20.SEEDS
            means.append(f"{np.mean([float(row['runtime_s']) for row in mine]):.0f}")
        cells = r" ± \d+ \| ".join(means)
        assert re.search(rf"^\| {alpha}, {float(mu):g} \| {cells} ± \d+ \|$", text, re.MULTILINE)
