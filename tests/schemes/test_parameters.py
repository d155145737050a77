"""Loads, delays, specs, and every parameter's range."""

from __future__ import annotations

import pickle
from typing import Literal

import numpy as np
import pytest

from seqgc import schemes
from seqgc.errors import ParameterError, ScheduleError
from seqgc.schemes import GC, MSGC, RASGC, SRSGC, Scheme, Uncoded, parse_scheme
from seqgc.stragglers import Arbitrary, Bursty, EveryGroup, PerRound, StragglerModel
from tests.schemes.catalogue import small_schemes

CHECK_VALUES = {  # docs/mathematics.md, section 3
    "m-sgc:B=1,W=2,lam=27": (1, 0.007543),
    "m-sgc:B=1,W=2,lam=24": (1, 0.007512),
    "sr-sgc:B=2,W=3,lam=23": (2, 0.050781),
    "sr-sgc:B=2,W=3,lam=22": (2, 0.046875),
    "sr-sgc:B=2,W=3,lam=20": (2, 0.042969),
    "sr-sgc:B=2,W=3,lam=15": (2, 0.035156),
    "gc:s=15": (0, 0.062500),
    "uncoded": (0, 1 / 256),
    # floor(256/28) = 9 places: D1 chunks of 1/(256 + 9), two mini-tasks.
    "m-sgc-binary:B=1,W=2,lam=27": (1, 0.007547),
    # floor(256/101) = 2 places: D1 chunks of 1/(512 + 2*2), four mini-tasks.
    "m-sgc-binary:B=2,W=3,lam=100": (3, 0.007752),
}
SMALL = small_schemes(4)


@pytest.mark.parametrize("spec", CHECK_VALUES)
def test_loads_and_delays_are_the_published_ones(spec: str) -> None:
    scheme = parse_scheme(spec, n=256)
    delay, load = CHECK_VALUES[spec]
    assert scheme.delay == delay
    assert scheme.normalized_load == pytest.approx(load, abs=5e-7)


@pytest.mark.parametrize("scheme", SMALL, ids=lambda s: f"n={s.n}-{s.spec}")
def test_load_is_what_the_assignment_touches(scheme: Scheme) -> None:
    schedule = scheme.start(scheme.delay + 1)
    everyone = np.ones(scheme.n, dtype=np.bool_)
    while schedule.round < scheme.delay:
        # Of RA-SGC nobody has the most unless all is missing.
        schedule.close_round(~everyone if isinstance(scheme, RASGC) else everyone)
    fractions = scheme.chunk_fractions
    touched = [
        sum(fractions[task.chunks].sum() for task in tasks) for tasks in schedule.assignment()
    ]
    assert fractions.sum() == pytest.approx(1)
    assert not fractions.flags.writeable
    if isinstance(scheme, MSGC) and scheme.lam == scheme.n:
        # Without stragglers nothing is left for the slots that repeat; they are charged anyway.
        assert max(touched) == pytest.approx((scheme.W - 1) * fractions[0])
        assert scheme.normalized_load == pytest.approx((scheme.W - 1 + scheme.B) * fractions[0])
    elif isinstance(scheme, RASGC):  # a chunk may be dealt in parts
        assert touched == pytest.approx(schedule.loads().tolist())
        assert max(touched) <= scheme.normalized_load * (1 + 1e-9)
    else:
        assert max(touched) == pytest.approx(scheme.normalized_load)


def test_m_sgc_load_is_the_closed_form() -> None:
    for n, B, W, lam in [(4, 2, 3, 2), (256, 1, 2, 27), (10, 3, 5, 0), (7, 1, 4, 6)]:
        expected = (lam + 1) * (W - 1 + B) / (n * (B + (W - 1) * (lam + 1)))
        assert MSGC(n=n, B=B, W=W, lam=lam).normalized_load == pytest.approx(expected, rel=1e-14)
    assert MSGC(n=8, B=2, W=4, lam=8).normalized_load == pytest.approx(5 / 24, rel=1e-14)


