"""The search finds what replaying everything would find, and says how sure it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from seqgc.errors import ParameterError, ProfileError
from seqgc.profiles import DelayProfile, ProfileMeta, read_profile
from seqgc.rounds import ClosingRule, PolicyDefence, Setting
from seqgc.schemes import GC, MSGC, RASGC, Scheme, entry_of, parse_scheme, registered
from seqgc.search import (
    Conformity,
    Rehearsal,
    SearchSpace,
    Tuning,
    batch_replay,
    hold_out,
    replay,
    tune,
)
from seqgc.search._pruned_search import Floors, pareto_front
from seqgc.search._tuning import bootstrap_total
from seqgc.stragglers import clairvoyant_bound

CANADA = "cnn-canada-batch2048-load{:.3f}-30rounds-d.csv"
LONDON = "cnn-london-batch256-load{:.3f}-10rounds-a.csv"
LOADS = (0.0, 0.25, 0.5, 0.75, 1.0)
ALPHA = 1.1217530061354162
QUICK = ("uncoded", "gc-rep", "gc-binary", "gc")  # seconds, not minutes, at n = 256

SMALL = SearchSpace(mus=(0.0, 0.5), jobs_per_round=(1, 2), max_delay=2)


def random_profile(seed: int, *, rounds: int = 9, workers: int = 6) -> DelayProfile:
    """Exponential tails on a base, and now and then a worker that is five times as slow."""
    rng = np.random.default_rng(seed)
    times = 0.3 + rng.exponential(0.2, size=(rounds, workers))
    times[rng.random(times.shape) < 0.15] *= 5
    return DelayProfile.from_times(times)


# ---- pruning ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seed", "alpha", "conformity"), [(0, 0.2, "scheme"), (1, 3.0, "scheme"), (2, 0.8, "bursty")]
)
def test_pruning_loses_neither_winner_nor_rank_nor_trade(
    seed: int, alpha: float, conformity: Conformity
) -> None:
    profile = random_profile(seed)

    def found(*, prune: bool) -> Tuning:
        return tune(
            Rehearsal(profile=profile, num_jobs=6, alpha=alpha, conformity=conformity),
            space=SMALL,
            top=5,
            pareto=True,
            prune=prune,
            seed=seed,
        )

    pruned, whole = found(prune=True), found(prune=False)
    assert pruned.ranking == whole.ranking, f"seed {seed}"
    assert pruned.pareto == whole.pareto, f"seed {seed}"
    assert pruned.lead == whole.lead, f"seed {seed}"
    assert whole.pruned == 0
    assert pruned.evaluated + pruned.pruned == whole.evaluated
    assert pruned.pruned > whole.evaluated / 10, f"seed {seed}: the floors prune nothing"


@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("batch", [None, 5])
def test_no_run_beats_its_floors(seed: int, batch: int | None) -> None:
    profile, alpha, jobs = random_profile(seed + 100, rounds=7), 1.3, 4
    schemes = list(SMALL.schemes(profile.num_workers))[::4]
    rehearsal = Rehearsal(profile=profile, num_jobs=jobs, alpha=alpha, repeat=True, batch=batch)
    floors = Floors(schemes, rehearsal)
    everyone = np.arange(len(schemes))
    tight = 0
    for closing in SMALL.closings():
        bundles = jobs // closing.jobs_per_round
        seconds = floors.runtimes(closing, bundles=bundles, of=everyone)
        for scheme, floor_s in zip(schemes, seconds, strict=True):
            run = replay(
                Setting(scheme=scheme, rule=closing.rule, jobs_per_round=closing.jobs_per_round),
                rehearsal,
            )
            assert floor_s <= run.runtime_s * (1 + 1e-12), (seed, scheme, closing)
            tight += floor_s > run.runtime_s * (1 - 1e-12)
    assert tight > 0


# ---- the space ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_the_space_holds_every_valid_scheme_once(n: int) -> None:
    max_delay = 4
    found = list(SearchSpace(max_delay=max_delay).schemes(n))
    assert len(found) == len(set(found))
    assert set(found) == {s for s in _every_spec(n, max_delay) if s.delay <= max_delay}


def _every_spec(n: int, max_delay: int) -> list[Scheme]:
    specs = ["uncoded"]
    specs += [f"{name}:s={s}" for name in ("gc", "gc-rep", "gc-binary") for s in range(1, n)]
    specs += [
        f"{name}:B={B},W={W},lam={lam}"
        for name in ("sr-sgc", "sr-sgc-rep", "m-sgc", "m-sgc-rep", "m-sgc-binary")
        for B in range(1, 2 * max_delay + 1)
        for W in range(1, 2 * max_delay + 1)
        for lam in range(n + 1)
        if not (name == "m-sgc-rep" and lam == n)
    ]
    specs += _ra_sgc_specs(n)
    valid = []
    for spec in specs:
        try:
            valid.append(parse_scheme(spec, n=n))
        except ParameterError:
            continue
    return valid


def test_the_space_of_the_paper_is_counted_right() -> None:
    counted = dict.fromkeys(registered(), 0)
    for scheme in SearchSpace(max_delay=10).schemes(256):
        counted[scheme.spec.partition(":")[0]] += 1
    assert counted["sr-sgc"] == 13_056
    assert counted["m-sgc"] == 30 * 257
    assert counted["m-sgc-binary"] == 30 * 256
    assert counted["gc"] == 255


def _ra_sgc_specs(n: int) -> list[str]:
    """For each number of chunks, and of those that a round waits for, one share q.

    And no more parts than ever get r holders each.
    """
    smallest = {n // (s + 1): s for s in reversed(range(n))}
    specs = []
    for chunks, s in smallest.items():
        for waits_for in range(1, chunks):
            tenths = [q for q in (3, 5, 7.5) if waits_for - 1 < q * chunks / 10]
            tenths = [q for q in tenths if q * chunks / 10 <= waits_for]
            dealt = [f"r={r},p={p}" for r in (1, 2, 4) for p in (1, 2) if p * r <= n]
            specs += [f"ra-sgc:s={s},q={q / 10},{how}" for q in tenths[-1:] for how in dealt]
    return specs


def test_a_coarse_space_of_thousands_of_workers_is_small() -> None:
    coarse = SearchSpace(coarse=True)
    schemes = list(coarse.schemes(10_000))
    assert 500 < len(schemes) < 5_000
    assert {GC(n=10_000, s=1), MSGC(n=10_000, B=1, W=2, lam=10_000)} <= set(schemes)


def test_few_models_leave_only_short_delays() -> None:
    profile = random_profile(3, rounds=12)
    for models, longest in ((1, 0), (2, 1), (4, 3)):
        space = SearchSpace(mus=(0.0,), jobs_per_round=(1, 2), max_delay=3)
        rehearsal = Rehearsal(profile=profile, num_jobs=4, alpha=0.1, models=models)
        ranking = tune(rehearsal, space=space, prune=False, top=10_000).ranking
        assert max(row.setting.scheme.delay for row in ranking) == longest
        assert all(
            (row.setting.scheme.delay + 1) * row.setting.jobs_per_round <= models for row in ranking
        )


# ---- what stands beside an answer ---------------------------------------------------------------


def test_a_row_says_what_its_replay_and_its_bounds_are() -> None:
    profile, alpha = random_profile(11), 0.7
    found = tune(Rehearsal(profile=profile, num_jobs=6, alpha=alpha), space=SMALL)
    assert [row.runtime_s for row in found.ranking] == sorted(r.runtime_s for r in found.ranking)
    offered = set(registered()) - {"backup", "balanced"}  # approximates; is what controllers choose
    offered -= {"deal"}  # the profile does not say that its workers stay
    offered -= {name for name in offered if issubclass(registered()[name].kind, PolicyDefence)}
    assert {entry_of(row.setting.scheme).name for row in found.ranking} == offered
    for row in found.ranking:
        if not isinstance(row.setting.scheme, Scheme):
            continue  # see test_dealt
        run = replay(
            row.setting,
            Rehearsal(profile=profile, num_jobs=6, alpha=alpha),
        )
        assert row.runtime_s == run.runtime_s, row
        loads = np.full(len(run.round_seconds), row.setting.scheme.normalized_load)
        if isinstance(row.setting.scheme, RASGC):  # what it deals is another load in every round
            assert run.loads.max() <= loads[0]
            loads = run.loads
        times = profile.times[: len(loads)] + (
            alpha * row.setting.jobs_per_round * loads[:, np.newaxis]
        )
        billed = times[run.round_seconds > 0].sum()
        assert row.billed_worker_s == pytest.approx(billed, rel=1e-12), row
        bound = clairvoyant_bound(
            profile.times[: 6 // row.setting.jobs_per_round],
            alpha=alpha,
            jobs_per_round=row.setting.jobs_per_round,
        ).sum()
        assert row.ideal_s == pytest.approx(bound, rel=1e-12)
        assert row.ratio == row.runtime_s / row.ideal_s
        assert row.setting.scheme.load_lower_bound <= row.setting.scheme.normalized_load * (
            1 + 1e-12
        ), row


def test_a_search_is_deterministic_and_tells_its_progress() -> None:
    seen: list[tuple[int, int]] = []
    profile = random_profile(5)
    first = tune(
        Rehearsal(profile=profile, num_jobs=6, alpha=1.0),
        space=SMALL,
        holdout=0.4,
        seed=3,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert first == tune(
        Rehearsal(profile=profile, num_jobs=6, alpha=1.0), space=SMALL, holdout=0.4, seed=3
    )
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (first.evaluated + first.pruned,) * 2


def test_a_search_that_is_stopped_returns_what_it_has_replayed() -> None:
    profile = DelayProfile.from_times(1 + np.random.default_rng(0).exponential(1.0, (6, 6)))
    rehearsal, asked = Rehearsal(profile=profile, alpha=1.0), list[bool]()

    def stop() -> bool:
        asked.append(True)
        return len(asked) > 1

    stopped, whole = tune(rehearsal, stop=stop), tune(rehearsal)
    assert stopped.stopped
    assert not whole.stopped
    assert 0 < stopped.evaluated < whole.evaluated
    for row in stopped.ranking:
        assert (
            row.runtime_s
            == replay(row.setting, replace(rehearsal, num_jobs=24, repeat=True)).runtime_s
        )


def test_approximations_that_there_are_not_are_refused_before_anything_is_replayed() -> None:
    settled: list[int] = []
    space = replace(SMALL, families=("m-sgc",), inexact=True)
    with pytest.raises(ParameterError, match="must admit an inexact candidate"):
        tune(
            Rehearsal(profile=random_profile(5), num_jobs=6, alpha=1.0),
            space=space,
            progress=lambda done, _: settled.append(done),
        )
    assert not settled


def test_the_pareto_front_runs_from_the_fastest_to_the_cheapest() -> None:
    by_rounds = tuple(n for n, entry in registered().items() if issubclass(entry.kind, Scheme))
    space = replace(SMALL, families=by_rounds)  # dealing leaves no trade
    found = tune(
        Rehearsal(profile=random_profile(2), num_jobs=6, alpha=2.0), space=space, pareto=True
    )
    seconds = [row.runtime_s for row in found.pareto]
    bills = [row.billed_worker_s for row in found.pareto]
    assert len(found.pareto) > 2
    assert found.pareto[0].runtime_s == found.best.runtime_s
    assert seconds == sorted(set(seconds))
    assert bills == sorted(set(bills), reverse=True)


def test_of_equal_points_the_front_keeps_the_first() -> None:
    chosen = pareto_front(np.array([1.0, 1.0, 2.0]), bills=np.array([3.0, 3.0, 3.0]))
    np.testing.assert_array_equal(chosen, [0])


# ---- hold-out and bootstrap ---------------------------------------------------------------------


def test_held_out_rounds_are_consecutive_and_seen_by_one_part_only() -> None:
    profile = DelayProfile.from_times(np.arange(1.0, 11.0)[:, None])
    kept, held = hold_out(profile, fraction=0.5)
    np.testing.assert_array_equal(kept.times.ravel(), np.arange(1, 6))
    np.testing.assert_array_equal(held.times.ravel(), np.arange(6, 11))
    places = set()
    for seed in range(20):
        kept, held = hold_out(profile, fraction=0.3, seed=seed)
        rounds = held.times.ravel()
        np.testing.assert_array_equal(np.diff(rounds), 1.0)
        both = np.sort(np.concatenate([kept.times.ravel(), rounds]))
        np.testing.assert_array_equal(both, np.arange(1, 11))
        places.add(rounds[0])
    assert len(places) > 3


def test_held_out_seconds_are_a_replay_of_the_held_out_rounds() -> None:
    profile = random_profile(9, rounds=10)
    found = tune(Rehearsal(profile=profile, num_jobs=8, alpha=0.5), space=SMALL, holdout=0.5)
    kept, held = hold_out(profile, fraction=0.5)
    for row in found.ranking[:3]:
        for part, seconds in ((kept, row.runtime_s), (held, row.holdout_s)):
            run = replay(
                row.setting,
                Rehearsal(profile=part, num_jobs=8, alpha=0.5, repeat=True),
            )
            assert run.runtime_s == seconds, row


def test_a_clear_lead_is_real_and_a_tie_is_not() -> None:
    rng = np.random.default_rng(0)
    steady = 1.0 + 0.01 * rng.random((20, 6))
    steady[np.arange(20), np.arange(20) % 6] = 9.0  # always one straggler: uncoded waits for it
    space = SearchSpace(
        families=("uncoded", "gc"), mus=(0.0,), jobs_per_round=(1,), wait_outs=("feasible",)
    )
    clear = tune(Rehearsal(profile=DelayProfile.from_times(steady), alpha=0.5), space=space).lead
    assert clear is not None
    assert clear.real
    assert clear.runner_up.setting.scheme.spec == "uncoded"
    assert clear.low_s <= clear.saved_s <= clear.high_s
    twins = SearchSpace(families=("gc-rep", "sr-sgc-rep"), mus=(0.0,), jobs_per_round=(1,))
    tie = tune(Rehearsal(profile=random_profile(1), num_jobs=6, alpha=0.5), space=twins).lead
    assert tie is not None
    assert not tie.real or tie.saved_s > 0


def test_the_interval_covers_the_sum_of_a_dependent_series_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(4)
    covered = 0
    for seed in range(200):
        noise = np.convolve(rng.normal(size=62), [0.5, 0.5, 0.5], mode="valid")
        low, high = bootstrap_total(0.2 + noise, seed=seed, resamples=300)
        covered += low <= 0.2 * 60 <= high
    assert 0.8 < covered / 200 <= 0.98


# ---- refusals -----------------------------------------------------------------------------------


def test_what_cannot_be_searched_is_refused_in_one_line() -> None:
    profile = random_profile(0, rounds=3)
    with pytest.raises(ParameterError, match=r"profile's 3 rounds; got 4 \(.*repeat"):
        tune(
            Rehearsal(profile=profile, num_jobs=4, alpha=1.0, repeat=False),
            space=SearchSpace(jobs_per_round=(1,)),
        )
    with pytest.raises(ParameterError, match="`jobs_per_round` must admit a candidate"):
        tune(
            Rehearsal(profile=profile, num_jobs=3, alpha=1.0),
            space=SearchSpace(jobs_per_round=(2,)),
        )
    with pytest.raises(ParameterError, match="`jobs` must be an integer >= 1"):
        tune(Rehearsal(profile=profile, num_jobs=0, alpha=1.0))
    with pytest.raises(ParameterError, match=r"`alpha` must be given.*give alpha= or --alpha"):
        tune(Rehearsal(profile=profile, num_jobs=2))
    with pytest.raises(ParameterError, match="`holdout` must satisfy"):
        tune(Rehearsal(profile=profile, num_jobs=2, alpha=1.0), holdout=1.0)
    with pytest.raises(ParameterError, match="`top` must be an integer >= 1"):
        tune(Rehearsal(profile=profile, num_jobs=2, alpha=1.0), top=0)
    with pytest.raises(ParameterError, match=r"`schemes` must be among .*did you mean 'm-sgc'"):
        SearchSpace(families=("m-sgd",))
    with pytest.raises(ParameterError, match="`mu` must be"):
        SearchSpace(mus=(-1.0,))
    with pytest.raises(ParameterError, match="`jobs_per_round` must be an integer >= 1"):
        SearchSpace(jobs_per_round=(0,))


def test_a_load_model_that_leaves_no_time_is_refused() -> None:
    profile = DelayProfile.from_times([[0.5, 1.0]], meta=ProfileMeta(base_load=0.5))
    with pytest.raises(ParameterError, match="`alpha` must leave the median time positive"):
        Rehearsal(profile=profile, alpha=1.5).ideal_s(1)


def test_rounds_that_are_faster_than_all_rounds_allow_the_alpha_of_all() -> None:
    times = [[1.0, 1.1], [1.2, 1.3], [2.0, 2.1], [2.2, 2.3]]  # the medians of halves differ
    profile = DelayProfile.from_times(times, meta=ProfileMeta(base_load=0.5))
    proportional = Rehearsal(profile=profile).alpha_cases()[1]
    space = SearchSpace(families=("uncoded",), jobs_per_round=(1,))
    found = tune(proportional, space=space, holdout=0.5)
    assert found.best.runtime_s > 0
    fastest = profile.select_rounds(0, stop=1)
    assert proportional.on_part(fastest).ideal_s(1) > 0
    with pytest.raises(ParameterError, match=r"the median is 1\.05 s"):
        Rehearsal(profile=fastest, alpha=proportional.alpha).ideal_s(1)


def test_an_answer_faster_than_its_load_costs_on_average_leaves_a_bound_that_holds() -> None:
    # Worker 0 had the processor to itself: 0.2 s, where its points cost 0.25 s on average.
    times = np.array([[0.2, 1.0, 1.5]])
    rehearsal = Rehearsal(
        profile=DelayProfile.from_times(times, meta=ProfileMeta(base_load=0.25)), alpha=1.0
    )
    shifted = times - 0.25
    least = (1.0 + np.cumsum(shifted)) / np.arange(1, 4)
    assert rehearsal.ideal_s(1) == pytest.approx(least.min())
    assert (
        rehearsal.ideal_s(1)
        <= replay(
            Setting(scheme=parse_scheme("uncoded", n=3), rule=ClosingRule()), rehearsal
        ).runtime_s
    )


def test_a_profile_of_failures_only_is_refused() -> None:
    times = np.ones((2, 3))
    silent = DelayProfile(times=times, status=np.ones((2, 3), dtype=np.int8))
    with pytest.raises(ProfileError, match="row 0: nobody answered in this round"):
        tune(Rehearsal(profile=silent, num_jobs=1, alpha=1.0))


def test_a_worker_that_fails_at_once_wins_nothing() -> None:
    times = np.full((12, 4), 2.0)
    times[:, 0] = 0.01
    status = np.zeros((12, 4), dtype=np.int8)
    status[:, 0] = 1
    failing = DelayProfile(times=times, status=status)
    for scheme in (GC(n=4, s=3, family="rep"), MSGC(n=4, B=1, W=2, lam=1)):
        run = replay(
            Setting(scheme=scheme, rule=ClosingRule(mu=0.0, wait_out="feasible")),
            Rehearsal(profile=failing, num_jobs=4, alpha=0.0),
        )
        (kernel,) = batch_replay(
            [scheme],
            Rehearsal(profile=failing, num_jobs=4, alpha=0.0),
            rule=ClosingRule(mu=0.0, wait_out="feasible"),
        ).round_seconds
        assert run.round_seconds.tolist() == kernel[: len(run.round_seconds)].tolist()
        assert (run.round_seconds == 2.0).all()
    space = SearchSpace(jobs_per_round=(1,), max_delay=2)
    found = tune(Rehearsal(profile=failing, num_jobs=4, alpha=0.0), space=space)
    assert found.best.runtime_s == 8.0
    assert found.best.ideal_s == 8.0


def test_rounds_that_are_played_again_are_no_further_evidence() -> None:
    rng = np.random.default_rng(3)
    profile = DelayProfile.from_times(rng.pareto(2.0, size=(12, 6)) + 1.0)
    space = SearchSpace(families=("gc", "gc-rep"), jobs_per_round=(1,))
    once = tune(Rehearsal(profile=profile, num_jobs=12, alpha=0.5), space=space, seed=1).lead
    often = tune(
        Rehearsal(profile=profile, num_jobs=48, alpha=0.5, repeat=True), space=space, seed=1
    ).lead
    assert once is not None
    assert often is not None
    assert (once.rounds, often.rounds) == (12, 12)
    # Four times the seconds, and four times the doubt: not half of it.
    assert often.saved_s == pytest.approx(4 * once.saved_s)
    assert often.high_s - often.low_s == pytest.approx(4 * (once.high_s - once.low_s), rel=0.02)


# ---- what of a recording is seen ----------------------------------------------------------------


def calm_start() -> DelayProfile:
    """Twenty rounds of eight workers: from the third on one of them, in turn, takes 10 s, not 1."""
    times = np.ones((20, 8))
    late = np.arange(2, 20)
    times[late, late % 8] = 10.0
    return DelayProfile.from_times(times)


def test_every_bundle_is_judged_on_all_rounds() -> None:
    space = SearchSpace(families=("uncoded", "gc-rep", "gc-binary"))
    found = tune(Rehearsal(profile=calm_start(), alpha=0.1, models=4), space=space)
    assert found.best.setting == Setting(
        scheme=GC(n=8, s=1, family="rep"), rule=found.best.setting.rule, jobs_per_round=4
    )
    # Twenty rounds of 1 s, and four models of which a worker computes a quarter each.
    assert found.best.runtime_s == pytest.approx(20 * (1 + 0.1 * 4 * 2 / 8))
    assert found.rounds_seen == {1: 20, 2: 20, 4: 20}
    (uncoded,) = (row for row in found.ranking if row.setting.scheme.spec == "uncoded")
    assert uncoded.runtime_s == pytest.approx(2 * 1.05 + 18 * 10.05)  # the 183 s


@pytest.mark.parametrize("rounds", [1, 3, 7])
@pytest.mark.parametrize("repeat", [None, False])
def test_bundles_are_searched_on_few_rounds_too(rounds: int, repeat: bool | None) -> None:
    profile = random_profile(2, rounds=rounds)
    space = SearchSpace(families=("uncoded",), mus=(0.0,), wait_outs=("all",))
    on = Rehearsal(profile=profile, alpha=0.1, repeat=repeat)
    found = tune(on, space=space, prune=False)
    seen = {row.setting.jobs_per_round for row in found.ranking}
    if repeat is None:
        assert seen == {1, 2, 4}
        assert set(found.rounds_seen.values()) == {rounds}
    else:  # once through, which leaves large bundles few rounds
        assert 4 in seen
        assert found.rounds_seen[4] == 1


def test_a_search_says_what_part_it_looked_at() -> None:
    space = SearchSpace(families=("uncoded", "gc-rep"), jobs_per_round=(1, 2, 3, 4))
    found = tune(Rehearsal(profile=calm_start(), alpha=0.1, num_jobs=8, models=4), space=space)
    assert (found.num_rounds, found.rounds_seen) == (20, {1: 8, 2: 4, 3: 0, 4: 2})


# ---- approximations -----------------------------------------------------------------------------


def test_approximations_are_ranked_by_time_and_error_together() -> None:
    space = SearchSpace(
        families=("backup", "uncoded"),
        mus=(0.0,),
        wait_outs=("feasible",),
        jobs_per_round=(1,),
        inexact=True,
    )
    times = 10 + np.arange(8.0)[None].repeat(6, axis=0)  # worker i answers after 10 + i s
    rehearsal = Rehearsal(profile=DelayProfile.from_times(times), alpha=0.0)
    found = tune(rehearsal, space=space).inexact
    # By time alone that would be the other way round.
    assert [row.setting.scheme.spec for row in found] == [f"backup:b={b}" for b in (1, 2, 3, 4)]
    for b, row in enumerate(found, start=1):
        assert row.runtime_s == 6 * (17 - b)
        assert row.information == pytest.approx((8 - b) / 8)  # of the batch's data are used
        assert row.equivalent_s == pytest.approx(6 * (17 - b) * 8 / (8 - b))


def test_pruning_keeps_the_rank_of_approximations() -> None:
    profile = random_profile(4)
    space = SearchSpace(
        families=("backup", "gc-rep", "uncoded"),
        mus=(0.0, 0.5),
        jobs_per_round=(1, 2),
        inexact=True,
    )

    def found(*, prune: bool) -> Tuning:
        return tune(Rehearsal(profile=profile, alpha=0.5), space=space, top=4, prune=prune)

    pruned, whole = found(prune=True), found(prune=False)
    assert pruned.inexact == whole.inexact
    seconds = [row.equivalent_s for row in whole.inexact]
    assert seconds == sorted(seconds)
    assert [row.runtime_s for row in whole.inexact] != sorted(r.runtime_s for r in whole.inexact)


# ---- recorded delays ----------------------------------------------------------------------------


def test_the_winner_beats_the_papers_rule_by_far(recorded_profiles: Path) -> None:
    profile = read_profile(recorded_profiles / CANADA.format(0))
    space = SearchSpace(families=QUICK, jobs_per_round=(1,))
    found = tune(Rehearsal(profile=profile, num_jobs=20, alpha=ALPHA), space=space)
    assert found.best.runtime_s <= 14.5
    assert found.best.ideal_s == pytest.approx(12.60, abs=5e-3)


@pytest.mark.parametrize("series", [CANADA, LONDON])
def test_half_the_rounds_choose_well_for_the_other_half(
    recorded_profiles: Path, series: str
) -> None:
    recorded = [read_profile(recorded_profiles / series.format(load)) for load in LOADS]
    alpha = float(np.polyfit(LOADS, [profile.times.mean() for profile in recorded], 1)[0])
    space = SearchSpace(families=QUICK, jobs_per_round=(1,))
    found = tune(Rehearsal(profile=recorded[0], alpha=alpha), space=space, holdout=0.5)
    assert found.num_jobs == recorded[0].num_rounds // 2
    assert found.best.ratio <= 1.12, (found.best, alpha)


def test_schemes_that_cut_a_batch_finer_than_it_has_points_are_not_searched() -> None:
    profile = random_profile(0, rounds=7)
    n = profile.num_workers
    for batch in (n, 1):  # of one point: where every worker holds the whole batch
        rehearsal = Rehearsal(profile=profile, num_jobs=4, alpha=1.3, repeat=True, batch=batch)
        space = SearchSpace(jobs_per_round=(1,), max_delay=2, mus=(0.25,))
        found = tune(rehearsal, space=space, prune=False, top=50)
        schemes = [row.setting.scheme for row in found.ranking]
        assert not any(rehearsal.leaves_out(s) for s in schemes if isinstance(s, Scheme))
        for row in found.ranking[:5]:
            assert replay(row.setting, rehearsal).runtime_s == row.runtime_s
    nothing_else = SearchSpace(families=("uncoded",), jobs_per_round=(1,))
    best = tune(rehearsal, space=nothing_else).best.setting.scheme
    assert isinstance(best, Scheme)
    assert rehearsal.leaves_out(best)
