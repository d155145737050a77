"""What a comparison chooses for itself: the learning rate, the seeds, and the code."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import binom

from seqgc.comparison import SoftmaxProblem, Trial, compare, interval_words
from seqgc.comparison._evaluation import interval_of_median
from seqgc.errors import ParameterError
from seqgc.profiles import LAMBDA_CNN
from seqgc.search import Rehearsal, SearchSpace, tune

AT_ONCE = Trial(target=2.3, most=1, lrs=(4.0,))


@pytest.fixture
def on() -> Rehearsal:
    return Rehearsal(
        profile=LAMBDA_CNN.profile(12, workers=6, rng=np.random.default_rng(3)), alpha=3.0
    )


def steps_at(lr: float, *, batch: int, target: float) -> int:
    """Return the steps of plain training."""
    problem, step = SoftmaxProblem(batch=batch, seed=0), 0
    weights, shares = problem.start(), np.full(batch, 1 / batch)
    while problem.loss(weights) > target and step < 300:
        weights = weights - lr * problem.gradient(weights, problem.points(step=step), shares)
        step += 1
    return step


def test_the_best_rate_lies_inside_unless_it_is_said(on: Rehearsal) -> None:
    trial = Trial(target=0.6, batch=128, seeds=1)
    found = compare(on, ["uncoded", "asp"], trial=trial)
    lrs = found.trial.lrs or ()
    assert lrs == tuple(sorted(lrs))
    assert all(later == 2 * lr for lr, later in pairwise(lrs))
    assert lrs[0] < found.lr < lrs[-1]
    assert not found.lr_is_edge
    best = {lr: steps_at(lr, batch=128, target=0.6) for lr in lrs}
    assert best[found.lr] == min(best.values())
    for row in found.rows:
        assert row.best_seconds is not None
        assert row.seconds_to_target is not None
        assert row.best_seconds <= row.seconds_to_target
        assert not row.best_is_edge


def test_named_rates_are_the_only_ones_and_an_edge_is_said(on: Rehearsal) -> None:
    trial = Trial(target=1.0, batch=256, seeds=1, lrs=(0.25, 0.5))
    found = compare(on, ["uncoded", "asp"], trial=trial)
    assert (found.lr, found.lr_is_edge, found.trial.lrs) == (0.5, True, (0.25, 0.5))
    assert all(row.best_is_edge and row.best_lr == 0.5 for row in found.rows)


def test_a_rate_that_nothing_reaches_is_sought_within_bounds(on: Rehearsal) -> None:
    found = compare(on, ["uncoded", "asp"], trial=Trial(target=1e-9, most=1, batch=16, seeds=1))
    assert found.trial.lrs is not None
    assert max(found.trial.lrs) / min(found.trial.lrs) == 2**12
    assert all(row.best_lr is None for row in found.rows)


def test_there_are_ten_seeds(on: Rehearsal) -> None:
    found = compare(on, ["asp"], trial=AT_ONCE)
    assert found.trial.seeds == 10
    assert "10 seed(s)" in found.premise


@pytest.mark.parametrize("seeds", range(1, 40))
def test_the_interval_holds_the_median_with_95_percent(seeds: int) -> None:
    low, high = interval_of_median(range(seeds))
    assert low + high == seeds - 1
    holds = 1 - 2 * binom.cdf(low, seeds, 0.5)  # neither low + 1 below it, nor as many above
    is_sure = interval_words(seeds).endswith("95 % confidence")
    assert (holds >= 0.95) == is_sure
    assert is_sure == (seeds >= 6)
    assert low == 0 or 1 - 2 * binom.cdf(low + 1, seeds, 0.5) < 0.95


def test_a_part_at_the_end_is_held_out_to_judge_on(on: Rehearsal) -> None:
    trial = replace(AT_ONCE, seeds=2)
    named = ["uncoded", "backup:b=1"]
    found = compare(on, named, trial=trial, holdout=0.25)
    end = replace(on, profile=on.profile.select_rounds(9, stop=12))
    alone = compare(end, named, trial=trial)
    assert (found.clocks, found.chosen_on) == (3, None)
    assert found.rows == alone.rows
    assert compare(on, trial=trial, holdout=0.25).chosen_on == 9
    for row in found.rows:
        assert len(row.seeds_seconds) == 2
        assert np.median(row.seeds_seconds) == row.seconds_to_target
    with pytest.raises(ParameterError, match="`holdout` must satisfy"):
        compare(on, named, trial=trial, holdout=1.0)


def test_codes_are_chosen_on_one_half_and_all_are_judged_on_the_other(on: Rehearsal) -> None:
    told = list[tuple[str, float]]()
    trial = replace(AT_ONCE, seeds=1)
    found = compare(on, trial=trial, progress=lambda what, share: told.append((what, share)))
    assert (found.chosen_on, found.clocks) == (6, 6)
    halves = [
        Rehearsal(
            profile=on.profile.select_rounds(first, stop=end), alpha=3.0, repeat=True, models=1
        )
        for first, end in ((0, 6), (6, 12))
    ]
    usual = tune(halves[0], space=SearchSpace(jobs_per_round=(1,))).ranking
    code = next(row.setting for row in usual if row.setting.scheme.spec.startswith("gc"))
    named = compare(halves[1], [code, "uncoded", "asp", "backup:b=1"], trial=trial)
    assert named.chosen_on is None
    rows = {row.label: row for row in found.rows}
    for row in named.rows:
        assert rows[row.label].seconds_per_clock == row.seconds_per_clock
    shares = [share for _, share in told]  # progress never falls, and ends at the whole
    assert shares == sorted(shares)
    assert (shares[0] >= 0, shares[-1]) == (True, 1.0)
    assert {"learning rates", "asp", "backup:b=1"} <= {what for what, _ in told}
