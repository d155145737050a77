"""The delay profile: what it refuses, and its load model."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from seqgc.errors import ParameterError, ProfileError
from seqgc.profiles import DelayProfile, ProfileMeta

TIMES = np.array([[0.5, 0.75, 1.0], [2.0, 0.25, 4.0]])


def a_profile(**meta: float) -> DelayProfile:
    return DelayProfile.from_times(TIMES, meta=ProfileMeta(**meta))


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf, -1.0, 0.0, 1e-10, 1.7e308])
def test_a_time_of_which_no_sums_can_be_made_is_refused_with_its_place(wrong: float) -> None:
    times = TIMES.copy()
    times[1, 2] = wrong
    with pytest.raises(ProfileError, match=f"row 1, column 2 .*got {re.escape(repr(wrong))}"):
        DelayProfile.from_times(times)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (3,), (1, 2, 3)])
def test_what_is_not_a_matrix_with_entries_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ProfileError, match="matrix"):
        DelayProfile.from_times(np.ones(shape))


def test_ragged_rows_are_refused() -> None:
    with pytest.raises(ProfileError, match="rows of one length"):
        DelayProfile.from_times([[1.0, 2.0], [3.0]])


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (np.zeros((2, 2), dtype=np.int8), "shape"),
        (np.zeros((2, 3)), "integers"),
        (np.full((2, 3), -1), "0 ... 127"),
        (np.full((2, 3), 128), "0 ... 127"),
    ],
)
def test_a_status_of_another_shape_type_or_range_is_refused(
    status: np.ndarray, reason: str
) -> None:
    with pytest.raises(ProfileError, match=reason):
        DelayProfile(times=TIMES, status=status)


def test_a_profile_owns_read_only_copies() -> None:
    mine = TIMES.copy()
    profile = DelayProfile.from_times(mine)
    mine[0, 0] = 99.0
    assert profile.times[0, 0] == 0.5
    assert profile.status.dtype == np.int8
    for array in (profile.times, profile.status):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("base_load", -0.1),
        ("base_load", math.nan),
        ("base_load", 1e300),
        ("alpha", math.inf),
        ("alpha", 1e16),
        ("rtt_s", 1e16),
        ("schema", 2),
    ],
)
def test_meta_outside_its_range_is_refused(argument: str, value: float) -> None:
    with pytest.raises(ParameterError, match=argument):
        ProfileMeta(**{argument: value})


def test_the_load_model_is_a_line_through_the_base_load() -> None:
    profile = a_profile(base_load=0.25, alpha=2.0)
    np.testing.assert_array_equal(profile.at_load(0.25).times, TIMES)
    heavier = profile.at_load(0.5)
    np.testing.assert_array_equal(heavier.times, TIMES + 0.5)
    assert heavier.meta == ProfileMeta(base_load=0.5, alpha=2.0)
    np.testing.assert_array_equal(heavier.at_load(0.25).times, TIMES)
    np.testing.assert_array_equal(profile.at_load(0.5, alpha=4.0).times, TIMES + 1.0)


def test_a_load_that_leaves_a_worker_no_time_is_refused() -> None:
    with pytest.raises(ProfileError, match=r"^alpha=1 .*leaves 0 s for row 1, column 1"):
        a_profile(base_load=0.25, alpha=1.0).at_load(0.0)


def test_a_load_needs_an_alpha_from_somewhere() -> None:
    with pytest.raises(ParameterError, match="alpha"):
        a_profile().at_load(0.5)
    with pytest.raises(ParameterError, match="load"):
        a_profile(alpha=1.0).at_load(-0.5)


def test_scaling_scales_time_and_what_load_costs() -> None:
    profile = a_profile(alpha=2.0)
    np.testing.assert_array_equal(profile.scaled(0.5).times, TIMES / 2)
    np.testing.assert_array_equal(
        profile.scaled(0.5).at_load(0.5).times, profile.at_load(0.5).scaled(0.5).times
    )
    assert a_profile().scaled(0.5).meta.alpha is None
    for factor in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ParameterError, match="factor"):
            profile.scaled(factor)


def test_rounds_are_selected_with_their_status() -> None:
    status = np.array([[0, 0, 1], [2, 0, 0]], dtype=np.int8)
    chosen = DelayProfile(times=TIMES, status=status).select_rounds(1, stop=2)
    np.testing.assert_array_equal(chosen.times, TIMES[1:])
    np.testing.assert_array_equal(chosen.status, status[1:])
    for start, stop in ((1, 1), (-1, 1), (0, 3)):
        with pytest.raises(ParameterError, match="start, stop"):
            a_profile().select_rounds(start, stop=stop)
