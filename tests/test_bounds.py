"""Bounds on the run time: against arithmetic, other policies, a paper and a recording."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqgc.errors import ParameterError
from seqgc.ports import Task
from seqgc.profiles import (
    ByTime,
    ByWork,
    DelayProfile,
    Disrupters,
    Pace,
    PowerLawClocks,
    Slowdown,
    SlowPeriods,
    read_profile,
    speed_pace,
)
from seqgc.rounds import Setting
from seqgc.schemes import parse_scheme
from seqgc.search import Rehearsal, replay
from seqgc.stragglers import busy_seconds, clairvoyant_bound, never_idle_seconds
from seqgc.virtual import VirtualBackend

MATRICES = st.lists(st.lists(st.floats(0.2, 9.0), min_size=3, max_size=3), min_size=1, max_size=4)


def to_whoever_is_free(pace: Pace, parts: int, load: float) -> float:
    """Return the seconds of so many parts, each given to the next worker that is free."""
    backend = VirtualBackend(pace.n, pace)
    free, left = list(range(pace.n)), parts
    for _ in range(parts):
        for worker in free[:left]:
            backend.dispatch(0, [Task(round=0, worker=worker, attempt=0, items=(), load=load)])
        free, left = free[left:], left - len(free[:left])
        answer = backend.receive(math.inf)
        assert answer is not None
        free.append(answer.worker)
    return backend.now


@given(rates=MATRICES, width=st.floats(0.1, 2.0), by_time=st.booleans())
def test_nobody_is_faster_and_small_parts_are_nearly_as_fast(
    rates: list[list[float]], width: float, *, by_time: bool
) -> None:
    matrix = np.array(rates)
    pace = ByTime(rates=matrix, width_s=width) if by_time else ByWork(rates=matrix, width=width)
    bound = busy_seconds(pace, 3.0)
    for parts in (3, 30):
        took_s = to_whoever_is_free(pace, parts, 3.0 / parts)
        longest_part_s = matrix.max() * 3.0 / parts
        assert bound - 1e-9 <= took_s <= bound + longest_part_s


@given(rates=st.lists(st.floats(0.01, 9.0), min_size=1, max_size=6), work=st.floats(0.0, 50.0))
def test_speeds_that_stay_add_up(rates: list[float], work: float) -> None:
    pace = ByWork(rates=np.array([rates]), width=1.0)
    due = work / sum(1 / rate for rate in rates)
    assert busy_seconds(pace, work) == pytest.approx(due, rel=1e-9)


def test_work_that_takes_no_time_is_done_at_once() -> None:
    assert busy_seconds(ByWork(rates=np.array([[0.0, 1.0]]), width=1.0), 3.0) == pytest.approx(0.0)
    free_later = ByWork(rates=np.array([[4.0, 4.0], [0.0, 4.0]]), width=1.0)
    assert busy_seconds(free_later, 3.0) == pytest.approx(4.0)
    with pytest.raises(ParameterError, match="`work`"):
        busy_seconds(free_later, -1.0)


@pytest.mark.parametrize(
    ("slowdown", "due"),
    [
        (SlowPeriods(n=128, delay=1.0), 1.087),
        (SlowPeriods(n=128, delay=2.0), 1.171),
        (PowerLawClocks(n=128, exponent=11.0), 1.110),
        (PowerLawClocks(n=128, exponent=7.0), 1.198),
        (Disrupters(n=128, delay=1.0, clock_s=6.0), 1.112),
        (Disrupters(n=128, delay=2.0, clock_s=6.0), 1.156),
    ],
    ids=repr,
)
def test_what_is_ideal_where_workers_slow_down_at_random(slowdown: Slowdown, due: float) -> None:
    """Clocks of 20, beside those without slowness: Harlap et al., figures 7, 9 and 10."""
    ideal = busy_seconds(slowdown.pace(), 20.0) / (20 * slowdown.clock_s)
    assert ideal == pytest.approx(due, rel=0.01)


def test_a_recording_read_as_speeds(recorded_profiles: Path) -> None:
    name = "cnn-canada-batch2048-load0.000-30rounds-d.csv"
    at_one_share = read_profile(recorded_profiles / name).at_load(1 / 256, alpha=1.12)
    assert busy_seconds(speed_pace(at_one_share), 30.0) == pytest.approx(21.1352, abs=1e-4)


@pytest.mark.parametrize(("alpha", "due_s"), [(1.12, 18.8882), (60.0, 27.4719)])
def test_a_recording_read_as_latencies(recorded_profiles: Path, alpha: float, due_s: float) -> None:
    name = "cnn-canada-batch2048-load0.000-30rounds-d.csv"
    at_no_load = read_profile(recorded_profiles / name).times
    bound_s = clairvoyant_bound(at_no_load, alpha=alpha).sum()
    assert bound_s == pytest.approx(due_s, abs=1e-4)


@given(
    times=MATRICES,
    spec=st.sampled_from(["a-bsp:wpc=100", "a-bsp:wpc=3", "ssp:slack=1,wpc=2", "asp", "bsp"]),
    jobs=st.integers(1, 12),
)
def test_no_replay_of_who_goes_on_by_himself_is_below_its_bound(
    times: list[list[float]], spec: str, jobs: int
) -> None:
    profile = DelayProfile.from_times(np.array(times))
    on = Rehearsal(profile=profile, alpha=1.0, num_jobs=jobs, repeat=True)
    setting = Setting(scheme=parse_scheme(spec, n=3))
    assert replay(setting, on).runtime_s >= on.bound_s(setting) * (1 - 1e-9)


def test_who_is_never_idle_pays_for_each_task_and_does_what_it_has() -> None:
    rows = np.array([[0.0, 9.0], [5.0, 9.0]])
    assert never_idle_seconds(rows, 1, part_s=1.0) == 7.0  # both parts are the first worker's
    assert never_idle_seconds(rows, 2, part_s=1.0, jobs_per_task=2) == 8.0 + 1.0
    for wrong in ({"jobs": 0}, {"part_s": -1.0}, {"jobs_per_task": 0}):
        with pytest.raises(ParameterError, match=next(iter(wrong))):
            never_idle_seconds(rows, **{"jobs": 1, "part_s": 1.0} | wrong)  # type: ignore[arg-type]
