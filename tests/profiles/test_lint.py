"""Every rule fires where it should, and is silent where it should be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from seqgc.profiles import (
    LAMBDA_CNN,
    DelayProfile,
    ProfileMeta,
    lint,
    lint_series,
    read_profile,
)

SEED = 5


def sound(rounds: int = 6, workers: int = 9) -> np.ndarray:
    """Times in 1 ... 1.4 s, all different."""
    return 1 + 0.4 * np.random.default_rng(SEED).random((rounds, workers))


def places(
    times: np.ndarray, status: np.ndarray | None = None
) -> list[tuple[str, str, int | None, int | None]]:
    answered = np.zeros(times.shape, dtype=np.int8)
    profile = DelayProfile(times=times, status=answered if status is None else status)
    return [(f.rule, f.severity, f.row, f.column) for f in lint(profile)]


def test_nothing_is_wrong_with_sound_recordings() -> None:
    assert places(sound()) == []
    assert places(np.array([[2.0]])) == []
    one_failed = np.zeros((6, 9), dtype=np.int8)
    one_failed[2, 3] = 1
    assert places(sound(), one_failed) == []


def test_a_generated_profile_shows_its_stalls_only() -> None:
    profile = LAMBDA_CNN.profile(30, workers=64, rng=np.random.default_rng(SEED))
    ratio = profile.times / np.median(profile.times, axis=1, keepdims=True)
    found = lint(profile)
    assert {(f.row, f.column) for f in found} == set(zip(*np.nonzero(ratio > 10), strict=True))
    assert {f.rule for f in found} <= {"retry", "stall"}


# ---- errors -------------------------------------------------------------------------------------


def test_a_recording_without_an_answer_is_an_error() -> None:
    everyone = np.ones((6, 9), dtype=np.int8)
    assert places(sound(), everyone) == [("no-answer", "error", None, None)]


def test_rounds_without_an_answer_are_errors_each() -> None:
    status = np.zeros((6, 9), dtype=np.int8)
    status[[1, 4]] = 2
    assert places(sound(), status) == [
        ("no-answer", "error", 1, None),
        ("no-answer", "error", 4, None),
    ]


def test_a_constant_recording_is_an_error() -> None:
    assert places(np.full((6, 9), 0.7)) == [("constant", "error", None, None)]


def test_half_of_the_calls_failed_is_an_error() -> None:
    status = np.zeros((6, 9), dtype=np.int8)
    status[:, :4] = 1
    rules = {rule for rule, *_ in places(sound(), status)}
    assert rules == {"silent-worker", "often-failed"}  # 24 of 54
    status[:, 4] = [1, 1, 1, 0, 0, 0]
    assert places(sound(), status) == [("mostly-failed", "error", None, None)]


def test_an_answer_that_no_worker_can_give_is_an_error() -> None:
    times = sound()
    times[4, 2], times[3, 1] = 4e-5, 9.9e-5
    assert places(times) == [("too-fast", "error", 3, 1)]
    status = np.zeros((6, 9), dtype=np.int8)
    status[4, 2] = status[3, 1] = 1  # known at once to have failed
    assert "too-fast" not in [rule for rule, *_ in places(times, status)]
    times[4, 2] = times[3, 1] = 1.1e-4
    assert "too-fast" not in [rule for rule, *_ in places(times)]


def test_an_alpha_that_leaves_answers_no_time_is_named() -> None:
    def found(alpha: float) -> list[tuple[str, str]]:
        meta = ProfileMeta(alpha=alpha, base_load=0.5)
        return [(f.rule, f.severity) for f in lint(DelayProfile.from_times(sound(), meta=meta))]

    times = np.sort(sound(), axis=None)
    assert found(1.99 * times[0]) == []
    assert found(2.01 * times[0]) == [("alpha", "warning")]
    assert found(2.01 * times[26]) == [("alpha", "error")]  # 27 of 54
    (message,) = (
        f.message
        for f in lint(DelayProfile.from_times(sound(), meta=ProfileMeta(alpha=9.0, base_load=0.5)))
    )
    assert "54 of 54 answers took less than the 4.5 s" in message
    assert "set --alpha or --base-load" in message


# ---- one recording beside others ----------------------------------------------------------------


def series(*medians: float) -> list[DelayProfile]:
    return [
        DelayProfile.from_times(median * sound() / 1.2, meta=ProfileMeta(base_load=load))
        for load, median in zip(np.linspace(0, 1, len(medians)), medians, strict=True)
    ]


@pytest.mark.parametrize(
    ("medians", "crashed"),
    [
        ((0.4, 16.5, 16.9, 17.2, 17.4), True),  # as ResNet-18, but for the first
        ((16.7, 16.5, 16.9, 17.2, 17.4), False),
        ((16.7, 0.4, 16.9, 17.2, 17.4), True),
        ((0.7, 1.0, 1.3, 1.5, 1.8), False),  # load costs more than all else
        ((0.02, 0.07, 0.12, 0.23), False),
        ((0.02, 0.10, 0.13, 0.24), False),  # and somewhat less than in proportion
        ((0.4, 16.5), False),  # which of the two is wrong?
    ],
)
def test_calls_that_crash_are_much_too_quick_for_the_other_loads(
    medians: tuple[float, ...], crashed: bool
) -> None:
    found = lint_series(series(*medians))
    assert [f.rule for f in found] == ["crashed"] * crashed
    assert all("but the other recordings predict 1" in f.message for f in found)


def test_the_recorded_series_have_not_crashed(recorded_profiles: Path) -> None:
    for name in ("cnn-canada", "cnn-london", "resnet18-canada"):
        files = sorted(recorded_profiles.glob(f"{name}-*.csv"))
        profiles = [
            DelayProfile.from_times(
                read_profile(file).times,
                meta=ProfileMeta(base_load=float(file.name.split("-load")[1][:5])),
            )
            for file in files
        ]
        assert len(profiles) == 5
        assert lint_series(profiles) == []


def test_answers_that_are_all_the_same_are_an_error_whatever_failures_took() -> None:
    times, status = np.full((6, 9), 0.7), np.zeros((6, 9), dtype=np.int8)
    times[2, 3], status[2, 3] = 5.0, 1
    assert places(times, status) == [("constant", "error", None, None)]


# ---- warnings -----------------------------------------------------------------------------------


def test_a_constant_row_is_named() -> None:
    times = sound()
    times[3] = 1.2
    assert places(times) == [("constant", "warning", 3, None)]


def test_a_repeated_row_is_named_each_time() -> None:
    times = sound()
    times[4] = times[5] = times[1]
    assert places(times) == [
        ("duplicate-row", "warning", 4, None),
        ("duplicate-row", "warning", 5, None),
    ]
    times[4, 0] = np.nextafter(times[4, 0], 2.0)
    assert places(times) == [("duplicate-row", "warning", 5, None)]


def test_a_worker_that_never_answers_is_named() -> None:
    status = np.zeros((6, 9), dtype=np.int8)
    status[:, 7] = 1
    status[:5, 2] = 1
    assert places(sound(), status) == [("silent-worker", "warning", None, 7)]


@pytest.mark.parametrize(("failures", "often"), [(13, False), (14, True)])
def test_a_quarter_of_the_calls_that_failed_is_said(failures: int, often: bool) -> None:
    status = np.zeros((6, 9), dtype=np.int8)
    status.ravel()[: 4 * failures : 4] = 1  # of 54
    assert places(sound(), status) == [("often-failed", "warning", None, None)] * often


def test_milliseconds_are_asked_about() -> None:
    assert places(1100 * sound()) == [("milliseconds", "warning", None, None)]
    assert places(600 * sound()) == []


@pytest.mark.parametrize(("factor", "cold"), [(2.2, True), (1.2, False), (0.2, False)])
def test_a_cold_start_is_a_first_round_far_above_the_others(factor: float, cold: bool) -> None:
    times = sound()
    times[0] *= factor
    assert places(times) == ([("cold-start", "warning", 0, None)] if cold else [])


def test_two_rounds_tell_nothing_of_a_cold_start() -> None:
    times = sound(2)
    times[0] *= 3
    assert places(times) == []


def test_late_answers_at_a_common_offset_are_retries_and_others_are_stalls() -> None:
    times = sound()
    times[0, 0], times[2, 8], times[5, 3], times[4, 4] = 26.0, 27.0, 26.5, 38.0
    assert places(times) == [
        ("retry", "warning", 0, 0),
        ("retry", "warning", 2, 8),
        ("stall", "warning", 4, 4),
        ("retry", "warning", 5, 3),
    ]


def test_an_answer_below_ten_times_the_median_is_neither() -> None:
    times = sound()
    median = np.median(times[2])
    times[2, np.argmax(times[2])] = 9.99 * median
    assert places(times) == []
    times[2, np.argmax(times[2])] = 10.01 * median
    assert [rule for rule, *_ in places(times)] == ["stall"]


def test_the_time_at_which_a_failure_was_known_is_no_retry() -> None:
    times, status = sound(), np.zeros((6, 9), dtype=np.int8)
    times[1:3, 1], status[1:3, 1] = 60.0, 2
    assert places(times, status) == []


def test_the_retries_in_a_recorded_profile_are_found(recorded_profiles: Path) -> None:
    clean = read_profile(recorded_profiles / "cnn-canada-batch2048-load0.000-30rounds-d.csv")
    assert lint(clean) == []
    retried = read_profile(recorded_profiles / "cnn-canada-batch2048-load0.750-30rounds-d.csv")
    found = lint(retried)
    assert [f.rule for f in found] == ["retry"] * 14
    # The client gave up and asked again twice: after about 25 s, and 12 s later.
    assert sorted({round(float(retried.times[f.row, f.column]), -1) for f in found}) == [30.0, 40.0]
