"""Approximate decoding: the best there is, with a bound that holds, and only where declared."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqgc.codes import GradientCode, Layout, make_code
from seqgc.errors import NotDecodableError, ParameterError, ScheduleError
from seqgc.ports import BoolArray, FloatArray
from seqgc.schemes import GC, parse_scheme
from tests.codes.registry import KINDS, codes, encode_all, exists, masks, without

SMALL = [pytest.param(*case, id="{}-{}-{}".format(*case)) for case in codes(6)]
LOSSY: list[tuple[str, int, int]] = [
    ("cyclic", 7, 2),
    ("cyclic", 6, 2),
    ("rep", 6, 1),
    ("binary", 7, 2),
    ("binary", 5, 1),
]


def best_residual(code: GradientCode, responded: BoolArray) -> float:
    """Return the least ``sqrt(sum_k f_k (a @ E - 1)_k^2)``, by numpy alone."""
    weights = np.sqrt(code.chunk_fractions)
    equations = (code.encoding_matrix[responded] * weights).T
    best = np.linalg.lstsq(equations, weights, rcond=1e-12)[0]
    return float(np.linalg.norm(equations @ best - weights))


def left_out(code: GradientCode, vector: FloatArray) -> float:
    residual = vector @ code.encoding_matrix - 1
    return math.sqrt(float(code.chunk_fractions @ residual**2))


# ---- the vector and its bound --------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "n", "s"), SMALL)
def test_no_vector_of_these_answers_leaves_out_less(kind: str, n: int, s: int) -> None:
    code = make_code(kind, n, s)
    for responded in masks(n):
        found = code.approximation(responded)
        assert not found.vector.flags.writeable
        assert not found.vector[~responded].any(), responded
        assert found.error == pytest.approx(best_residual(code, responded), abs=1e-9), responded
        assert found.error == pytest.approx(left_out(code, found.vector), abs=1e-9), responded


@pytest.mark.parametrize(("kind", "n", "s"), SMALL)
def test_nothing_is_left_out_exactly_where_answers_suffice(kind: str, n: int, s: int) -> None:
    code = make_code(kind, n, s)
    for responded in masks(n):
        found, error = code.approximation(responded), code.approximation_error(responded)
        if code.can_decode(responded):
            assert found.error == error == 0.0
            np.testing.assert_array_equal(found.vector, code.decoding_vector(responded))
        else:
            assert min(found.error, error) > 1e-6, responded
    nobody = np.zeros(n, dtype=np.bool_)
    assert code.approximation(nobody).error == pytest.approx(1.0, abs=1e-15)
    assert code.approximation_error(nobody) == pytest.approx(1.0, abs=1e-15)


def test_the_error_of_a_lost_group_is_its_share_of_the_batch() -> None:
    code = make_code("rep", 12, 2)  # four groups
    for lost in range(1, 4):
        missing = [worker for worker in range(12) if worker % 4 < lost]
        found = code.approximation(without(12, missing))
        assert found.error == pytest.approx(math.sqrt(lost / 4), rel=1e-14)
        assert sorted(found.vector) == pytest.approx([0.0] * (8 + lost) + [1.0] * (4 - lost))


class HalvesAndThirds(GradientCode):
    """Workers 0 and 1 hold a half of the batch each, workers 2, 3 and 4 a third."""

    def _make_layout(self) -> Layout:
        supports = tuple(map(np.array, ([0, 1], [2, 3], [0], [1, 2], [3])))
        return Layout(supports=supports, sizes=np.array([2, 1, 1, 2]))


def test_chunks_count_by_their_share_of_the_batch() -> None:
    code = HalvesAndThirds(5, 1)
    alone = code.approximation(np.array([True, False, False, False, False]))
    assert alone.error == pytest.approx(math.sqrt(1 / 2), rel=1e-14)
    # Worker 1 has the other half, worker 2 the first third: 1/6 of the batch stays out of reach.
    both = code.approximation(np.array([False, True, True, False, False]))
    assert both.error == pytest.approx(math.sqrt(1 / 6), rel=1e-14)


def orders(n: int) -> Iterator[tuple[int, ...]]:
    rng = np.random.default_rng(n)
    yield from (tuple(rng.permutation(n).tolist()) for _ in range(6))


@pytest.mark.parametrize(("kind", "n", "s"), LOSSY)
def test_the_error_follows_answers_as_they_come(kind: str, n: int, s: int) -> None:
    code = make_code(kind, n, s)  # the same one for all orders: each begins with fewer answers
    for order in orders(n):
        responded, before = np.zeros(n, dtype=np.bool_), 1.0
        for worker in order:
            responded[worker] = True  # in place: the code must not rely on its argument
            error = code.approximation_error(responded)
            assert error == pytest.approx(code.approximation(responded).error, abs=1e-12)
            assert error <= before + 1e-12, "an answer more cannot hurt"
            before = error
        assert before == 0.0


@pytest.mark.parametrize(("kind", "n", "s"), LOSSY)
def test_the_error_is_right_after_a_worker_is_lost(kind: str, n: int, s: int) -> None:
    code = make_code(kind, n, s)
    sets = [responded for responded in masks(n) if not code.can_decode(responded)]
    rng = np.random.default_rng([n, s])
    for first, second in itertools.pairwise(rng.permutation(len(sets)).tolist()):
        code.approximation_error(sets[first])
        expected = best_residual(code, sets[second])
        assert code.approximation_error(sets[second]) == pytest.approx(expected, abs=1e-12)


@st.composite
def undecodable(draw: st.DrawFn) -> tuple[GradientCode, BoolArray, int]:
    kind = draw(st.sampled_from(KINDS))
    s = draw(st.integers(0, 4))
    n = draw(st.sampled_from([n for n in range(s + 1, 17) if exists(kind, n, s)]))
    stragglers = draw(st.sets(st.integers(0, n - 1), min_size=s + 1))
    return make_code(kind, n, s), without(n, sorted(stragglers)), draw(st.integers(0, 2**32))


@given(case=undecodable(), adverse=st.booleans())
def test_the_bound_holds_for_any_gradients(
    case: tuple[GradientCode, BoolArray, int], adverse: bool
) -> None:
    code, responded, seed = case
    shares = code.chunk_fractions
    vector, error = (found := code.approximation(responded)).vector, found.error
    means = np.random.default_rng(seed).standard_normal((shares.size, 5))  # of each chunk's points
    means *= np.random.default_rng(seed).pareto(1.0, size=(shares.size, 1)) + 1e-3
    if adverse:  # all that is left out points one way: the bound is reached
        means = np.outer(vector @ code.encoding_matrix - 1, np.ones(5))
    partials = shares[:, None] * means
    decoded = vector @ encode_all(code, partials)
    distance = float(np.linalg.norm(decoded - partials.sum(axis=0)))
    bound = error * math.sqrt(float(shares @ np.square(means).sum(axis=1)))
    assert distance <= bound * (1 + 1e-9) + 1e-9
    if adverse:
        assert distance == pytest.approx(bound, rel=1e-6, abs=1e-9)


# ---- decode --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "n", "s"), LOSSY)
def test_decode_approximates_where_that_is_allowed_and_says_how_well(
    kind: str, n: int, s: int
) -> None:
    code = make_code(kind, n, s)
    partials = np.random.default_rng(n).standard_normal((code.chunk_fractions.size, 4))
    results = encode_all(code, partials)
    for responded in masks(n):
        lost = np.where(responded[:, None], results, np.nan)
        best = code.approximation(responded)
        if code.can_decode(responded):
            gradient, error = code.decode_within(lost, responded, allow_error=0.0)
            assert error == 0.0
            np.testing.assert_array_equal(gradient, code.decode(lost, responded))
            continue
        with pytest.raises(NotDecodableError, match="do not determine the gradient; wait"):
            code.decode(lost, responded)
        assert best.error > 0.05
        within = rf"to within {best.error - 0.01:g} \(error bound {best.error:.2g}\); wait"
        with pytest.raises(NotDecodableError, match=within):
            code.decode_within(lost, responded, allow_error=best.error - 0.01)
        if best.error < 0.98:
            gradient, error = code.decode_within(lost, responded, allow_error=best.error + 0.01)
            assert error == best.error
            used = np.where(responded[:, None], results, 0)
            np.testing.assert_allclose(gradient, best.vector @ used, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("allowed", [-0.1, 1.0, math.nan, math.inf])
def test_an_allowance_is_a_fraction(allowed: float) -> None:
    message = "`allow_error` must satisfy 0 <= allow_error < 1"
    with pytest.raises(ParameterError, match=message):
        make_code("rep", 4, 1).decode_within(np.ones((4, 2)), without(4, [0]), allow_error=allowed)
    with pytest.raises(ParameterError, match=message):
        GC(n=4, s=1, allow_error=allowed)


# ---- the scheme ----------------------------------------------------------------------------------

SPECS = {
    "gc:s=2,allow_error=0.4": GC(n=6, s=2, allow_error=0.4),
    "gc:s=3,allow_error=0.3": GC(n=6, s=3, allow_error=0.3),
    "gc-rep:s=1,allow_error=0.6": GC(n=6, s=1, family="rep", allow_error=0.6),
    "gc-binary:s=1,allow_error=0.75": GC(n=7, s=1, family="binary", allow_error=0.75),
    "gc-binary:s=1,allow_error=0.71": GC(n=5, s=1, family="binary", allow_error=0.71),
}


@pytest.mark.parametrize("spec", SPECS)
def test_the_allowance_is_part_of_the_schemes_name(spec: str) -> None:
    scheme = SPECS[spec]
    assert scheme.spec == spec
    assert parse_scheme(spec, n=scheme.n) == scheme
    assert eval(repr(scheme)) == scheme  # the name is imported above
    exact = GC(n=scheme.n, s=scheme.s, family=scheme.family)
    assert exact != scheme
    assert exact.spec == spec.partition(",")[0]
    assert (exact.normalized_load, exact.tolerated) == (scheme.normalized_load, scheme.tolerated)


@pytest.mark.parametrize("spec", SPECS)
def test_a_round_may_close_at_the_allowed_error_and_no_earlier(spec: str) -> None:
    scheme = SPECS[spec]
    code = make_code(scheme.family, scheme.n, scheme.s)
    partials = np.random.default_rng(1).standard_normal((code.chunk_fractions.size, 3))
    approximate = 0
    for responded in masks(scheme.n):
        schedule = scheme.start(1)
        tasks = schedule.assignment()
        best = code.approximation(responded)
        assert schedule.feasible(responded) == (best.error <= scheme.allow_error), responded
        if not schedule.feasible(responded):
            with pytest.raises(NotDecodableError, match="job 0 is due in round 0"):
                schedule.close_round(responded)
            with pytest.raises(ScheduleError):
                schedule.decoding(0)
            continue
        assert schedule.close_round(responded) == (0,)
        decoding = schedule.decoding(0)
        assert decoding.error == best.error
        approximate += decoding.error > 0
        gradient = np.zeros(3)
        for term in decoding.terms:
            (task,) = tasks[term.worker]
            assert responded[term.worker]
            gradient += term.weight * (task.coefficients @ partials[task.chunks])
        used = best.vector @ encode_all(code, partials)
        np.testing.assert_allclose(gradient, used, rtol=1e-9, atol=1e-12)
    assert approximate > 0, "every case must have something to approximate"


@pytest.mark.parametrize("spec", SPECS)
def test_weighed_results_are_no_parts_of_plain_sums(spec: str) -> None:
    scheme = SPECS[spec]
    tasks = scheme.start(1).assignment()
    assert {task.cover for worker in tasks for task in worker} == {None}


@pytest.mark.parametrize("spec", SPECS)
def test_what_conforms_is_what_the_exact_scheme_tolerates(spec: str) -> None:
    scheme = SPECS[spec]
    exact = GC(n=scheme.n, s=scheme.s, family=scheme.family)
    for responded in masks(scheme.n):
        expected = exact.start(1).conforms(responded)
        assert scheme.start(1).conforms(responded) == expected
