"""Eq. 3 and Eq. 4 of AntDT against brute force; shares sum to the batch, and never do harm."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqgc.control import MOST_BLOCKS, balance, balance_in_blocks
from seqgc.errors import ParameterError
from seqgc.ports import FloatArray

WORKERS, POINTS = 5, 24
SPEEDS = st.lists(
    st.one_of(st.sampled_from([0.5, 1.0, 2.0, 3.0]), st.floats(0.01, 100.0)),
    min_size=1,
    max_size=WORKERS,
).map(np.array)


def all_shares(choices: list[list[int]], total: int) -> Iterator[tuple[int, ...]]:
    """Every way to give each worker one of its choices, so that they sum to the total."""
    if len(choices) == 1:
        if total in choices[0]:
            yield (total,)
        return
    for first in choices[0]:
        if first <= total:
            for rest in all_shares(choices[1:], total - first):
                yield (first, *rest)


def least_seconds(speeds: FloatArray, choices: list[list[int]], total: int) -> float | None:
    """The shortest round, by trying all; None: there is none."""
    rounds = [float((np.array(s) / speeds).max()) for s in all_shares(choices, total)]
    return min(rounds, default=None)


def bounds(data: st.DataObject, n: int, total: int, *, from_: int) -> tuple[list[int], list[int]]:
    least = data.draw(st.lists(st.integers(from_, max(from_, total // n)), min_size=n, max_size=n))
    more = data.draw(st.lists(st.integers(0, total), min_size=n, max_size=n))
    return least, [a + b for a, b in zip(least, more, strict=True)]


@given(speeds=SPEEDS, total=st.integers(1, POINTS), data=st.data())
def test_no_shares_end_sooner(speeds: FloatArray, total: int, data: st.DataObject) -> None:
    n = len(speeds)
    least, most = bounds(data, n, total, from_=0)
    choices = [list(range(a, b + 1)) for a, b in zip(least, most, strict=True)]
    best = least_seconds(speeds, choices, total)
    if best is None:
        with pytest.raises(ParameterError, match=r"`(least|most)` must"):
            balance(speeds, total, least=np.array(least), most=np.array(most))
        return
    shares = balance(speeds, total, least=np.array(least), most=np.array(most))
    assert shares.sum() == total
    assert ((shares >= least) & (shares <= most)).all()
    assert (shares / speeds).max() <= best * (1 + 1e-12)


@given(speeds=SPEEDS, total=st.integers(1, POINTS), data=st.data())
def test_no_blocks_end_sooner(speeds: FloatArray, total: int, data: st.DataObject) -> None:
    n = len(speeds)
    least, most = bounds(data, n, max(1, total // 2), from_=1)
    every = range(1, MOST_BLOCKS + 1)
    choices = [
        sorted({c * points for c in every for points in range(a, b + 1) if c * points <= total})
        for a, b in zip(least, most, strict=True)
    ]
    best = None if not all(choices) else least_seconds(speeds, choices, total)
    if best is None:
        with pytest.raises(ParameterError, match=r"`(least|most)` must"):
            balance_in_blocks(speeds, total, least=np.array(least), most=np.array(most))
        return
    points, blocks = balance_in_blocks(speeds, total, least=np.array(least), most=np.array(most))
    assert (points * blocks).sum() == total
    assert ((points >= least) & (points <= most)).all()
    assert ((blocks >= 1) & (blocks <= MOST_BLOCKS)).all()
    assert (points * blocks / speeds).max() <= best * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_the_largest_of_these_are_as_good(seed: int) -> None:
    rng = np.random.default_rng(seed)
    speeds = rng.uniform(0.1, 4.0, WORKERS)
    best = least_seconds(speeds, [list(range(POINTS + 1))] * WORKERS, POINTS)
    assert best == (balance(speeds, POINTS) / speeds).max()
    most = int(rng.integers(1, 6))
    made = sorted({c * b for c in range(1, MOST_BLOCKS + 1) for b in range(1, most + 1)})
    best = least_seconds(speeds, [made] * WORKERS, POINTS)
    points, blocks = balance_in_blocks(speeds, POINTS, most=most)
    assert (points * blocks / speeds).max() == best


@given(
    speeds=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=40).map(np.array),
    total=st.integers(1, 5000),
)
def test_a_round_never_takes_longer_than_with_even_shares(speeds: FloatArray, total: int) -> None:
    n = len(speeds)
    even = np.diff(np.arange(n + 1) * total // n)
    for shares in (balance(speeds, total), balance(speeds, total, least=total // n)):
        assert shares.sum() == total
        assert (shares / speeds).max() <= (even / speeds).max() * (1 + 1e-12)


def test_equal_workers_have_equal_shares_the_first_one_more() -> None:
    assert balance(np.full(4, 0.3), 10).tolist() == [3, 3, 2, 2]


def test_the_papers_two_kinds_of_workers_end_together() -> None:
    speeds = np.repeat([300.0, 100.0], 4)  # points a second
    points, blocks = balance_in_blocks(speeds, 768, most=128)
    assert (points.tolist(), blocks.tolist()) == ([72] * 4 + [48] * 4, [2] * 4 + [1] * 4)
    assert (points * blocks / speeds).max() == 0.48
    bounded = balance(speeds, 768, most=128)
    assert bounded.tolist() == [128] * 4 + [64] * 4
    assert (bounded / speeds).max() == 0.64
    assert (96 / speeds).max() == 0.96


def test_a_sum_that_fewest_blocks_leave_out_is_made_of_others() -> None:
    # Blocks of 7 points: shares are multiples of 7 up to 35, and 36 is none of two of them.
    with pytest.raises(
        ParameterError, match="`most` must let 1 to 5 blocks of each worker add up to 36"
    ):
        balance_in_blocks(np.ones(2), 36, least=7, most=7)
    points, blocks = balance_in_blocks(np.array([4.0, 1.0]), 35, least=7, most=7)
    assert (points.tolist(), blocks.tolist()) == ([7, 7], [4, 1])


@pytest.mark.parametrize(
    ("speeds", "total", "bounds", "rule"),
    [
        ([1.0, 0.0], 4, {}, "`speeds` must be numbers > 0"),
        ([1.0, np.nan], 4, {}, "`speeds` must be numbers > 0"),
        ([], 4, {}, "`speeds` must be numbers > 0"),
        ([[1.0]], 4, {}, "`speeds` must be numbers > 0"),
        ([1.0], 0, {}, "`total` must be an integer >= 1"),
        ([1.0, 1.0], 4, {"least": 3}, "`least` must be >= 0, at most `most`, and sum to at most 4"),
        ([1.0, 1.0], 4, {"least": -1}, "`least` must be >= 0"),
        ([1.0, 1.0], 4, {"most": 1}, "`most` must let 2 workers have 4 points"),
    ],
)
def test_what_cannot_be_is_refused(
    speeds: list[float], total: int, bounds: dict[str, int], rule: str
) -> None:
    with pytest.raises(ParameterError, match=rule):
        balance(np.array(speeds), total, **bounds)
    if "most" not in bounds and "least" not in bounds:
        with pytest.raises(ParameterError, match=rule):
            balance_in_blocks(np.array(speeds), total, most=max(total, 1))


def test_a_block_has_a_point_at_least() -> None:
    with pytest.raises(ParameterError, match="`least` must be >= 1 point in a block; got 0"):
        balance_in_blocks(np.ones(2), 4, least=0, most=4)
