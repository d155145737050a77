"""Every conforming pattern is decoded in time and right; one step outside, not every one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from seqgc.codes import make_code
from seqgc.errors import NotDecodableError
from seqgc.ports import BoolArray
from seqgc.schemes import GC, MSGC, RASGC, SRSGC, Scheme, Uncoded, parse_scheme
from tests.codes.registry import fewest_fatal
from tests.kit import SOAK
from tests.schemes.catalogue import small_schemes
from tests.schemes.patterns import (
    CoverCheck,
    GradientCheck,
    Run,
    every_conforming,
    masks,
    sampled_conforming,
)

SMALL = small_schemes(4)
LARGER = [
    parse_scheme(spec, n=n)
    for n, specs in {
        5: ("sr-sgc:B=2,W=3,lam=3", "m-sgc:B=2,W=4,lam=2"),
        6: ("gc-binary:s=3", "m-sgc-rep:B=1,W=3,lam=2", "sr-sgc:B=2,W=3,lam=4"),
        7: ("sr-sgc:B=1,W=4,lam=7", "m-sgc:B=3,W=4,lam=7", "m-sgc-binary:B=2,W=3,lam=2"),
        8: ("gc:s=4", "sr-sgc-rep:B=3,W=4,lam=2", "gc:s=3"),
        9: ("gc-rep:s=2", "m-sgc:B=1,W=2,lam=0", "sr-sgc:B=1,W=3,lam=6"),
        10: ("sr-sgc:B=1,W=3,lam=5", "m-sgc-rep:B=1,W=2,lam=4", "m-sgc:B=2,W=3,lam=4"),
        11: ("gc:s=7", "m-sgc:B=2,W=5,lam=6", "m-sgc-binary:B=1,W=3,lam=3"),
        12: ("sr-sgc-rep:B=2,W=3,lam=6", "m-sgc-rep:B=2,W=4,lam=5"),
    }.items()
    for spec in specs
]
EXHAUSTIVE_BITS = 16 if SOAK else 11
SAMPLED = 10_000 if SOAK else 120
LONG_RUNS = 256 if SOAK else 12
SEED = 20261120


def label(scheme: Scheme) -> str:
    return f"n={scheme.n}-{scheme.spec}"


def exhaustible_jobs(scheme: Scheme) -> int:
    """Jobs of the longest run whose patterns all fit the budget, as far as jobs interact; 0: none.

    M-SGC's and GC's jobs do not see each other; SR-SGC's do, through who reattempts what.
    """
    enough = 3 if isinstance(scheme, SRSGC) else 2
    return max(0, min(enough, EXHAUSTIVE_BITS // scheme.n - scheme.delay))


# All that GC can meet is one round: also with many workers there are few patterns.
EVERY = [s for s in SMALL if exhaustible_jobs(s)] + [s for s in LARGER if isinstance(s, GC)]
BEYOND = [s for s in SMALL + LARGER if s not in EVERY]


@pytest.mark.parametrize("scheme", EVERY, ids=label)
def test_every_conforming_pattern_is_decoded(scheme: Scheme) -> None:
    check = GradientCheck(scheme)
    assert all(run.done for run in every_conforming(scheme, exhaustible_jobs(scheme), check))


def assert_decoded(scheme: Scheme, *, num_jobs: int, patterns: int) -> None:
    check = GradientCheck(scheme, seed=SEED)
    runs = list(sampled_conforming(scheme, num_jobs, check, patterns=patterns, seed=SEED))
    assert len(runs) == patterns, f"replay with seed {SEED}"
    assert all(run.done for run in runs)


@pytest.mark.parametrize("scheme", BEYOND, ids=label)
def test_where_there_are_too_many_patterns_random_ones_are_decoded(scheme: Scheme) -> None:
    # M-SGC's jobs do not see each other: one job's whole life is the pattern that matters.
    num_jobs = 1 if isinstance(scheme, MSGC) else scheme.delay + 3
    assert_decoded(scheme, num_jobs=num_jobs, patterns=SAMPLED)


# Random runs of the others beyond are as long.
SHORT = [s for s in SMALL + LARGER if s.n > 1 and (isinstance(s, MSGC) or s in EVERY)]


@pytest.mark.parametrize("scheme", SHORT, ids=label)
def test_long_runs_with_many_jobs_in_flight_are_decoded(scheme: Scheme) -> None:
    assert_decoded(scheme, num_jobs=scheme.delay + 3, patterns=LONG_RUNS)


@pytest.mark.parametrize("scheme", [s for s in SMALL if s.n in (2, 3)], ids=label)
def test_what_conforms_is_feasible_and_feasible_grows_with_answers(scheme: Scheme) -> None:
    rng = np.random.default_rng(SEED)
    run, check = Run(scheme.start(scheme.delay + 2)), GradientCheck(scheme)
    while not run.done:
        answers = masks(scheme.n)
        feasible = {a.tobytes(): run.schedule.feasible(a) for a in answers}
        for a in answers:
            assert feasible[a.tobytes()] or not run.schedule.conforms(a)
            assert not feasible[a.tobytes()] or all(
                feasible[b.tobytes()] for b in answers if not (a & ~b).any()
            )
        good = [a for a in answers if run.schedule.conforms(a)]
        run = run.after(good[rng.integers(len(good))], check)


# ---- plain sums ----------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", SMALL + LARGER, ids=label)
def test_results_with_a_cover_enter_a_gradient_as_a_plain_sum(scheme: Scheme) -> None:
    num_jobs, covers = scheme.delay + 3, CoverCheck()
    runs = sampled_conforming(scheme, num_jobs, covers, patterns=4, seed=SEED)
    assert all(run.done for run in runs)
    if isinstance(scheme, GC | SRSGC):
        code = make_code(scheme.family, scheme.n, scheme.tolerated)
        assert (covers.used > 0) == bool(code.covers)
    elif isinstance(scheme, RASGC) and scheme.p > 1:
        assert covers.used == 0, "own results or parts: which of a chunk count is known at the end"
    else:
        assert covers.used > 0


# ---- one step outside the model ------------------------------------------------------------------


def whole_run(scheme: Scheme, num_rounds: int) -> BoolArray:
    return np.zeros((num_rounds, scheme.n), dtype=np.bool_)


def assert_loses_and_is_refused(scheme: Scheme, stragglers: BoolArray) -> None:
    """The pattern loses a job, and `conforms` refuses it in the run and as a whole."""
    schedule = scheme.start(len(stragglers) - scheme.delay)
    conforming = []

    def play() -> None:
        for row in ~stragglers:
            conforming.append(schedule.conforms(row))
            schedule.close_round(row)

    assert not scheme.promise.conforms(stragglers)
    with pytest.raises(NotDecodableError) as caught:
        play()
    assert not all(conforming)
    assert caught.value.round == schedule.round, "a refused transition must not advance"


@pytest.mark.parametrize("scheme", [s for s in SMALL if isinstance(s, GC | Uncoded)], ids=label)
def test_gc_loses_with_one_straggler_too_many(scheme: GC | Uncoded) -> None:
    infeasible = [~a for a in masks(scheme.n) if not scheme.start(1).feasible(a)]
    fewest = min(np.count_nonzero(stragglers) for stragglers in infeasible)
    losing = [each for each in infeasible if np.count_nonzero(each) == fewest]
    one_too_many = scheme.tolerated + 1
    groups = scheme.n // one_too_many
    if isinstance(scheme, GC) and scheme.family == "cyclic":
        assert fewest == one_too_many
        # All ones where s + 1 divides n: one straggler in each of the s + 1 classes of workers.
        every = math.comb(scheme.n, one_too_many)
        assert len(losing) == (every if scheme.n % one_too_many else groups**one_too_many)
    else:
        # A whole group, and one of the smallest: of the binary code these may be larger than s + 1.
        assert fewest == scheme.n // groups
        members = {tuple(np.flatnonzero(stragglers)) for stragglers in losing}
        smallest = range(scheme.n % groups, groups)
        assert members == {tuple(range(first, scheme.n, groups)) for first in smallest}
    assert_loses_and_is_refused(scheme, losing[0][None])


@pytest.mark.parametrize("scheme", [s for s in SMALL if isinstance(s, SRSGC)], ids=label)
def test_sr_sgc_loses_when_one_too_many_straggle_again_a_delay_later(scheme: SRSGC) -> None:
    stragglers = whole_run(scheme, 1 + scheme.B)
    stragglers[[0, scheme.B]] = ~fewest_fatal(make_code(scheme.family, scheme.n, scheme.s))[0]
    assert (np.count_nonzero(stragglers, axis=1)[[0, scheme.B]] == scheme.s + 1).all()
    assert_loses_and_is_refused(scheme, stragglers)


M_SGC = [s for s in SMALL if isinstance(s, MSGC)]


@pytest.mark.parametrize("scheme", [s for s in M_SGC if s.lam < s.n], ids=label)
def test_m_sgc_loses_with_one_distinct_straggler_too_many(scheme: MSGC) -> None:
    assert scheme.code is not None
    one_too_many = ~fewest_fatal(scheme.code)[0]
    # The binary code loses nothing before the smallest group straggles, of lam + 1 or more workers.
    groups = scheme.n // (scheme.lam + 1)
    fewest = scheme.n // groups if scheme.family == "binary" else scheme.lam + 1
    assert np.count_nonzero(one_too_many) == fewest
    stragglers = whole_run(scheme, 1 + scheme.delay)
    stragglers[: scheme.B] = one_too_many
    assert_loses_and_is_refused(scheme, stragglers)


@pytest.mark.parametrize("scheme", [s for s in M_SGC if s.lam > 0], ids=label)
def test_m_sgc_loses_with_a_burst_one_round_too_long(scheme: MSGC) -> None:
    stragglers = whole_run(scheme, 1 + scheme.delay)
    stragglers[: scheme.B + 1, 0] = True
    assert_loses_and_is_refused(scheme, stragglers)


@pytest.mark.parametrize("scheme", [s for s in M_SGC if s.lam > 0], ids=label)
def test_m_sgc_loses_with_bursts_one_round_too_close(scheme: MSGC) -> None:
    stragglers = whole_run(scheme, 1 + scheme.delay)
    stragglers[: scheme.B, 0] = True
    stragglers[scheme.delay, 0] = True  # W - 1 rounds after the first burst's last round
    assert_loses_and_is_refused(scheme, stragglers)
