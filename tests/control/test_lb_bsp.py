"""LB-BSP: shares follow speeds at once, and settle where all take as long."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqgc.control import LBBSP
from seqgc.errors import ParameterError
from seqgc.profiles import ByRound, ByWork
from seqgc.profiles.slowdowns import SleepWindows
from seqgc.rounds import ClosingRule
from tests.control.runs import virtual

SIX = np.array([[3.0, 1.0, 1.0, 1.0, 1.0, 1.0]])  # seconds for a sixth of a batch


def test_one_worker_in_six_that_is_a_third_as_fast_costs_a_switch() -> None:
    pace = ByRound(latencies_s=[[0.0]], rates=6 * SIX)
    run = virtual("lb-bsp", pace, num_jobs=40, batches=[96])
    assert virtual("uncoded", pace, num_jobs=40).seconds == 120.0
    assert run.shares == [(0, [16] * 6), (1, [6] + [18] * 5)]
    assert run.round_seconds == pytest.approx([3.0] + [18 / 16] * 39)


@given(
    rates=st.lists(st.floats(0.5, 8.0), min_size=2, max_size=6).map(np.array),
    points=st.integers(2, 200),
)
def test_from_the_second_round_on_no_shares_would_do_better(rates: np.ndarray, points: int) -> None:
    batch = points * len(rates)
    run = virtual(
        "lb-bsp", ByRound(latencies_s=[[0.0]], rates=rates[None]), num_jobs=4, batches=[batch]
    )
    bound = 1 / (1 / rates).sum()  # in real numbers
    slack = rates.max() / batch  # a point
    assert all(bound * (1 - 1e-9) <= s <= bound + slack for s in run.round_seconds[1:])
    assert run.round_seconds[0] == pytest.approx(rates.max() / len(rates))


def test_a_worker_that_recovers_has_its_share_back() -> None:
    rates = np.ones((8, 4))
    rates[:4, 0] = 5.0
    run = virtual(
        "lb-bsp",
        ByRound(latencies_s=[[0.0]], rates=rates),
        num_jobs=8,
        batches=[400],
    )
    assert run.shares[-1][1] == pytest.approx([100] * 4, abs=10)
    assert run.shares[1][1][0] < 30


def test_what_is_slow_before_it_computes_no_share_makes_faster() -> None:
    sleepy = SleepWindows(n=4, intensity=0.5, probability=0.0).pace()  # 2 s before each task of 1 s
    run = virtual("lb-bsp", sleepy, num_jobs=30, batches=[64])
    assert run.shares[-1][1] == [1, 21, 21, 21]
    assert run.round_seconds[-1] == pytest.approx(2 + 4 / 64)


def test_nobody_has_more_than_fits() -> None:
    rates = 768 / np.repeat([300.0, 100.0], 4)[None]  # of points a second
    pace = ByRound(latencies_s=[[0.0]], rates=rates)
    free = virtual("lb-bsp", pace, num_jobs=3, batches=[768])
    bound = virtual("lb-bsp:most=128", pace, num_jobs=3, batches=[768])
    assert free.shares[-1][1] == [144] * 4 + [48] * 4
    assert bound.shares[-1][1] == [128] * 4 + [64] * 4
    assert bound.round_seconds == pytest.approx([0.96, 0.64, 0.64])


def test_a_batch_that_does_not_fit_is_refused_before_the_run() -> None:
    with pytest.raises(
        ParameterError, match="`most` must let 2 workers have 9 points in all; got 4"
    ):
        LBBSP(n=2, most=4).policy(ClosingRule(), num_jobs=1, batches=[9])


def test_fewer_points_than_workers_are_shared_out_all_the_same() -> None:
    run = virtual("lb-bsp", ByWork(rates=[[1.0, 2.0, 4.0]], width=1.0), num_jobs=3, batches=[2])
    assert [sum(shares) for _, shares in run.shares] == [2] * len(run.shares)
    assert run.records[-1].responded.all()


@pytest.mark.parametrize("field", ["least", "most"])
def test_bounds_are_whole_points(field: str) -> None:
    with pytest.raises(ParameterError, match=f"`{field}` must be an integer >= 0; got -1"):
        LBBSP(n=2, **{field: -1})
