"""Patterns of slowness: what they promise on average, and the exact figures of a rotating sleep."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from seqgc.errors import ParameterError
from seqgc.ports import FloatArray
from seqgc.profiles import RestartablePace
from seqgc.profiles.slowdowns import (
    Disrupters,
    PowerLawClocks,
    RotatingSleep,
    SleepWindows,
    Slowdown,
    SlowPeriods,
    Uneven,
)

ALL = (
    SlowPeriods(n=4, delay=2.0, probability=0.1),
    PowerLawClocks(n=4, exponent=5.0),
    Uneven(n=4),
    Disrupters(n=4, delay=1.0, every_s=3.0),
    RotatingSleep(n=4, sleep_for_s=2.5),
    SleepWindows(n=4, intensity=0.3, period_s=8.0),
)


def clocks_s(slowdown: Slowdown, clocks: int) -> FloatArray:
    """Return the seconds of each worker's first clocks, one after the other: (clocks, n)."""
    sleeps = [
        [slowdown.sleep_s(worker, round=k) for worker in range(slowdown.n)] for k in range(clocks)
    ]
    return slowdown.clock_s + np.array(sleeps)


@pytest.mark.parametrize("slowdown", ALL, ids=lambda each: type(each).__name__)
def test_a_specification_says_all_of_its_pace(slowdown: Slowdown) -> None:
    assert pickle.loads(pickle.dumps(slowdown)) == slowdown
    assert eval(repr(slowdown)) == slowdown
    assert slowdown.pace().n == 4


@pytest.mark.parametrize("kind", [SlowPeriods, PowerLawClocks, Disrupters, SleepWindows])
def test_more_workers_change_nothing_of_the_first(kind: type[Slowdown]) -> None:
    slowness = {"delay": 3.0, "exponent": 3.0, "intensity": 1.0, "probability": 0.3}
    known = {name: slowness[name] for name in slowness.keys() & kind.__dataclass_fields__.keys()}
    few, many = kind(n=3, **known), kind(n=7, **known)
    for at in (0.0, 50.0):
        sleeps = [few.sleep_s(i, round=4, at=at) for i in range(3)]
        assert sleeps == pytest.approx([many.sleep_s(i, round=4, at=at) for i in range(3)])
    other = kind(n=7, **known, seed=1)
    moments = [(i, k) for i in range(7) for k in range(9)]
    assert [many.sleep_s(i, round=k, at=2e3 * k) for i, k in moments] != [
        other.sleep_s(i, round=k, at=2e3 * k) for i, k in moments
    ]


def test_slow_periods_cover_what_renewal_theory_says() -> None:
    # Work between two periods: 10 points of 0.1 clock; in one: 1 clock, and on to the next point.
    slowdown = SlowPeriods(n=60, delay=4.0, probability=0.1)
    slow = (clocks_s(slowdown, 200).mean() - 1) / 4
    assert slow == pytest.approx(1 / (1 + 1.0 - 0.05), rel=0.03)
    assert clocks_s(slowdown, 200).max() == pytest.approx(5.0)
    even = SlowPeriods(n=60, delay=4.0, probability=0.0)
    assert clocks_s(even, 3).tolist() == [[pytest.approx(1.0)] * 60] * 3


def test_of_slow_workers_the_slowest_decides() -> None:
    """The seconds of a barrier, 128 workers, 20 clocks: Harlap et al., figure 7."""
    for delay, due in ((0.5, 1.495), (1.0, 1.990), (2.0, 2.980), (4.0, 4.960)):
        seeds = [clocks_s(SlowPeriods(n=128, delay=delay, seed=k), 20) for k in range(3)]
        barriers = float(np.mean([each.max(axis=1).mean() for each in seeds]))
        assert barriers == pytest.approx(due, rel=0.01)


def test_clocks_of_a_power_law_have_its_tail() -> None:
    slowdown = PowerLawClocks(n=100, exponent=4.0, clock_s=2.0)
    factors = clocks_s(slowdown, 200) / 2
    assert factors.min() >= 1
    for t in (1.1, 1.5, 3.0):
        assert (factors > t).mean() == pytest.approx(t**-3, rel=0.05)
    assert factors.mean() == pytest.approx(3 / 2, rel=0.02)
    pace = slowdown.pace()  # a part of a clock takes that part of its time
    whole = pace.seconds(7, round=3, at=0.0, done=3 / 100, load=1 / 100)
    assert pace.seconds(7, round=3, at=0.0, done=3 / 100, load=1 / 400) == pytest.approx(whole / 4)


