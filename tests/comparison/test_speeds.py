"""Delays read as speeds: nobody gets past slow work, and no exact defence is below its bound."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqgc.comparison import Trial, compare
from seqgc.profiles import DelayProfile, ProfileMeta, read_profile, speed_pace
from seqgc.rounds import Setting
from seqgc.schemes import parse_scheme
from seqgc.search import Reading, Rehearsal, SearchSpace, replay, tune
from seqgc.stragglers import busy_seconds
from seqgc.virtual import WorkerKind

AT_ONCE = Trial(target=2.3, most=1, lrs=(4.0,), seeds=1)
BY_ROUNDS = ["uncoded", "gc:s=1", "gc-rep:s=1", "gc-binary:s=1", "lb-bsp", "bsp", "deal"]
KINDS: list[WorkerKind] = ["function", "resident"]


def two(tmp_path: Path) -> DelayProfile:
    """Return the delays of two workers who are slow in turn, of which no alpha is known."""
    (tmp_path / "two.csv").write_text("1,9\n9,1\n", encoding="utf-8")
    profile = read_profile(tmp_path / "two.csv")
    return replace(profile, meta=replace(profile.meta, base_load=0.5))


@pytest.mark.parametrize("workers", KINDS)
def test_two_workers_who_are_slow_in_turn(workers: WorkerKind, tmp_path: Path) -> None:
    specs = [*BY_ROUNDS, "backup:b=1", "asp"]
    found = compare(two(tmp_path), specs, reading="speed", workers=workers, trial=AT_ONCE)
    assert found.bound_s == pytest.approx(5.0)  # 0.5 of load a second for 10 s: two batches
    assert found.alpha is None
    over = {row.defence: row.over_bound for row in found.rows}
    assert min(over.values()) >= 1 - 1e-9
    # The straggler of round 0 has done 1/9 of its half by 1 s. Of its next half 8/9 are slow, too:
    # 8 s and 1/9 s, while the other one takes 9 s. Half of the data are left out.
    backup = 2 * (1 + 8 + 1 / 9) / 2 if workers == "function" else 10.0
    assert over["backup:b=1"] == pytest.approx(backup / 5)
    assert over["uncoded"] == pytest.approx(9 / 5)
    assert over["gc-rep:s=1"] == pytest.approx(10 / 5)


@settings(max_examples=20)
@given(
    times=st.lists(st.lists(st.floats(0.3, 90.0), min_size=4, max_size=4), min_size=1, max_size=5),
    spec=st.sampled_from([*BY_ROUNDS, "gc:s=2", "gc-rep:s=3", "backup:b=1", "backup:b=2"]),
    clocks=st.integers(1, 9),
    workers=st.sampled_from(KINDS),
)
def test_no_defence_without_a_delay_is_below_its_bound(
    times: list[list[float]], spec: str, clocks: int, workers: WorkerKind
) -> None:
    profile = DelayProfile.from_times(times, meta=ProfileMeta(base_load=0.25))
    found = compare(profile, [spec], reading="speed", workers=workers, clocks=clocks, trial=AT_ONCE)
    assert found.rows[0].over_bound >= 1 - 1e-9


def test_dealt_work_keeps_all_busy() -> None:
    profile = DelayProfile.from_times([[1.0, 4.0]], meta=ProfileMeta(base_load=0.5, rtt_s=0.0))
    found = compare(profile, ["deal:pieces=50"], reading="speed", workers="resident", trial=AT_ONCE)
    assert found.bound_s == pytest.approx(1 / (0.5 / 1 + 0.5 / 4))
    assert 1 <= found.rows[0].over_bound < 1.1


@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize("spec", ["uncoded", "gc-rep:s=1", "deal", "asp", "backup:b=1"])
def test_a_replay_takes_the_seconds_of_a_comparison(
    spec: str, *, resident: bool, tmp_path: Path
) -> None:
    on = Rehearsal(
        profile=two(tmp_path), recorded="speed", num_jobs=6, reading=Reading(resident=resident)
    )
    setting = Setting(scheme=parse_scheme(spec, n=2))
    kind: WorkerKind = "resident" if resident else "function"
    (row,) = compare(on, [setting], clocks=6, workers=kind, trial=AT_ONCE).rows
    applied = 0.5 if spec.startswith("backup") else 1.0
    assert replay(setting, on).runtime_s == pytest.approx(row.seconds_per_clock * 6 * applied)
    assert on.bound_s(setting) == pytest.approx(busy_seconds(speed_pace(on.profile), 6))


def test_a_search_ranks_by_what_replays_take_and_needs_no_alpha() -> None:
    rng = np.random.default_rng(5)
    profile = DelayProfile.from_times(
        rng.exponential(size=(6, 4)) + 0.3, meta=ProfileMeta(base_load=0.25)
    )
    on = Rehearsal(profile=profile, recorded="speed")
    space = SearchSpace(families=("uncoded", "gc", "gc-rep"), jobs_per_round=(1, 2))
    found = tune(on, space=space, top=100)
    assert {row.setting.scheme.spec for row in found.ranking} == {
        "uncoded", "gc:s=1", "gc:s=2", "gc:s=3", "gc-rep:s=1", "gc-rep:s=3",
    }  # fmt: skip
    assert {row.setting.jobs_per_round for row in found.ranking} == {1, 2}
    timed = replace(on, num_jobs=found.num_jobs)
    seconds = [replay(row.setting, timed).runtime_s for row in found.ranking]
    assert [row.runtime_s for row in found.ranking] == seconds == sorted(seconds)
    assert all(row.ratio >= 1 - 1e-9 for row in found.ranking)
    halved = tune(on, space=space, holdout=0.5).best
    assert halved.holdout_s is not None
    assert halved.ratio >= 1 - 1e-9
