"""Every defence by one yardstick: the seconds are replay's, the steps those of plain training."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqgc.comparison import (
    Metering,
    PacedWorkers,
    ProfileReading,
    Race,
    SoftmaxProblem,
    SoftmaxTrainees,
    Trial,
    compare,
    default_defences,
    exact_curve,
    trained,
)
from seqgc.errors import ParameterError, ProfileError
from seqgc.profiles import LAMBDA_CNN, DelayProfile, ProfileMeta, latency_pace
from seqgc.rounds import ClosingRule, Setting
from seqgc.schemes import parse_scheme
from seqgc.search import Reading, Rehearsal, replay
from seqgc.virtual import WorkerKind
from tests.comparison.plain import PlainTraining

N, ROUNDS, ALPHA = 12, 15, 3.0
QUICK = Trial(lrs=(4.0,), seeds=1, batch=512)


@pytest.fixture
def profile() -> DelayProfile:
    return LAMBDA_CNN.profile(ROUNDS, workers=N, rng=np.random.default_rng(4))


@pytest.fixture
def rehearsal(profile: DelayProfile) -> Rehearsal:
    return Rehearsal(profile=profile, alpha=ALPHA)


def plain_steps(problem: SoftmaxProblem, *, lr: float, target: float) -> int:
    weights, step = problem.start(), 0
    while problem.loss(weights) > target:
        points = problem.points(step=step)
        shares = np.full(len(points), 1 / len(points))
        weights = weights - lr * problem.gradient(weights, points, shares)
        step += 1
    return step


@pytest.mark.parametrize("models", [1, 3])
@pytest.mark.parametrize("spec", ["uncoded", "gc:s=2", "gc-rep:s=3", "m-sgc:B=1,W=2,lam=3"])
def test_exact_defences_take_the_steps_of_plain_training_and_the_seconds_of_replay(
    spec: str, models: int, rehearsal: Rehearsal
) -> None:
    scheme = parse_scheme(spec, n=N)
    if scheme.delay >= models:
        with pytest.raises(ParameterError, match="models"):
            compare(rehearsal, [spec], models=models, trial=QUICK)
        return
    (row,) = compare(rehearsal, [spec], models=models, trial=QUICK).rows
    bundle = models if scheme.delay == 0 else 1
    assert row.jobs_per_round == bundle
    setting = Setting(scheme=scheme, jobs_per_round=bundle)
    timed = replace(rehearsal, num_jobs=ROUNDS, repeat=True)
    run = replay(setting, timed)
    assert row.seconds_per_clock * ROUNDS == pytest.approx(run.runtime_s, rel=1e-9)
    steps = plain_steps(SoftmaxProblem(batch=512, seed=0), lr=4.0, target=QUICK.target)
    assert row.clocks_to_target == steps
    whole = replay(setting, replace(timed, num_jobs=steps * models))
    assert row.seconds_to_target == pytest.approx(whole.runtime_s, rel=1e-9)
    assert (row.staleness_mean, row.staleness_max) == (0, 0)
    assert row.wasted == pytest.approx(scheme.normalized_load * N - 1, abs=0.3)


@pytest.mark.parametrize("spec", ["uncoded", "gc:s=2", "gc-rep:s=3"])
def test_what_is_trained_in_virtual_time_has_the_losses_of_plain_training(
    spec: str, rehearsal: Rehearsal
) -> None:
    problem, models = SoftmaxProblem(batch=512, seed=0), 2
    trainees = SoftmaxTrainees(problem=problem, models=models)
    workers = PacedWorkers(pace=latency_pace(rehearsal.profile, alpha=ALPHA), kind="function")
    setting = Setting(scheme=parse_scheme(spec, n=N))
    curve = trained(setting, workers, [(trainees, 4.0)], target=QUICK.target, most=50)[0].curve
    plain = exact_curve(problem, lr=4.0, target=QUICK.target, most=100)
    np.testing.assert_allclose(curve.losses[models - 1 :: models], plain[1:], rtol=1e-9)
    assert curve.reaches(QUICK.target) == len(curve.losses) - 1
    timed = replace(rehearsal, num_jobs=len(curve.losses), repeat=True)
    assert curve.at_s[-1] <= replay(setting, timed).runtime_s * (1 + 1e-9)


@pytest.mark.parametrize("spec", ["uncoded", "ssp:slack=1"])
def test_seconds_are_the_median_of_the_seeds_and_those_of_the_best_and_worst_beside(
    spec: str, rehearsal: Rehearsal
) -> None:
    (row,) = compare(rehearsal, [spec], trial=replace(QUICK, seeds=3)).rows
    workers = PacedWorkers(pace=latency_pace(rehearsal.profile, alpha=ALPHA), kind="function")
    setting, ends = Setting(scheme=parse_scheme(spec, n=N)), list[float]()
    for seed in range(3):
        trainees = SoftmaxTrainees(problem=SoftmaxProblem(batch=512, seed=seed), models=1)
        curve = trained(setting, workers, [(trainees, 4.0)], target=QUICK.target, most=100)[0].curve
        ends.append(float(curve.at_s[-1]))
    low, middle, high = sorted(ends)
    assert row.seconds_to_target == pytest.approx(middle, rel=1e-9)
    assert row.seconds_between == pytest.approx((low, high), rel=1e-9)


@pytest.mark.parametrize(
    "spec", ["ssp:slack=1", "asp-dds:M=1", "backup:b=3", "ra-sgc:s=1,q=0.5,r=1"]
)
def test_trainings_side_by_side_are_those_that_are_alone(spec: str, rehearsal: Rehearsal) -> None:
    workers = PacedWorkers(pace=latency_pace(rehearsal.profile, alpha=ALPHA), kind="function")
    setting = Setting(scheme=parse_scheme(spec, n=N))
    trainings = [
        (SoftmaxTrainees(problem=SoftmaxProblem(batch=512, seed=seed), models=2), rate)
        for seed in range(2)
        for rate in (1.0, 4.0)
    ]
    together = trained(setting, workers, trainings, target=0.6, most=40)
    for training, of_many in zip(trainings, together, strict=True):
        (alone,) = trained(setting, workers, [training], target=0.6, most=40)
        np.testing.assert_allclose(of_many.curve.losses, alone.curve.losses, rtol=1e-9)
        np.testing.assert_array_equal(of_many.curve.at_s, alone.curve.at_s)
        assert of_many.work == alone.work
    assert len({len(each.curve.losses) for each in together}) > 1  # they end at different times


@pytest.mark.parametrize(
    "spec", ["ssp:slack=1", "asp", "asp-dds:M=1", "backup:b=3", "ra-sgc:s=1,q=0.5,r=1"]
)
@pytest.mark.parametrize("kind", ["function", "resident"])
def test_a_training_is_that_of_a_run_whose_workers_compute(
    spec: str, kind: WorkerKind, rehearsal: Rehearsal
) -> None:
    workers = PacedWorkers(pace=latency_pace(rehearsal.profile, alpha=ALPHA), kind=kind)
    setting, steps = Setting(scheme=parse_scheme(spec, n=N)), 8
    problems = [SoftmaxProblem(batch=128, seed=seed) for seed in range(2)]
    trainings = [
        (SoftmaxTrainees(problem=each, models=2), rate) for rate in (1.0, 4.0) for each in problems
    ]
    runs = trained(setting, workers, trainings, target=1e-9, most=steps)
    for run, (trainees, lr) in zip(runs, trainings, strict=True):
        plain = PlainTraining(
            setting, workers.backend, trainees.problem, lr=lr, models=2, steps=steps
        )
        np.testing.assert_allclose(run.curve.losses, plain.losses, rtol=1e-9)
        np.testing.assert_array_equal(run.curve.at_s, plain.at_s)
        assert run.work.staleness == pytest.approx(plain.lacks, abs=1e-9)


def test_a_rate_that_cannot_win_any_more_is_given_up(rehearsal: Rehearsal) -> None:
    workers = PacedWorkers(pace=latency_pace(rehearsal.profile, alpha=ALPHA), kind="function")
    setting = Setting(scheme=parse_scheme("asp", n=N))
    seeds = [SoftmaxTrainees(problem=SoftmaxProblem(batch=512, seed=s), models=1) for s in (0, 1)]
    trainings = [(each, rate) for rate in (4.0, 0.25, 0.5) for each in seeds]
    race = Race([[0, 1], [2, 3], [4, 5]], lasting=[4])
    ends = trained(setting, workers, trainings, target=0.6, most=100, race=race)
    last_s = [float(each.curve.at_s[-1]) for each in ends]
    assert [each.curve.reaches(0.6) is not None for each in ends] == [
        True,
        True,
        *[False] * 2,
        True,
        False,
    ]
    assert last_s[2] == last_s[3] == last_s[5] >= np.median(last_s[:2])
    assert last_s[4] > last_s[5]


def test_functions_are_paid_to_the_end_of_each_and_residents_for_as_long_as_the_run_lasts(
    rehearsal: Rehearsal,
) -> None:
    metering = Metering(memory_mb=1024)
    gb_second = metering.prices.lambda_x86_64_gb_second
    per_request = metering.prices.lambda_million_requests / 1e6
    (row,) = compare(rehearsal, ["uncoded"], clocks=ROUNDS, trial=QUICK, metering=metering).rows
    assert row.clocks_to_target is not None
    times = rehearsal.profile.times_at(np.full(N, 1 / N), alpha=ALPHA)
    clocks = int(row.clocks_to_target)
    seconds = times[np.arange(clocks) % ROUNDS].sum()
    assert row.usd == pytest.approx(seconds * gb_second + clocks * N * per_request, rel=1e-9)
    (row,) = compare(
        rehearsal, ["uncoded"], workers="resident", trial=QUICK, metering=metering
    ).rows
    assert row.seconds_to_target is not None
    wall = row.seconds_to_target * N * gb_second + N * per_request
    assert row.usd == pytest.approx(wall, rel=1e-3)


def test_it_says_the_same_twice_and_sorts_by_the_time_to_the_target(rehearsal: Rehearsal) -> None:
    specs = ["uncoded", "gc-rep:s=3", "backup:b=2"]
    found = [compare(rehearsal, specs, trial=QUICK) for _ in range(2)]
    assert found[0].rows == found[1].rows
    seconds = [row.seconds_to_target for row in found[0].rows]
    assert seconds == sorted(seconds, key=lambda each: each or np.inf)
    assert found[0].advice.partition(" ")[0] == found[0].rows[0].defence
    assert all(row.over_bound >= 1 for row in found[0].rows)


def test_a_target_that_is_never_reached_is_said_and_is_no_error(rehearsal: Rehearsal) -> None:
    trial = replace(QUICK, target=1e-9, most=5)
    found = compare(rehearsal, ["uncoded", "backup:b=2"], trial=trial)
    for row in found.rows:
        assert row.clocks_to_target is row.seconds_to_target is row.usd is row.best_lr is None
        assert row.seconds_per_clock > 0
    assert "5 clocks" in found.advice


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"clocks": 0}, "clocks"),
        ({"models": 0}, "models"),
        ({"reading": "sound"}, "reading"),
        ({"workers": "neither"}, "workers"),
        ({"defences": ["no-such"]}, "scheme"),
        ({"reading": "speed"}, "base load"),
        ({"defences": "asp"}, "`defences` must be a list"),
        ({"defences": [parse_scheme("uncoded", n=3)]}, "`defence` must be for the 12 workers"),
        ({"trial": replace(QUICK, target=3.0)}, "`target` must be below the loss"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    arguments: dict[str, object], named: str, profile: DelayProfile
) -> None:
    rehearsal = Rehearsal(profile=profile, alpha=ALPHA)
    with pytest.raises((ParameterError, ProfileError), match=named) as caught:
        compare(rehearsal, **{"defences": ["uncoded"], "trial": QUICK} | arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spec", ["uncoded", "gc-rep:s=3", "ssp:slack=1", "backup:b=2", "asp-dds"])
def test_bundles_are_trained_as_models_in_turn_are(spec: str) -> None:
    # With nobody slow, and hardly a start to pay for, four models in a job take as long as in turn.
    on = Rehearsal(profile=DelayProfile.from_times(np.full((3, N), 1e-9)), alpha=ALPHA)
    scheme, trial = parse_scheme(spec, n=N), replace(QUICK, most=60)
    rows = [
        compare(on, [Setting(scheme=scheme, jobs_per_round=k)], models=4, trial=trial).rows[0]
        for k in (1, 2, 4)
    ]
    assert [row.jobs_per_round for row in rows] == [1, 2, 4]
    one = rows[0]
    for row in rows[1:]:
        assert row.seconds_per_clock == pytest.approx(one.seconds_per_clock, rel=1e-6)
        # Stale gradients are staler in a bundle: its next job begins as soon as one is answered.
        assert row.clocks_to_target == pytest.approx(
            one.clocks_to_target, rel=0.3 if row.kind == "stale" else 1e-6
        )
        assert (row.over_bound, row.wasted) == pytest.approx((one.over_bound, one.wasted), rel=1e-6)


def test_a_bundle_must_divide_the_models_and_leave_those_that_a_delay_asks_for(
    rehearsal: Rehearsal,
) -> None:
    for spec, k, models in (("gc-rep:s=3", 2, 3), ("m-sgc:B=1,W=2,lam=3", 4, 4)):
        setting = Setting(scheme=parse_scheme(spec, n=N), jobs_per_round=k)
        with pytest.raises(ParameterError, match="models"):
            compare(rehearsal, [setting], models=models, trial=QUICK)


def test_no_bundle_is_below_the_bound(rehearsal: Rehearsal) -> None:
    found = compare(rehearsal, models=4, trial=QUICK)
    assert {row.jobs_per_round for row in found.rows} <= {1, 2, 4}
    assert any(row.jobs_per_round == 4 for row in found.rows)
    assert all(row.over_bound >= 1 - 1e-12 for row in found.rows)


@pytest.mark.parametrize(
    "wrong",
    [
        {"target": 0.0},
        {"lrs": ()},
        {"lrs": (0.0,)},
        *({"seeds": seeds} for seeds in (0, 1001)),
        *({"most": most} for most in (0, 10**7 + 1)),
    ],
)
def test_a_trial_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ParameterError):
        Trial(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("resident", "reading", "dealt"),
    [(True, "latency", True), (False, "latency", False), (True, "speed", True)],
)
def test_work_is_dealt_by_default_where_workers_stay(
    resident: bool, reading: ProfileReading, dealt: bool, rehearsal: Rehearsal
) -> None:
    profile = replace(rehearsal.profile, meta=ProfileMeta(base_load=1 / N)).select_rounds(0, stop=3)
    where = replace(rehearsal, profile=profile, reading=Reading(resident=resident), repeat=True)
    found = [each.scheme.spec for each in default_defences(where, models=1, reading=reading)]
    assert any(spec.startswith("deal") for spec in found) == dealt
    assert len(set(found)) == len(found)


def test_a_defence_may_be_an_object_and_a_profile_must_be_one(rehearsal: Rehearsal) -> None:
    named, given = (
        compare(rehearsal, [each], trial=QUICK).rows
        for each in ("gc-rep:s=3", parse_scheme("gc-rep:s=3", n=N))
    )
    assert named == given
    with pytest.raises(ParameterError, match="`profile` must be a DelayProfile"):
        compare(rehearsal.profile.times)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="`lr` must name"):
        Trial(lrs=4.0)  # type: ignore[arg-type]


@pytest.mark.parametrize("fewer", [0, 1])
def test_exact_and_stale_rows_are_there_in_exactly_the_most_clocks_or_not(fewer: int) -> None:
    profile = LAMBDA_CNN.profile(ROUNDS, workers=1, rng=np.random.default_rng(4))
    on = Rehearsal(profile=profile, alpha=ALPHA)  # of one worker all defences are the same
    steps = plain_steps(SoftmaxProblem(batch=512, seed=0), lr=4.0, target=QUICK.target)
    trial = replace(QUICK, most=steps - fewer)
    for row in compare(on, ["uncoded", "asp"], trial=trial).rows:
        assert row.clocks_to_target == (None if fewer else steps)


def test_an_even_number_of_seeds_has_a_median_of_what_was_trained(rehearsal: Rehearsal) -> None:
    steps = sorted(
        plain_steps(SoftmaxProblem(batch=512, seed=seed), lr=4.0, target=QUICK.target)
        for seed in range(2)
    )
    (row,) = compare(rehearsal, ["uncoded"], trial=replace(QUICK, seeds=2)).rows
    assert row.clocks_to_target == sum(steps) / 2
    (row,) = compare(rehearsal, ["uncoded"], trial=replace(QUICK, seeds=2, most=steps[0])).rows
    assert row.clocks_to_target is None  # with one of two seeds it is not there


def test_who_has_no_rounds_is_not_below_the_bound_either() -> None:
    # The first worker answers at once while the second stands still, round after round.
    times = np.full((10, 2), 1e-9)
    times[:, 1] = [1.0] * 8 + [1000.0] * 2
    on = Rehearsal(profile=DelayProfile.from_times(times), alpha=4.0)
    found = compare(on, ["asp-dds:M=1", "asp", "ssp:slack=3", "uncoded"], trial=QUICK)
    assert min(row.over_bound for row in found.rows) >= 1 - 1e-9


@given(
    times=st.lists(st.lists(st.floats(0.3, 9.0), min_size=3, max_size=3), min_size=1, max_size=4),
    spec=st.sampled_from(["a-bsp", "ssp:slack=1", "asp", "asp-dds", "lb-bsp"]),
    wpc=st.sampled_from([1, 2, 7, 20, 10**9]),
    clocks=st.integers(1, 21),
    models=st.integers(1, 3),
    workers=st.sampled_from(["function", "resident"]),
)
def test_no_defence_is_below_its_own_bound(
    times: list[list[float]], spec: str, wpc: int, clocks: int, models: int, workers: WorkerKind
) -> None:
    if spec == "a-bsp" or spec.startswith("ssp"):
        spec += f"{',' if ':' in spec else ':'}wpc={wpc}"
    meta = ProfileMeta(base_load=0.1, alpha=2.0)
    profile = DelayProfile.from_times(np.array(times), meta=meta)
    trial = replace(QUICK, target=2.3, most=1)
    found = compare(profile, [spec], models=models, clocks=clocks, workers=workers, trial=trial)
    assert found.rows[0].over_bound >= 1 - 1e-9


def test_residents_with_an_answer_that_was_recorded_below_its_line_are_not_below_the_bound() -> (
    None
):
    meta = ProfileMeta(base_load=0.1, alpha=5.0)
    profile = DelayProfile.from_times([[0.06, 0.6, 0.6]], meta=meta)
    found = compare(profile, ["asp-dds"], clocks=20, workers="resident", trial=QUICK)
    assert min(row.over_bound for row in found.rows) >= 1 - 1e-9


def test_who_has_all_clocks_in_one_task_and_is_as_fast_as_can_be_is_at_the_bound() -> None:
    on = Rehearsal(profile=DelayProfile.from_times(np.ones((3, 4))), alpha=2.0)
    for spec in ("a-bsp:wpc=20", "a-bsp:wpc=1000000000"):
        found = compare(on, [spec], clocks=20, trial=replace(QUICK, target=2.3, most=1))
        assert found.bound_s == pytest.approx((1 + 20 * 2.0 / 4) / 20)
        assert found.rows[0].over_bound == pytest.approx(1)


def test_work_that_is_dealt_pays_a_latency_a_task_as_all_others_do() -> None:
    on = Rehearsal(profile=DelayProfile.from_times(np.ones((20, 4))), alpha=0.1)
    rows = compare(on, ["deal", "uncoded"], workers="resident", trial=QUICK).rows
    seconds = {row.defence: row.seconds_per_clock for row in rows}
    assert seconds["deal"] == pytest.approx(seconds["uncoded"], rel=0.1)


def test_a_closing_rule_that_is_not_the_usual_one_stands_in_the_row(rehearsal: Rehearsal) -> None:
    scheme = parse_scheme("gc-rep:s=3", n=N)
    rules = [Setting(scheme=scheme), Setting(scheme=scheme, rule=ClosingRule(mu=0.5))]
    labels = {row.label for row in compare(rehearsal, rules, trial=QUICK).rows}
    assert labels == {"gc-rep:s=3", "gc-rep:s=3, mu=0.5, feasible"}


@pytest.mark.parametrize("reading", ["latency", "speed"])
@pytest.mark.parametrize("n", range(1, 10))
def test_there_are_usual_defences_of_any_number_of_workers(n: int, reading: ProfileReading) -> None:
    profile = LAMBDA_CNN.profile(3, workers=n, rng=np.random.default_rng(4))
    on = Rehearsal(profile=profile.at_load(1 / n, alpha=ALPHA), repeat=True, models=1)
    found = default_defences(on, models=1, reading=reading)
    specs = [each.scheme.spec for each in found]
    assert {each.scheme.n for each in found} == {n}
    assert len(set(specs)) == len(specs)
    assert any(spec.startswith("gc") for spec in specs) == (n > 1)


def test_of_an_odd_number_of_workers_speeds_are_compared_too() -> None:
    profile = LAMBDA_CNN.profile(3, workers=3, rng=np.random.default_rng(4)).at_load(0.3, alpha=1.0)
    found = compare(profile, reading="speed", trial=replace(QUICK, target=2.3, most=1))
    assert "gc:s=1" in {row.defence for row in found.rows}


@pytest.mark.filterwarnings("error")
def test_a_rate_with_which_training_diverges_is_said_in_the_row_and_is_no_error(
    rehearsal: Rehearsal,
) -> None:
    specs = ["asp", "backup:b=2", "uncoded"]
    found = compare(rehearsal, specs, trial=replace(QUICK, lrs=(1e308,), most=20))
    assert all(row.seconds_to_target is row.best_lr is None for row in found.rows)
    failed = {row.defence: row.failed for row in found.rows}
    assert failed["asp"].startswith("model-0: its results are not finite")
    assert "not finite" in found.advice
    found = compare(rehearsal, specs, trial=replace(QUICK, lrs=(1e308, 4.0)))
    assert {row.best_lr for row in found.rows} == {4.0}
