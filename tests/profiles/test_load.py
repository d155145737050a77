"""What load costs: the line is recovered, and says how well it fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import linregress, t

from seqgc.errors import ParameterError, ProfileError
from seqgc.profiles import DelayProfile, ProfileMeta, fit_load_model, read_profile

LOADS = (0.0, 0.25, 0.5, 0.75, 1.0)


def recorded(
    loads: tuple[float, ...] = LOADS, *, noise_s: float = 0.0, seed: int = 3
) -> list[DelayProfile]:
    """Workers 0, 1, 2 with alpha 1, 2, 3 over 0.5 s."""
    rng = np.random.default_rng(seed)
    return [
        DelayProfile.from_times(
            0.5 + load * np.array([1.0, 2.0, 3.0]) + noise_s * rng.random((6, 3)),
            meta=ProfileMeta(base_load=load),
        )
        for load in loads
    ]


def test_an_exact_line_is_recovered_worker_by_worker() -> None:
    model = fit_load_model(recorded(), per_worker=True)
    assert model.alpha == pytest.approx(2.0, rel=1e-12)
    assert model.intercept_s == pytest.approx(0.5, rel=1e-12)
    assert model.r_squared == pytest.approx(1.0, abs=1e-12)
    assert model.stderr == pytest.approx(0.0, abs=1e-9)
    assert model.worker_alpha == pytest.approx([1.0, 2.0, 3.0], rel=1e-12)
    assert not model.worker_alpha.flags.writeable
    assert fit_load_model(recorded()).worker_alpha is None


def test_a_noisy_line_is_that_of_scipy() -> None:
    profiles = recorded(noise_s=0.4)
    model = fit_load_model(profiles)
    expected = linregress(LOADS, [p.times.mean() for p in profiles])
    assert model.alpha == pytest.approx(expected.slope, rel=1e-12)
    assert model.intercept_s == pytest.approx(expected.intercept, rel=1e-12)
    assert model.r_squared == pytest.approx(expected.rvalue**2, rel=1e-12)
    assert model.stderr == pytest.approx(expected.stderr, rel=1e-9)
    assert 0 < model.r_squared < 1
    low, high = model.alpha_interval
    half = t.ppf(0.975, len(LOADS) - 2) * expected.stderr
    assert (low, high) == pytest.approx((model.alpha - half, model.alpha + half), rel=1e-3)


@pytest.mark.parametrize("count", [3, 4, 12, 13, 40])
def test_the_interval_is_student_s_at_any_number_of_loads(count: int) -> None:
    model = fit_load_model(recorded(tuple(np.linspace(0, 1, count)), noise_s=0.4))
    low, high = model.alpha_interval
    assert (high - low) / 2 == pytest.approx(t.ppf(0.975, count - 2) * model.stderr, rel=2e-3)


def test_two_loads_fix_a_line_whose_error_nobody_knows() -> None:
    model = fit_load_model(recorded((0.5, 1.0)))
    assert model.alpha == pytest.approx(2.0, rel=1e-12)
    assert model.stderr is None
    assert model.alpha_interval is None


def test_the_order_of_the_recordings_does_not_matter() -> None:
    profiles = recorded(noise_s=0.4)
    forwards, backwards = fit_load_model(profiles), fit_load_model(profiles[::-1])
    assert backwards.alpha == pytest.approx(forwards.alpha, rel=1e-12)


def test_who_did_not_answer_says_nothing_of_load() -> None:
    profiles = recorded()
    times, status = profiles[4].times.copy(), profiles[4].status.copy()
    times[1], status[1] = 60.0, 2
    profiles[4] = replace(profiles[4], times=times, status=status)
    model = fit_load_model(profiles, per_worker=True)
    assert model.alpha == pytest.approx(2.0, rel=1e-12)
    assert model.worker_alpha == pytest.approx([1.0, 2.0, 3.0], rel=1e-12)


def test_a_recording_or_worker_without_an_answer_is_refused() -> None:
    profiles = recorded()
    status = np.zeros((6, 3), dtype=np.int8)
    status[:, 1] = 1
    profiles[1] = replace(profiles[1], status=status)
    assert fit_load_model(profiles).alpha == pytest.approx(2.0, rel=1e-12)
    with pytest.raises(ProfileError, match=r"column 1 has no answer .* 0\.25"):
        fit_load_model(profiles, per_worker=True)
    profiles[1] = replace(profiles[1], status=np.ones((6, 3), dtype=np.int8))
    with pytest.raises(ProfileError, match=r"no worker answered .* 0\.25"):
        fit_load_model(profiles)


@pytest.mark.parametrize("loads", [(), (0.5,), (0.5, 0.5)])
def test_one_load_makes_no_line(loads: tuple[float, ...]) -> None:
    with pytest.raises(ParameterError, match="`profiles` must be recorded at two different"):
        fit_load_model(recorded(loads))


def test_other_workers_make_no_line() -> None:
    other = DelayProfile.from_times(np.ones((6, 4)), meta=ProfileMeta(base_load=2.0))
    with pytest.raises(ParameterError, match="`profiles` must be of the same number of workers"):
        fit_load_model([*recorded(), other])


def test_the_recorded_series_gives_its_published_alpha(recorded_profiles: Path) -> None:
    # Published: 1.1217530061354162, from times before they were rounded to the microseconds of
    # the files. Rounding moves each of the five means by about 3e-9 s, and the slope by 6e-9.
    profiles = [
        read_profile(
            recorded_profiles / f"cnn-canada-batch2048-load{load:.3f}-30rounds-d.csv",
            meta=ProfileMeta(base_load=load),
        )
        for load in LOADS
    ]
    model = fit_load_model(profiles, per_worker=True)
    assert model.alpha == pytest.approx(1.1217530061354162, abs=1e-8)
    assert model.r_squared == pytest.approx(0.99732, abs=1e-5)
    assert model.stderr == pytest.approx(0.03357, abs=1e-5)
    assert model.worker_alpha.mean() == pytest.approx(model.alpha, rel=1e-12)
