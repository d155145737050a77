"""AntDT's tables and figures on its own sizes, in virtual time: shapes, not digits.

Its cluster has 20 workers of 1.58 s a round (fitted to its Table III). One of them sleeps 4 s times
the intensity before every batch, until it is replaced; each sleeps 1.5 s times the intensity in 15
of every 30 minutes, with probability 0.3. A run has 1,648 rounds.
"""

from __future__ import annotations

import math
from functools import cache
from statistics import mean

import pytest

from seqgc.profiles.slowdowns import SleepWindows
from tests.control.runs import virtual

N, ROUNDS, POINTS = 20, 1648, 512  # in a worker's even share
BSP_S = {0.3: 4832, 0.5: 6004, 0.8: 8144}
"""Table III, by intensity. (Its 4,312 s at 0.1 contradict the ratio beside them.)"""


@cache
def seconds(spec: str, intensity: float, *, seed: int = 0, rounds: int = ROUNDS) -> float:
    sleeps = SleepWindows(n=N, intensity=intensity, clock_s=1.58, seed=seed)
    return virtual(spec, sleeps.pace(), num_jobs=rounds, batches=[N * POINTS]).seconds


def average(spec: str, intensity: float, *, seeds: int = 3, rounds: int = ROUNDS) -> float:
    found = mean(seconds(spec, intensity, seed=k, rounds=rounds) for k in range(seeds))
    print(f"{spec}, intensity {intensity}, {rounds} rounds: {found:.0f} s")
    return found


@pytest.mark.parametrize("intensity", BSP_S)
def test_whoever_waits_for_all_takes_as_long_as_in_table_iii(intensity: float) -> None:
    ours = average("uncoded", intensity, seeds=8)
    assert ours == pytest.approx(BSP_S[intensity], rel=0.04)


def test_nd_hardly_feels_what_slows_others_down() -> None:
    little, much = average("antdt-nd", 0.1), average("antdt-nd", 0.8)
    assert much / little <= 1.15
    assert 0.40 <= much / average("uncoded", 0.8) <= 0.52  # 0.489 in the paper


def test_shards_save_asynchronous_workers_from_the_slowest_and_nd_replaces_it() -> None:
    """Fig. 11: who never waits ends with the slowest worker's share of the data all the same.

    Ours take 8,299, 2,906 and 2,841 s, by which nd is 192 and 2 % faster; it is 325 and 16 % there.
    Of the twenty workers here one stays slow. It does a third of another one's work, so that a
    fresh one in its place is worth 3 % at most.
    """
    asp, dds, nd = (average(spec, 0.8) for spec in ("asp", "asp-dds", "antdt-nd-asp"))
    assert asp >= 2.5 * dds
    assert nd < dds
    for seed in range(3):
        assert seconds("antdt-nd-asp", 0.8, seed=seed) < seconds("asp-dds", 0.8, seed=seed)


def test_nd_is_before_backup_workers_before_lb_bsp_before_bsp() -> None:
    # Six of twenty are left out: as much data takes more rounds.
    found = [
        average("antdt-nd", 0.8),
        average("backup:b=6", 0.8, rounds=math.ceil(ROUNDS * N / (N - 6))),
        average("lb-bsp", 0.8),
        average("uncoded", 0.8),
    ]
    assert found == sorted(found)
