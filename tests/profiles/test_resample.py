"""Profiles put together, and drawn again with replacement."""

from __future__ import annotations

import numpy as np
import pytest

from seqgc.errors import ParameterError
from seqgc.profiles import (
    DelayProfile,
    ProfileMeta,
    concatenate,
    resample_rounds,
    resample_workers,
)

SEED = 20


def numbered(rounds: int, workers: int, **meta: float | str) -> DelayProfile:
    """Times that tell their round and worker: 1 + round + worker / 100; worker 1 fails."""
    times = 1 + np.arange(rounds)[:, None] + np.arange(workers) / 100
    status = np.zeros((rounds, workers), dtype=np.int8)
    status[:, 1] = 1
    return DelayProfile(times=times, status=status, meta=ProfileMeta(**meta))


def test_a_profile_cut_in_two_is_put_together_again() -> None:
    whole = numbered(7, 3, alpha=1.5, region="a", base_load=0.25)
    both = concatenate([whole.select_rounds(0, stop=3), whole.select_rounds(3, stop=7)])
    np.testing.assert_array_equal(both.times, whole.times)
    np.testing.assert_array_equal(both.status, whole.status)
    assert both.meta == whole.meta


def test_what_the_parts_say_differently_is_unknown_of_the_whole() -> None:
    parts = [
        numbered(1, 2, alpha=1.0, region="a", model="cnn"),
        numbered(1, 2, alpha=2.0, region="b", model="cnn"),
    ]
    assert concatenate(parts).meta == ProfileMeta(model="cnn")


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([], "at least one"),
        ([numbered(1, 2), numbered(1, 3)], r"same number of workers; got \[2, 3\]"),
        ([numbered(1, 2), numbered(1, 2, base_load=0.5)], r"same base load; got \[0.0, 0.5\]"),
    ],
)
def test_what_does_not_fit_together_is_refused(parts: list[DelayProfile], reason: str) -> None:
    with pytest.raises(ParameterError, match=f"`profiles` must .*{reason}"):
        concatenate(parts)


@pytest.mark.parametrize("block", [1, 2, 3, 7])
def test_rounds_are_drawn_in_blocks_with_their_status(block: int) -> None:
    source = numbered(7, 3)
    drawn = resample_rounds(source, 20, block=block, rng=np.random.default_rng(SEED))
    assert drawn.times.shape == (20, 3)
    chosen = drawn.times[:, 0].astype(int) - 1
    np.testing.assert_array_equal(drawn.times, source.times[chosen])
    np.testing.assert_array_equal(drawn.status, source.status[chosen])
    for start in range(0, 20, block):
        steps = np.diff(chosen[start : start + block]) % 7
        assert (steps == 1).all(), f"block at {start} is torn: {chosen}, seed {SEED}"


def test_every_round_is_drawn_equally_often_also_at_the_ends() -> None:
    drawn = resample_rounds(numbered(5, 2), 20_000, block=3, rng=np.random.default_rng(SEED))
    counts = np.bincount(drawn.times[:, 0].astype(int) - 1)
    assert counts == pytest.approx(np.full(5, 4000), abs=300), f"seed {SEED}"


def test_the_same_seed_draws_the_same_and_another_does_not() -> None:
    one, same, other = (
        resample_rounds(numbered(9, 2), 30, block=2, rng=np.random.default_rng(seed)).times
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_workers_are_drawn_with_replacement_each_with_all_its_rounds() -> None:
    source = numbered(4, 3, base_load=1 / 3)
    drawn = resample_workers(source, 50, rng=np.random.default_rng(SEED))
    chosen = np.rint((drawn.times[0] - 1) * 100).astype(int)
    assert set(chosen) == {0, 1, 2}, f"seed {SEED}"
    np.testing.assert_array_equal(drawn.times, source.times[:, chosen])
    np.testing.assert_array_equal(drawn.status, source.status[:, chosen])
    assert drawn.meta == source.meta


def test_nothing_cannot_be_drawn() -> None:
    rng = np.random.default_rng(SEED)
    with pytest.raises(ParameterError, match="`rounds` must be an integer >= 1"):
        resample_rounds(numbered(2, 2), 0, block=1, rng=rng)
    for block in (0, 3):
        with pytest.raises(ParameterError, match="`block` must be an integer >= 1 and <= 2"):
            resample_rounds(numbered(2, 2), 1, block=block, rng=rng)
    with pytest.raises(ParameterError, match="`workers` must be an integer >= 1"):
        resample_workers(numbered(2, 2), 0, rng=rng)
