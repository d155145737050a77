"""Specs, schemes and settings, and profiles, paths and names: all mean the same in every call."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqgc import (
    ClosingRule,
    Rehearsal,
    SearchSpace,
    Setting,
    Trial,
    compare,
    default_defences,
    parse_scheme,
    replay,
    tune,
)
from seqgc.errors import ParameterError
from seqgc.profiles import named_profile, write_profile
from seqgc.runs import ProfileSource, read_run
from tests.runs.logs import write_run

NAME = "lambda-cnn:workers=4,rounds=8,seed=3"
SPACE = SearchSpace(families=("uncoded", "gc-rep"), mus=(0.0,), jobs_per_round=(1,))
TRIAL = Trial(seeds=1, lrs=(8.0,), target=1.5, batch=64)


@pytest.fixture
def of_profile(tmp_path: Path) -> dict[str, ProfileSource | Rehearsal]:
    profile = named_profile(NAME)
    path = tmp_path / "delays.npz"
    write_profile(profile, path=path)
    rehearsal = Rehearsal(profile=profile)
    return {"path": path, "text": str(path), "name": NAME, "rehearsal": rehearsal, "": profile}


@pytest.fixture
def of_run(tmp_path: Path) -> dict[str, ProfileSource | Rehearsal]:
    seconds = named_profile(NAME).times.tolist()
    folder = write_run(tmp_path / "run", seconds, scheme="gc-rep:s=1", needed=3)
    run = read_run(folder)
    return {"folder": folder, "text": str(folder), "run": run, "": run.profile(alpha=0.5)}


@pytest.mark.parametrize("kind", ["of_profile", "of_run"])
def test_every_source_of_delays_gives_the_same_results(
    kind: str, request: pytest.FixtureRequest
) -> None:
    results = {
        name: (
            replay("gc-rep:s=1", source, alpha=0.5).runtime_s,
            tune(source, alpha=0.5, space=SPACE).best,
            compare(Rehearsal.of(source, alpha=0.5), ["gc-rep:s=1"], trial=TRIAL).rows,
        )
        for name, source in request.getfixturevalue(kind).items()
    }
    assert all(result == results[""] for result in results.values()), results


def test_defences_are_chosen_on_any_source(of_profile: dict[str, ProfileSource]) -> None:
    assert default_defences(NAME, models=1) == default_defences(of_profile[""], models=1)


@pytest.mark.parametrize(
    "given",
    [
        "gc-rep:s=1",
        parse_scheme("gc-rep:s=1", n=4),
        Setting(scheme="gc-rep:s=1"),
        Setting(scheme=parse_scheme("gc-rep:s=1", n=4)),
    ],
    ids=["spec", "scheme", "setting of a spec", "setting"],
)
def test_a_spec_a_scheme_and_a_setting_mean_the_same(given: str | Setting) -> None:
    expected = Setting(scheme=parse_scheme("gc-rep:s=1", n=4))
    assert Setting.of(given, n=4) == expected
    assert replay(given, NAME).runtime_s == replay(expected, Rehearsal.of(NAME)).runtime_s
    (row,) = compare(NAME, [given], trial=TRIAL).rows
    assert row.defence == "gc-rep:s=1"


def test_settings_of_a_replay_are_arguments_of_it() -> None:
    profile = named_profile(NAME)
    rehearsal = Rehearsal(profile=profile, num_jobs=30, repeat=True, alpha=0.5)
    expected = replay(Setting(scheme="uncoded"), rehearsal).runtime_s
    assert replay("uncoded", profile, num_jobs=30, repeat=True, alpha=0.5).runtime_s == expected
    assert replay("uncoded", Rehearsal(profile=profile), num_jobs=30, repeat=True, alpha=0.5)
    assert tune(profile, num_jobs=30, space=SPACE).num_jobs == 30


def test_a_setting_of_a_spec_is_a_value_that_asks_for_the_number_of_workers() -> None:
    setting = Setting(scheme=" ssp:slack=1 ", jobs_per_round=2)
    assert setting.label == "ssp:slack=1, mu=0, feasible, 2 jobs a round"
    assert setting == Setting(scheme="ssp:slack=1", jobs_per_round=2)
    assert (
        eval(repr(setting), {"Setting": Setting, "ClosingRule": ClosingRule, "inf": float("inf")})
        == setting
    )
    assert setting.on(4).on(8).scheme == parse_scheme("ssp:slack=1", n=4)
    with pytest.raises(ParameterError, match=r"`n` .*worker_loads of ssp:slack=1.*None"):
        _ = setting.scheme.worker_loads


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Setting(scheme="gc-repp:s=3"), "gc-repp.*gc-rep"),
        (lambda: Setting(scheme="gc-rep"), "needs s"),
        (lambda: Setting(scheme=3), "`scheme`.*got 3"),  # type: ignore[arg-type]
        (lambda: Setting(scheme="ssp:slack=1", rule=ClosingRule(mu=1.0)).on(4), "`mu`.*ssp"),
        (lambda: replay("gc-rep:s=9", NAME), "`s`.*9"),
        (lambda: replay("uncoded", "lambda-cn"), "`profile`.*lambda-cn.*lambda-cnn"),
        (lambda: replay("uncoded", "lambda-cnn:worker=3"), "workers=INTEGER.*worker=3"),
        (lambda: replay("uncoded", "lambda-cnn:rounds=0"), "`rounds`.*0"),
        (lambda: replay("uncoded", [[1.0]]), "`profile`.*DelayProfile"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_wrong_arguments_are_named_with_their_value(call: object, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        call()  # type: ignore[operator]
