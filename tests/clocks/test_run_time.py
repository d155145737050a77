"""Run times of clocks on given seconds: the recursion, its limits, and recorded profiles."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from seqgc.cli import main
from seqgc.clocks import Clocks
from seqgc.ports import FloatArray
from seqgc.profiles import DelayProfile
from seqgc.rounds import Setting
from seqgc.schemes import Defence, Uncoded
from seqgc.search import Reading, Rehearsal, Replay, replay

TIMES = st.tuples(st.integers(1, 12), st.integers(1, 5)).flatmap(
    lambda shape: arrays(np.float64, shape, elements=st.floats(0.01, 100.0))
)
SLACKS = st.none() | st.integers(0, 5)


def recursion(times: FloatArray, slack: int | None) -> float:
    """When the last worker ends its last clock: end[t + 1] = max(end[t], max end[t - s]) + T[t]."""
    ends = np.zeros((len(times) + 1, times.shape[1]))
    for clock, seconds in enumerate(times):
        begins = ends[clock]
        if slack is not None and clock >= slack:
            begins = np.maximum(begins, ends[clock - slack].max())
        ends[clock + 1] = begins + seconds
    return float(ends[-1].max())


def replayed(defence: Defence, times: FloatArray, **more) -> Replay:
    more = {"alpha": 0.0} | more
    profile = DelayProfile.from_times(times)
    return replay(Setting(scheme=defence), Rehearsal(profile=profile, **more))


@given(TIMES, SLACKS)
def test_the_run_time_is_the_recursions(times: FloatArray, slack: int | None) -> None:
    outcome = replayed(Clocks(n=times.shape[1], slack=slack), times)
    assert outcome.runtime_s == pytest.approx(recursion(times, slack), rel=1e-9)
    assert outcome.job_finish_round.tolist() == list(range(len(times)))
    assert outcome.responded.all()


@given(TIMES)
def test_bulk_synchronous_is_uncoded(times: FloatArray) -> None:
    n = times.shape[1]
    bsp, uncoded = replayed(Clocks(n=n, slack=0), times), replayed(Uncoded(n=n), times)
    np.testing.assert_allclose(bsp.round_seconds, uncoded.round_seconds, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(bsp.kappa_s, uncoded.kappa_s, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(bsp.loads, uncoded.loads)


@given(TIMES, st.integers(0, 3))
def test_a_slack_of_all_clocks_is_none_at_all(times: FloatArray, more: int) -> None:
    n, clocks = times.shape[1], len(times)
    bound, free = Clocks(n=n, slack=clocks + more), Clocks(n=n, slack=None)
    assert (
        replayed(bound, times).round_seconds.tolist()
        == replayed(free, times).round_seconds.tolist()
    )
    assert replayed(free, times).runtime_s == pytest.approx(times.sum(axis=0).max(), rel=1e-9)


@given(TIMES)
def test_more_slack_never_takes_longer(times: FloatArray) -> None:
    slacks = (*range(4), None)
    seconds = [replayed(Clocks(n=times.shape[1], slack=s), times).runtime_s for s in slacks]
    assert all(more <= less * (1 + 1e-9) for less, more in itertools.pairwise(seconds))


@given(TIMES, SLACKS, st.integers(1, 3), st.integers(1, 2))
def test_a_clock_takes_what_its_load_takes(
    times: FloatArray, slack: int | None, wpc: int, bundle: int
) -> None:
    """Row t of the profile is clock t's; the last clock may have fewer jobs."""
    (rounds, n), alpha = times.shape, 2.5
    outcome = replay(
        Setting(scheme=Clocks(n=n, slack=slack, wpc=wpc), jobs_per_round=bundle),
        Rehearsal(profile=DelayProfile.from_times(times), alpha=alpha),
    )
    jobs = np.array(
        [len(each) for each in np.array_split(np.arange(rounds), range(wpc, rounds, wpc))]
    )
    loads = bundle * jobs / n
    expected = recursion(times[: len(jobs)] + alpha * loads[:, None], slack)
    assert outcome.runtime_s == pytest.approx(expected, rel=1e-9)
    np.testing.assert_allclose(outcome.loads, jobs / n)
    assert outcome.job_finish_round.tolist() == (np.arange(rounds) // wpc).tolist()


def test_the_profile_begins_again_where_it_may() -> None:
    times = np.array([[1.0, 3.0], [2.0, 1.0]])
    outcome = replayed(Clocks(n=2, slack=1), times, num_jobs=5, repeat=True)
    assert outcome.runtime_s == recursion(times[[0, 1, 0, 1, 0]], 1)


def test_workers_that_stay_take_as_long() -> None:
    """None has more than one task at a time."""
    rng = np.random.default_rng(0)
    profile = DelayProfile.from_times(rng.uniform(1, 4, (9, 4)))
    setting = Setting(scheme=Clocks(n=4, slack=1))
    stays = Rehearsal(profile=profile, alpha=1.0, reading=Reading(resident=True))
    function = Rehearsal(profile=profile, alpha=1.0)
    assert replay(setting, stays).runtime_s == replay(setting, function).runtime_s


def test_batches_are_charged_as_they_are_cut() -> None:
    profile = DelayProfile.from_times(np.ones((4, 3)))
    rehearsal = Rehearsal(profile=profile, alpha=3.0, batch=7)  # parts of 3, 2 and 2 points
    for defence in (Clocks(n=3, slack=0), Uncoded(n=3)):
        outcome = replay(Setting(scheme=defence), rehearsal)
        assert outcome.runtime_s == pytest.approx(4 * (1 + 3 * 3 / 7))
        np.testing.assert_allclose(outcome.loads, 3 / 7)


def test_what_does_not_fit_is_refused() -> None:
    times = np.ones((2, 3))
    with pytest.raises(ValueError, match="must have a column for each of the 2 workers"):
        replayed(Clocks(n=2, slack=1), times)
    with pytest.raises(ValueError, match="must not exceed the profile's 2 rounds"):
        replayed(Clocks(n=3, slack=1), times, num_jobs=3)


# ---- recorded delays ----------------------------------------------------------------------------

ROW_D = {
    "uncoded": 48.2392,
    "bsp": 48.2392,
    "a-bsp:wpc=2": 24.1794,
    "ssp:slack=1": 31.8063,
    "asp": 29.2193,
}


def _replay(capsys, profile: Path, alpha: float, spec: str) -> dict[str, object]:
    words = ["replay", str(profile), "--defence", spec, "--alpha", str(alpha), "--jobs", "30"]
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("spec", "seconds"), ROW_D.items())
def test_a_recorded_profile_takes_what_it_should(recorded_profiles, capsys, spec, seconds) -> None:
    profile = recorded_profiles / "cnn-canada-batch2048-load0.000-30rounds-d.csv"
    facts = _replay(capsys, profile, 1.12, spec)
    assert facts["runtime_s"] == pytest.approx(seconds, abs=1e-4)
    assert facts["scheme"] == spec


@pytest.mark.parametrize(("spec", "seconds"), [("bsp", 55.1392), ("ssp:slack=1", 38.0695)])
def test_so_it_does_where_computing_is_dear(recorded_profiles, capsys, spec, seconds) -> None:
    profile = recorded_profiles / "cnn-canada-batch2048-load0.000-30rounds-d.csv"
    assert _replay(capsys, profile, 60, spec)["runtime_s"] == pytest.approx(seconds, abs=1e-3)