def test_m_sgc_loads_are_those_derived_by_hand() -> None:
    def load(family: Literal["cyclic", "rep", "binary"], lam: int) -> float:
        return MSGC(n=10, B=2, W=4, lam=lam, family=family).normalized_load

    # 30 D1 chunks of one mini-task each, and 2 groups as large as 1/(their code's load) of them.
    assert load("binary", 3) == pytest.approx(5 / (30 + 2 * 2), rel=1e-14)  # floor(10/4) = 2
    assert load("cyclic", 3) == pytest.approx(5 / (30 + 2 * 2.5), rel=1e-14)
    # Where lam + 1 divides n, all codes cost the same.
    for lam, results in ((0, 10), (1, 5), (4, 2), (9, 1)):
        for family in ("cyclic", "rep", "binary"):
            assert load(family, lam) == pytest.approx(5 / (30 + 2 * results), rel=1e-14)


def test_binary_groups_number_their_chunks_and_covers_one_after_the_other() -> None:
    # The (5, 1) binary code: workers 0, 2, 4 hold one half of a group and 1, 3 the other.
    scheme = MSGC(n=5, B=2, W=3, lam=1, family="binary")
    # 10 D1 chunks of 1/(10 + 2*2), then twice a group of 2/14 cut in halves.
    assert scheme.chunk_fractions.tolist() == pytest.approx([1 / 14] * 14, rel=1e-14)
    schedule = scheme.start(4)
    while schedule.round < 3:
        schedule.close_round(np.ones(5, dtype=np.bool_))
    # Chunks, cover and place, for jobs 3 and 2 in D1 and jobs 1 and 0 in D2.
    expected = [
        [([0], 0, 0), ([1], 0, 1), ([10], 1, 0), ([12], 2, 0)],
        [([2], 0, 2), ([3], 0, 3), ([11], 1, 1), ([13], 2, 1)],
        [([4], 0, 4), ([5], 0, 5), ([10], 1, 0), ([12], 2, 0)],
        [([6], 0, 6), ([7], 0, 7), ([11], 1, 1), ([13], 2, 1)],
        [([8], 0, 8), ([9], 0, 9), ([10], 1, 0), ([12], 2, 0)],
    ]
    assert [
        [(task.chunks.tolist(), task.cover, task.place) for task in tasks]
        for tasks in schedule.assignment()
    ] == expected


def test_results_that_need_solved_weights_have_no_cover() -> None:
    tasks = MSGC(n=5, B=1, W=2, lam=1).coded_tasks
    assert {task.cover for worker in tasks for task in worker} == {None}


@pytest.mark.parametrize("scheme", SMALL, ids=lambda s: f"n={s.n}-{s.spec}")
def test_schemes_survive_spec_repr_pickle_and_hash(scheme: Scheme) -> None:
    assert parse_scheme(scheme.spec, n=scheme.n) == scheme
    assert eval(repr(scheme), vars(schemes)) == scheme
    assert pickle.loads(pickle.dumps(scheme)) == scheme
    assert hash(parse_scheme(scheme.spec, n=scheme.n)) == hash(scheme)


def test_the_small_catalogue_reaches_every_edge_of_the_ranges() -> None:
    kinds = {(type(s).__name__, getattr(s, "family", "")) for s in SMALL}
    assert kinds == {
        ("Uncoded", ""),
        ("Balanced", ""),
        ("RASGC", ""),
        *(("GC", f) for f in ("cyclic", "rep", "binary")),
        *(("SRSGC", f) for f in ("cyclic", "rep")),
        *(("MSGC", f) for f in ("cyclic", "rep", "binary")),
    }
    m_sgc = [s for s in SMALL if isinstance(s, MSGC)]
    assert {s.lam for s in m_sgc if s.n == 4 and s.family == "cyclic"} == {0, 1, 2, 3, 4}
    assert any(s.n == 1 for s in m_sgc)
    assert any(s.B == s.W - 1 > 1 for s in m_sgc)