def test_uneven_shares_sum_to_the_work() -> None:
    apart, together = Uneven(n=6, heavy=0.75), Uneven(n=6, heavy=0.75, together=True)
    assert apart.shares == pytest.approx(np.array([3, 1, 3, 1, 3, 1]) / 12)
    assert together.shares == pytest.approx(np.array([3, 3, 3, 1, 1, 1]) / 12)
    pace = apart.pace()
    seconds = [pace.seconds(i, round=0, at=0.0, done=0.0, load=1 / 6) for i in range(6)]
    assert seconds == pytest.approx([1.5, 0.5] * 3)


def test_disrupters_are_there_for_a_window() -> None:
    slowdown = Disrupters(n=40, delay=2.0, clock_s=1.0, every_s=20.0, probability=0.2)
    begins = np.arange(100) * 20.0
    sleeps = np.array([[slowdown.sleep_s(i, round=0, at=at) for i in range(40)] for at in begins])
    assert set(sleeps.round(9).ravel()) == {0.0, 2.0}
    assert (sleeps > 0).mean() == pytest.approx(0.2, abs=0.02)
    later = [[slowdown.sleep_s(i, round=5, at=at + 16.9) for i in range(40)] for at in begins]
    assert np.array(later) == pytest.approx(sleeps)


@pytest.mark.parametrize(
    ("sleep_s", "barrier_s", "slack_s"),
    [(4.0, 4.0, 0.5), (6.0, 6.0, 0.92625), (8.0, 8.0, 1.92625), (10.0, 10.0, 2.92625)],
)
def test_who_may_be_a_clock_ahead_hardly_notices_a_rotating_sleep(
    sleep_s: float, barrier_s: float, slack_s: float
) -> None:
    """What 8 machines of 4.2 s lose a clock, over 160: Cui et al., figure 6."""
    slowdown = RotatingSleep(n=8, sleep_for_s=sleep_s, clock_s=4.2)
    times = clocks_s(slowdown, 160)
    assert times == pytest.approx(4.2 + sleep_s * np.tile(np.eye(8), (20, 1)))
    for slack, due in ((0, barrier_s), (1, slack_s)):
        ends = [np.zeros(8)]
        for t in range(160):
            everyone = ends[t - slack].max() if t >= slack else 0.0
            ends.append(np.maximum(ends[t], everyone) + times[t])
        assert ends[-1].max() / 160 - 4.2 == pytest.approx(due, abs=1e-9)


def test_sleep_windows_last_half_a_period_and_the_persistent_until_a_restart() -> None:
    slowdown = SleepWindows(n=50, intensity=0.8, persistent=(2, 3), probability=0.3)
    begins = np.arange(40) * 1800.0
    others = [i for i in range(50) if i not in (2, 3)]
    first = np.array([[slowdown.sleep_s(i, round=0, at=at) for i in others] for at in begins])
    assert set(first.round(9).ravel()) == {0.0, 1.2}
    assert (first > 0).mean() == pytest.approx(0.3, abs=0.03)
    assert {slowdown.sleep_s(i, round=0, at=at + 900) for i in others for at in begins} == {0.0}
    pace = slowdown.pace()
    assert isinstance(pace, RestartablePace)
    fresh = pace.restarted(3, at=2000.0)
    asleep = [fresh.latency_s(i, round=0, at=at) for i in (2, 3) for at in (1000.0, 3000.0)]
    assert asleep == pytest.approx([3.2, 3.2, 3.2, 0.0])
    assert pace.latency_s(3, round=0, at=3000.0) == pytest.approx(3.2)


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: SlowPeriods(n=0, delay=1.0), "n"),
        (lambda: SlowPeriods(n=2, delay=-1.0), "delay"),
        (lambda: SlowPeriods(n=2, delay=1.0, probability=1.5), "probability"),
        (lambda: PowerLawClocks(n=2, exponent=2.0), "exponent"),
        (lambda: Uneven(n=3), "n"),
        (lambda: Uneven(n=2, heavy=1.0), "heavy"),
        (lambda: Disrupters(n=2, delay=1.0, every_s=0.0), "every_s"),
        (lambda: RotatingSleep(n=2, sleep_for_s=1.0, clock_s=0.0), "clock_s"),
        (lambda: SleepWindows(n=2, intensity=1.0, persistent=(2,)), "persistent"),
    ],
)
def test_what_is_no_pattern_is_refused(make: object, argument: str) -> None:
    with pytest.raises(ParameterError, match=f"`{argument}`"):
        make()  # type: ignore[operator]
