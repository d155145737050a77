"""Paces: work is additive, whatever changes with it, and the two readings of a recording."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqgc.errors import ParameterError, ProfileError
from seqgc.profiles import (
    ByRound,
    ByTime,
    ByWork,
    DelayProfile,
    ProfileMeta,
    latency_pace,
    speed_pace,
    task_seconds,
)

rates = st.lists(st.floats(0.0, 9.0), min_size=1, max_size=4)
loads = st.floats(0.0, 3.0)


@given(rates=rates, done=loads, first=loads, second=loads, width=st.floats(0.05, 2.0))
def test_work_takes_as_long_in_two_pieces(
    rates: list[float], done: float, first: float, second: float, width: float
) -> None:
    by_work = ByWork(rates=np.array(rates)[:, None], width=width)
    by_time = ByTime(rates=np.array(rates)[:, None], width_s=width)
    for pace in (by_work, by_time):
        whole = pace.seconds(0, round=0, at=done, done=done, load=first + second)
        part = pace.seconds(0, round=0, at=done, done=done, load=first)
        rest = pace.seconds(0, round=0, at=done + part, done=done + first, load=second)
        assert part + rest == pytest.approx(whole, abs=1e-9)


@given(rates=rates, at=st.floats(0.0, 9.0), seconds=st.floats(0.0, 9.0))
def test_work_by_time_is_what_the_windows_hold(
    rates: list[float], at: float, seconds: float
) -> None:
    windows = np.array(rates)[:, None] + 0.1
    fine = np.linspace(at, at + seconds, 4001)
    middle = (fine[1:] + fine[:-1]) / 2
    speed = 1 / windows[(middle / 0.5).astype(int) % len(windows), 0]
    load = float((speed * np.diff(fine)).sum())
    took_s = ByTime(rates=windows, width_s=0.5).seconds(0, round=0, at=at, done=0.0, load=load)
    assert took_s == pytest.approx(seconds, rel=0.02, abs=0.02)


def test_rows_come_round_again() -> None:
    by_work = ByWork(rates=[[1.0, 2.0], [3.0, 4.0]], width=0.5)
    seconds = [by_work.seconds(1, round=0, at=0.0, done=d, load=0.5) for d in (0.0, 0.5, 1.0, 50.5)]
    assert seconds == [1.0, 2.0, 1.0, 2.0]
    by_time = ByTime(rates=[[1.0], [3.0]], width_s=2.0, latencies_s=[[0.25], [0.75]])
    assert [by_time.latency_s(0, round=0, at=at) for at in (0.0, 2.0, 5.9, 401.0)] == [
        0.25,
        0.75,
        0.25,
        0.25,
    ]
    # 0.75 s of waiting until 2.5, and work from the second window on
    assert task_seconds(by_time, 0, round=9, at=3.0, done=0.0, load=1.0) == 0.75 + 0.25 + 11 / 12


def test_a_task_of_the_latency_reading_takes_what_a_replay_says() -> None:
    rng = np.random.default_rng(3)
    meta = ProfileMeta(base_load=0.7, alpha=1.3)
    profile = DelayProfile.from_times(rng.uniform(0.5, 3.0, (4, 3)), meta=meta)
    pace = latency_pace(profile)
    assert pace.n == 3
    for load in (0.6, 0.7, 1.9):
        due = profile.times_at(load)
        for round in range(8):
            took = [
                task_seconds(pace, i, round=round, at=9.0, done=1.0, load=load) for i in range(3)
            ]
            assert took == due[round % 4].tolist()
    assert pace.latency_s(1, round=2, at=0.0) == max(0.0, profile.times[2, 1] - 1.3 * 0.7)


def test_by_speed_a_share_of_a_row_is_that_share_of_its_work() -> None:
    meta = ProfileMeta(base_load=0.25)
    profile = DelayProfile.from_times([[1.0, 2.0], [4.0, 8.0]], meta=meta)
    pace = speed_pace(profile)
    for done, load, due in ((0.0, 0.25, 2.0), (0.0, 0.075, 0.6), (0.25, 0.25, 8.0)):
        assert pace.seconds(1, round=7, at=3.0, done=done, load=load) == pytest.approx(due)
    assert pace.latency_s(1, round=0, at=0.0) == 0.0
    for load in (0.0, 1e-308, 1e-9):
        profile = DelayProfile.from_times([[1.0]], meta=ProfileMeta(base_load=load))
        with pytest.raises(ProfileError, match=f"load >= 1e-05 .*; got base load {load:g} "):
            speed_pace(profile)
    profile = DelayProfile.from_times([[1.0]], meta=ProfileMeta(base_load=1e-5))
    assert speed_pace(profile).seconds(0, round=0, at=0.0, done=0.0, load=1.0) == pytest.approx(1e5)
    with pytest.raises(ProfileError, match="load >= 2e-05"):
        speed_pace(profile, jobs_per_round=2)


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: ByRound(latencies_s=[1.0], rates=[[1.0]]), "latencies_s"),
        (lambda: ByRound(latencies_s=[[1.0, 2.0]], rates=[[1.0, 1.0, 1.0]]), "latencies_s, rates"),
        (lambda: ByRound(latencies_s=[[1.0]], rates=[[-1.0]]), "rates"),
        (lambda: ByWork(rates=[[np.inf]], width=1.0), "rates"),
        (lambda: ByWork(rates=[[1.0]], width=0.0), "width"),
        (lambda: ByTime(rates=[[1.0]], width_s=-1.0), "width_s"),
        (lambda: ByTime(rates=[[1.0]], width_s=1.0, latencies_s=[[-1.0]]), "latencies_s"),
    ],
)
def test_what_is_no_pace_is_refused(make: object, argument: str) -> None:
    with pytest.raises(ParameterError, match=f"`{argument}`"):
        make()  # type: ignore[operator]
