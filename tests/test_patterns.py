"""The statistics of stragglers are what their definitions say, counted the long way."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from seqgc.errors import ParameterError
from seqgc.profiles import DelayProfile, read_profile
from seqgc.stragglers import straggler_pattern, straggler_stats

SHAPES = st.tuples(st.integers(1, 7), st.integers(1, 4))


def with_stragglers(pattern: np.ndarray) -> DelayProfile:
    """A profile in which exactly the pattern straggles at mu = 1: half are late, half fail."""
    even = np.indices(pattern.shape).sum(axis=0) % 2 == 0
    late = pattern & even & ~pattern.all(axis=1, keepdims=True)  # later than whom?
    return DelayProfile(times=np.where(late, 2.5, 1.0), status=(pattern & ~late).astype(np.int8))


def windows(pattern: np.ndarray, W: int) -> list[np.ndarray]:
    return [pattern[t : t + W] for t in range(max(1, len(pattern) - W + 1))]


def bursty(pattern: np.ndarray, *, B: int, W: int, lam: int) -> bool:
    for window in windows(pattern, W):
        rounds = [[t for t, late in enumerate(column) if late] for column in window.T]
        if sum(1 for ts in rounds if ts) > lam or any(
            ts and ts[-1] - ts[0] > B - 1 for ts in rounds
        ):
            return False
    return True


def arbitrary(pattern: np.ndarray, *, N: int, W: int, lam: int) -> bool:
    return all(
        sum(1 for column in window.T if any(column)) <= lam
        and all(sum(column) <= N for column in window.T)
        for window in windows(pattern, W)
    )


@given(pattern=SHAPES.flatmap(lambda shape: arrays(np.bool_, shape)))
def test_every_statistic_is_its_definition(pattern: np.ndarray) -> None:
    profile = with_stragglers(pattern)
    np.testing.assert_array_equal(straggler_pattern(profile, mu=1.0), pattern)
    stats = straggler_stats(profile, mu=1.0, max_window=4)
    n = pattern.shape[1]

    assert stats.rate == pytest.approx(sum(map(sum, pattern.tolist())) / pattern.size)
    nexts: dict[bool, list[bool]] = {True: [], False: []}
    lengths: list[int] = []
    for column in pattern.T.tolist():
        for before, after in pairwise(column):
            nexts[before].append(after)
        text = "".join("x" if late else " " for late in column)
        lengths += [len(burst) for burst in text.split()]
    for rate, seen in (
        (stats.rate_after_straggling, nexts[True]),
        (stats.rate_after_answering, nexts[False]),
    ):
        assert rate == (pytest.approx(sum(seen) / len(seen)) if seen else None)
    longest = max(lengths, default=0)
    assert stats.bursts.tolist() == [lengths.count(k) for k in range(1, longest + 1)]
    assert stats.smallest_s == max(sum(row) for row in pattern.tolist())

    pairs = [(row.W, row.B) for row in stats.smallest_lam]
    assert pairs == [(2, 1), (3, 1), (3, 2), (4, 1), (4, 2), (4, 3)]
    for row in stats.smallest_lam:
        fits = [lam for lam in range(n + 1) if bursty(pattern, B=row.B, W=row.W, lam=lam)]
        assert row.bursty == min(fits, default=None)
        fits = [lam for lam in range(n + 1) if arbitrary(pattern, N=row.B, W=row.W, lam=lam)]
        assert row.arbitrary == min(fits, default=None)


def test_who_answers_at_the_deadline_itself_is_no_straggler() -> None:
    late = np.nextafter(2.0, 3.0)
    profile = DelayProfile.from_times([[1.0, 2.0, late]])
    assert straggler_pattern(profile, mu=1.0).tolist() == [[False, False, True]]
    assert straggler_pattern(profile, mu=0.0).tolist() == [[False, True, True]]


def test_who_fails_straggles_and_never_sets_the_deadline() -> None:
    status = np.array([[1, 0, 0], [1, 1, 1]], dtype=np.int8)
    profile = DelayProfile(times=np.array([[0.1, 1.0, 1.5], [1.0, 1.0, 1.0]]), status=status)
    assert straggler_pattern(profile, mu=1.0).tolist() == [[True, False, False], [True] * 3]


def test_parameters_outside_their_range_are_refused() -> None:
    profile = DelayProfile.from_times([[1.0]])
    for mu in (-0.1, float("nan"), float("inf")):
        with pytest.raises(ParameterError, match="`mu` must be a finite number >= 0"):
            straggler_stats(profile, mu=mu)
    with pytest.raises(ParameterError, match="`max_window` must be an integer >= 1"):
        straggler_stats(profile, mu=1.0, max_window=0)
    assert straggler_stats(profile, mu=1.0, max_window=1).smallest_lam == ()


def test_recorded_stragglers_are_mild(recorded_profiles: Path) -> None:
    profile = read_profile(recorded_profiles / "cnn-canada-batch2048-load0.000-30rounds-d.csv")
    stats = straggler_stats(profile, mu=1.0)
    assert stats.rate == pytest.approx(0.05, abs=0.001)
    assert stats.rate_after_straggling == pytest.approx(0.10, abs=0.001)
    assert stats.bursts[0] / stats.bursts.sum() > 0.9