BAD = {
    "gc:s=4": "`s` must satisfy 0 <= s < n (GC), n=4; got 4",
    "gc:s=-1": "`s` must satisfy 0 <= s < n (GC), n=4; got -1",
    "gc-rep:s=2": "`s` must be such that s + 1 divides n (GC-Rep), n=4; got 2 (or use gc-binary",
    "sr-sgc:B=2,W=4,lam=1": "`W` must be x*B + 1 with an integer x >= 1 (SR-SGC), B=2; got 4",
    "sr-sgc:B=1,W=1,lam=1": "`W` must be x*B + 1 with an integer x >= 1 (SR-SGC), B=1; got 1",
    "sr-sgc:B=0,W=2,lam=1": "`B` must be >= 1 (SR-SGC); got 0",
    "sr-sgc:B=1,W=2,lam=0": "`lam` must satisfy 1 <= lam <= n (SR-SGC), n=4; got 0",
    "sr-sgc:B=1,W=2,lam=5": "`lam` must satisfy 1 <= lam <= n (SR-SGC), n=4; got 5",
    "sr-sgc-rep:B=1,W=2,lam=4": (
        "`lam` must give an s such that s + 1 divides n (SR-SGC-Rep), n=4, s=2; got 4 (or use sr-"
    ),
    "m-sgc:B=2,W=2,lam=1": "`W` must satisfy B < W (M-SGC), B=2; got 2",
    "m-sgc:B=0,W=2,lam=1": "`B` must be >= 1 (M-SGC); got 0",
    "m-sgc:B=1,W=2,lam=5": "`lam` must satisfy 0 <= lam <= n (M-SGC), n=4; got 5",
    "m-sgc-rep:B=1,W=2,lam=2": (
        "`lam` must be such that lam + 1 divides n (M-SGC-Rep), n=4; got 2 (or use m-sgc-binary)"
    ),
    "m-sgc-binary:B=1,W=2,lam=4": (
        "`lam` must satisfy 0 <= lam < n (M-SGC-Binary), n=4; got 4 (or use m-sgc)"
    ),
    "backup:b=4": "`b` must satisfy 0 <= b < n (backup), n=4; got 4",
    "balanced:shares=1-2-1": "`shares` must list one integer for each of n=4 workers; got '1-2-1'",
    "balanced:shares=1x5": "`shares` must be integers from 0 to 1000000000 joined by '-', as in",
    "balanced:shares=0x4": "`shares` must not all be 0 (balanced); got '0x4'",
    "balanced:shares=1x4,blocks=1x3-0": "`blocks` must be integers from 1 to 1000 (balanced); got",
    "gradient": (
        "`scheme` must be one of backup, balanced, deal, uncoded, gc, gc-rep, gc-binary, m-sgc, "
        "m-sgc-rep, m-sgc-binary, ra-sgc, sr-sgc, sr-sgc-rep"  # and what is found by entry points
    ),
    "m-sgd:B=1,W=2,lam=1": "did you mean 'm-sgc'?",
    "m-sgc:B=1,W=2,lamb=1": (
        "`scheme` m-sgc takes B, W, lam, late; got 'lamb=1' (did you mean 'lam'?)"
    ),
    "m-sgc:B=1,W=2": "`scheme` needs lam, as in m-sgc:B=…,W=…,lam=…; got 'm-sgc:B=1,W=2'",
    "gc:s=1,s=2": "`scheme` gc takes each parameter once; got 's=2'",
    "gc:s=one": "`scheme` gc: s must be an integer; got 's=one'",
    "uncoded:s=1": "`scheme` uncoded takes no parameters; got 's=1'",
}


@pytest.mark.parametrize("spec", BAD)
def test_a_bad_spec_names_argument_rule_and_value(spec: str) -> None:
    with pytest.raises(ParameterError) as caught:
        parse_scheme(spec, n=4)
    assert BAD[spec] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sr_sgc_needs_more_than_one_worker() -> None:
    with pytest.raises(ParameterError, match="s = ceil"):
        SRSGC(n=1, B=1, W=2, lam=1)


