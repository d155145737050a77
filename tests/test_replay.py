"""Replay of whole runs, and the bound on them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from seqgc.errors import ParameterError, ProfileError
from seqgc.ports import Task
from seqgc.profiles import DelayProfile, ProfileMeta
from seqgc.rounds import ClosingRule, Setting
from seqgc.schemes import GC, MSGC, SRSGC, Scheme, Uncoded
from seqgc.search import Rehearsal, Replay, ReplayBackend, replay
from seqgc.stragglers import Bursty, clairvoyant_bound

HAND = DelayProfile.from_times(
    [[1.0, 2.0, 3.0, 9.0], [4.0, 1.0, 1.0, 2.0], [2.0, 2.0, 2.0, 2.0]],
    meta=ProfileMeta(base_load=0.25, alpha=4.0),
)


def random_profile(seed: int, *, rounds: int = 12, workers: int = 5) -> DelayProfile:
    times = 0.1 + np.random.default_rng(seed).pareto(1.2, size=(rounds, workers))
    return DelayProfile.from_times(times, meta=ProfileMeta(alpha=2.0))


def test_answers_stay_in_order_when_a_worker_is_cancelled() -> None:
    seconds = [1.0, 5.0, 2.0, 6.0, 7.0, 3.0, 4.0]
    backend = ReplayBackend(np.array([seconds]))
    backend.dispatch(0, [Task(round=0, worker=i, attempt=0, items=()) for i in range(7)])
    backend.cancel(0, [2])
    arrivals = [backend.receive(math.inf) for _ in range(6)]
    assert [arrival and arrival.at for arrival in arrivals] == [1.0, 3.0, 4.0, 5.0, 6.0, 7.0]


def test_a_hand_worked_run() -> None:
    # GC with s = 1 has load 1/2, a quarter above the base: a second is added to every time. Any
    # three answers decode, so rounds end at the third one; all of the last come at once.
    run = replay(
        Setting(scheme=GC(n=4, s=1), rule=ClosingRule(mu=0.0, wait_out="feasible")),
        Rehearsal(profile=HAND, num_jobs=3),
    )
    assert run.round_seconds.tolist() == [4.0, 3.0, 3.0]
    assert run.responded.sum(axis=1).tolist() == [3, 3, 4]
    assert run.reasons == ("wait-out", "wait-out", "everyone")
    assert run.waited_out.tolist() == [True, True, False]
    assert run.job_finish_round.tolist() == [0, 1, 2]
    assert run.runtime_s == 10.0


def test_the_tolerance_keeps_rounds_open_and_all_waits_for_everybody() -> None:
    tolerant = replay(
        Setting(scheme=GC(n=4, s=1), rule=ClosingRule(mu=1.5, wait_out="feasible")),
        Rehearsal(profile=HAND, num_jobs=3),
    )
    assert tolerant.round_seconds.tolist() == [5.0, 5.0, 3.0]
    assert tolerant.reasons == ("tolerance", "everyone", "everyone")
    patient = replay(
        Setting(scheme=GC(n=4, s=1), rule=ClosingRule(mu=0.0, wait_out="all")),
        Rehearsal(profile=HAND, num_jobs=3),
    )
    assert patient.round_seconds.tolist() == [10.0, 5.0, 3.0]


def test_bundles_cost_their_load_and_save_rounds() -> None:
    profile = random_profile(1)
    scheme = MSGC(n=5, B=1, W=2, lam=2)
    one = replay(
        Setting(scheme=scheme, rule=ClosingRule(mu=0.0, wait_out="feasible")),
        Rehearsal(profile=profile, num_jobs=8),
    )
    four = replay(
        Setting(scheme=scheme, rule=ClosingRule(mu=0.0, wait_out="feasible"), jobs_per_round=4),
        Rehearsal(profile=profile, num_jobs=8),
    )
    assert (len(one.round_seconds), len(four.round_seconds)) == (9, 3)
    slowest = profile.times[:3].max(axis=1) + 2.0 * 4 * scheme.normalized_load
    assert (four.round_seconds <= slowest).all()
    assert (four.round_seconds > 2.0 * 4 * scheme.normalized_load).all()
    assert four.job_finish_round.max() <= 2


def test_a_profile_repeats_only_when_asked_to() -> None:
    profile = random_profile(2, rounds=3)
    with pytest.raises(ParameterError, match="must not exceed the profile's 3 rounds; got 4"):
        replay(
            Setting(scheme=Uncoded(n=5), rule=ClosingRule(mu=0.0, wait_out="all")),
            Rehearsal(profile=profile, num_jobs=4),
        )
    run = replay(
        Setting(scheme=Uncoded(n=5), rule=ClosingRule(mu=0.0, wait_out="all")),
        Rehearsal(profile=profile, num_jobs=4, repeat=True),
    )
    assert run.round_seconds[3] == run.round_seconds[0]


@pytest.mark.parametrize("scheme", [MSGC(n=5, B=2, W=3, lam=3), SRSGC(n=5, B=2, W=3, lam=3)])
def test_a_stricter_conformity_never_ends_sooner(scheme: MSGC | SRSGC) -> None:
    strict = Bursty(B=scheme.B, W=scheme.W, lam=scheme.lam)
    longer = 0
    for seed in range(20):
        profile = random_profile(seed)
        usual = replay(
            Setting(scheme=scheme, rule=ClosingRule(mu=0.5, wait_out="all")),
            Rehearsal(profile=profile, num_jobs=8),
        )
        bursty = replay(
            Setting(scheme=scheme, rule=ClosingRule(mu=0.5, wait_out="all")),
            Rehearsal(profile=profile, num_jobs=8, conformity="bursty"),
        )
        assert strict.conforms(~bursty.responded), f"seed {seed}"
        assert scheme.promise.conforms(~usual.responded), f"seed {seed}"
        longer += bursty.runtime_s > usual.runtime_s
    assert longer > 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_jobs": 0}, "`jobs` must be an integer >= 1 and <= 10000000; got 0"),
        ({"num_jobs": 2.0}, "`jobs` must be an integer >= 1"),
        ({"jobs_per_round": 2}, "`jobs_per_round` must be >= 1 and divide the number of jobs, 3"),
        ({"scheme": Uncoded(n=3)}, "`profile` must have a column for each of the 3 workers; got 4"),
        ({"mu": -1.0}, "`mu` must be a finite number >= 0"),
        ({"alpha": float("nan")}, "`alpha`"),
    ],
)
def test_bad_arguments_are_named(changed: dict[str, object], message: str) -> None:
    def run(
        scheme: Scheme | None = None,
        num_jobs: object = 3,
        jobs_per_round: int = 1,
        mu: float = 0.0,
        alpha: float | None = None,
    ) -> Replay:
        setting = Setting(
            scheme=scheme or Uncoded(n=4), rule=ClosingRule(mu=mu), jobs_per_round=jobs_per_round
        )
        return replay(setting, Rehearsal(profile=HAND, num_jobs=num_jobs, alpha=alpha))

    with pytest.raises(ParameterError, match=message):
        run(**changed)


def test_more_rounds_than_can_be_remembered_are_refused() -> None:
    wide = DelayProfile.from_times(np.ones((1, 1000)), meta=ProfileMeta(alpha=0.0))
    with pytest.raises(ParameterError, match=r"`jobs` must .* 67108 rounds.*; got 100000"):
        replay(
            Setting(scheme=Uncoded(n=1000)), Rehearsal(profile=wide, num_jobs=10**5, repeat=True)
        )
    with pytest.raises(ParameterError, match=r"`jobs_per_round` must be an integer >= 1 .*; got 2"):
        Setting(scheme=Uncoded(n=4), jobs_per_round=2.0)  # type: ignore[arg-type]
    assert Rehearsal(profile=wide, num_jobs=np.int16(3)).num_jobs == 3  # type: ignore[arg-type]


def test_an_alpha_that_makes_times_negative_is_refused() -> None:
    profile = DelayProfile.from_times([[0.1, 0.1]], meta=ProfileMeta(base_load=1.0))
    with pytest.raises(ProfileError):
        replay(
            Setting(scheme=Uncoded(n=2), rule=ClosingRule(mu=0.0, wait_out="all")),
            Rehearsal(profile=profile, num_jobs=1, alpha=1.0),
        )


# ---- the clairvoyant bound -----------------------------------------------------------------------


@pytest.mark.parametrize("jobs_per_round", [1, 3])
def test_at_the_bound_the_workers_can_just_share_out_the_work(jobs_per_round: int) -> None:
    times = random_profile(3).times
    for alpha in (0.5, 20.0):
        bound = clairvoyant_bound(times, alpha=alpha, jobs_per_round=jobs_per_round)
        shared = np.maximum(0, (bound[:, None] - times) / alpha).sum(axis=1)
        assert shared == pytest.approx(np.full(len(times), jobs_per_round))


def test_without_a_cost_of_load_the_bound_is_the_first_answer() -> None:
    times = random_profile(4).times
    assert clairvoyant_bound(times, alpha=0.0) == pytest.approx(times.min(axis=1))


def test_no_scheme_without_delay_beats_the_bound() -> None:
    for seed in range(10):
        profile = random_profile(seed)
        bound = clairvoyant_bound(profile.times, alpha=2.0)
        for scheme in (Uncoded(n=5), GC(n=5, s=2), GC(n=5, s=4), GC(n=5, s=3, family="binary")):
            run = replay(
                Setting(scheme=scheme, rule=ClosingRule(mu=0.0, wait_out="feasible")),
                Rehearsal(profile=profile, num_jobs=12),
            )
            assert (run.round_seconds >= bound - 1e-12).all(), f"seed {seed}, {scheme}"


def test_the_bound_refuses_what_means_nothing() -> None:
    with pytest.raises(ParameterError, match="alpha"):
        clairvoyant_bound(np.ones((1, 2)), alpha=-1.0)
    with pytest.raises(ParameterError, match="jobs_per_round"):
        clairvoyant_bound(np.ones((1, 2)), alpha=1.0, jobs_per_round=0)