@pytest.mark.parametrize("value", [1.0, True, "1"])
def test_parameters_are_integers(value: int) -> None:
    with pytest.raises(ParameterError, match="`s` must be an integer"):
        GC(n=4, s=value)
    with pytest.raises(ParameterError, match="`n` must be an integer"):
        Uncoded(n=value)


@pytest.mark.parametrize(
    "scheme", [GC(n=3, s=1), SRSGC(n=3, B=1, W=2, lam=2), MSGC(n=3, B=1, W=2, lam=1)]
)
def test_a_schedule_refuses_what_is_not_its_turn(scheme: Scheme) -> None:
    schedule = scheme.start(1)
    everyone = np.ones(3, dtype=np.bool_)
    with pytest.raises(ScheduleError, match="job 0"):
        schedule.decoding(0)
    with pytest.raises(ParameterError, match="responded"):
        schedule.close_round(np.ones(3))
    with pytest.raises(ParameterError, match="responded"):
        schedule.feasible(np.ones(4, dtype=np.bool_))
    while schedule.round < schedule.num_rounds:
        schedule.close_round(everyone)
    for action in (schedule.assignment, lambda: schedule.close_round(everyone)):
        with pytest.raises(ScheduleError, match="rounds are closed"):
            action()
    with pytest.raises(ParameterError, match="num_jobs"):
        scheme.start(0)


@pytest.mark.parametrize(("B", "W"), [(1, 2), (2, 3), (1, 4), (3, 4)])
def test_m_sgc_meets_the_load_bound_exactly_at_the_published_lam(B: int, W: int) -> None:
    n = 6
    for lam in range(n + 1):
        scheme = MSGC(n=n, B=B, W=W, lam=lam)
        gap = scheme.normalized_load - scheme.load_lower_bound
        assert gap >= -1e-15
        assert (abs(gap) < 1e-15) == (lam in {0, n - 1, n})


def test_every_scheme_costs_at_least_its_bound() -> None:
    for scheme in SMALL:
        assert scheme.normalized_load >= scheme.load_lower_bound - 1e-15, scheme


def test_load_bounds_at_their_edges() -> None:
    assert Bursty(B=1, W=1, lam=4).load_lower_bound(4, delay=0) == float("inf")
    assert Arbitrary(N=2, W=2, lam=4).load_lower_bound(4, delay=1) == float("inf")
    assert Bursty(B=2, W=4, lam=3).load_lower_bound(5, delay=4) == pytest.approx(5 / 19)
    assert Arbitrary(N=2, W=5, lam=3).load_lower_bound(5, delay=4) == pytest.approx(5 / 19)


def test_a_mixture_promises_what_each_of_its_models_does() -> None:
    rep = parse_scheme("sr-sgc-rep:B=1,W=2,lam=30", n=256)
    assert rep.load_lower_bound == 0.0625  # one answer in every group of 16
    assert parse_scheme("sr-sgc:B=2,W=3,lam=23", n=256).load_lower_bound >= 1 / (256 - 12)


@pytest.mark.parametrize(
    ("model", "n", "message"),
    [
        (PerRound(s=4), 4, "`s` must satisfy 0 <= s < n, n=4; got 4"),
        (EveryGroup(size=3), 4, "`size` must divide n=4, the number of workers; got 3"),
        (Bursty(B=1, W=2, lam=5), 4, "`lam` must satisfy 0 <= lam <= n, n=4; got 5"),
        (Arbitrary(N=1, W=2, lam=5), 4, "`lam` must satisfy 0 <= lam <= n, n=4; got 5"),
    ],
)
def test_a_bound_of_more_stragglers_than_workers_is_refused(
    model: StragglerModel, n: int, message: str
) -> None:
    with pytest.raises(ParameterError) as caught:
        model.load_lower_bound(n, delay=1)
    assert str(caught.value) == message
