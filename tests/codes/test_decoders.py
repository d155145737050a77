"""Decoding vectors of sets that follow one another, and those taken from covers."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seqgc.codes import CyclicCode, GradientCode, make_code, worst_survivors
from seqgc.errors import IllConditionedError, ParameterError
from seqgc.ports import FloatArray, payload_format
from tests.codes.registry import KINDS, encode_all, exists, without


@pytest.mark.parametrize(("n", "s"), [(10, 3), (30, 6), (64, 14), (64, 40)])
def test_as_answers_come_the_vector_is_the_shortest_solution(n: int, s: int) -> None:
    rng, one = np.random.default_rng([n, s]), CyclicCode(n, s)
    for _ in range(10):
        stragglers, left = rng.choice(n, s, replace=False), s
        while left:
            responded = without(n, stragglers[:left])
            vector = one.decoding_vector(responded)
            scale = np.abs(vector).max()
            assert not vector[~responded].any()
            rows = one.encoding_matrix[responded]
            shortest = np.linalg.lstsq(rows.T, np.ones(n), rcond=1e-12)[0]
            np.testing.assert_allclose(vector[responded], shortest, atol=1e-8 * scale)
            fresh = CyclicCode(n, s).decoding_vector(responded)
            np.testing.assert_allclose(vector, fresh, atol=1e-9 * scale)
            left = max(left - int(rng.integers(1, 4)), 0)


def test_no_set_leaves_a_trace_in_the_next() -> None:
    one = CyclicCode(30, 6)
    one.decoding_vector(without(30, [0, 1, 2, 3, 4, 5]))
    for stragglers in ([0, 1, 2, 3, 9], [7, 8, 9, 10, 11, 12], [], [0, 1, 2, 3, 4, 5]):
        responded = without(30, stragglers)
        fresh = CyclicCode(30, 6).decoding_vector(responded)
        np.testing.assert_array_equal(one.decoding_vector(responded), fresh)


@pytest.mark.parametrize(("n", "s"), [(64, 14), (64, 30)])
def test_one_more_answer_mends_an_ill_conditioned_set(n: int, s: int) -> None:
    code = CyclicCode(n, s)
    harsh, amplification = worst_survivors(code, budget=1e8)
    with contextlib.suppress(IllConditionedError):
        code.decoding_vector(harsh)
    for worker in np.flatnonzero(~harsh):
        mended = harsh.copy()
        mended[worker] = True
        vector, rows = code.decoding_vector(mended), code.encoding_matrix[mended]
        shortest = np.linalg.lstsq(rows.T, np.ones(n), rcond=1e-13)[0]
        scale = np.abs(shortest).max()
        np.testing.assert_allclose(vector[mended], shortest, atol=1e-9 * scale)
        assert code.amplification(vector) < amplification / 10


def test_the_coarser_of_payload_and_array_is_judged() -> None:
    code = make_code("cyclic", 31, 7)
    harsh, amplification = worst_survivors(code)
    assert amplification * payload_format("float32").rounding > 1e-4
    results = np.ones((31, 2), dtype=np.float32)
    for payload in (None, "float64", "float32"):
        with pytest.raises(IllConditionedError, match="float32 results"):
            code.decode(results, harsh, payload=payload)
    with pytest.raises(IllConditionedError, match="bfloat16 results"):
        code.decode(results, harsh, payload="bfloat16")


def test_declared_errors_help_where_answers_suffice_but_amplify() -> None:
    code = make_code("cyclic", 64, 14)
    harsh, _ = worst_survivors(code)
    partials = np.random.default_rng(3).standard_normal((64, 4000))
    results = encode_all(code, partials).astype(np.float32)
    with pytest.raises(IllConditionedError):
        code.decode(results, harsh)
    found = code.decode_within(results, harsh, allow_error=0.3)
    assert 0 < found.error <= 0.3
    true = partials.sum(axis=0)
    assert np.linalg.norm(found.gradient - true) <= 1.2 * found.error * np.linalg.norm(true)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if make_code(kind, 12, 3).covers])
def test_the_places_of_a_cover_add_up_to_the_gradient(kind: str) -> None:
    code = make_code(kind, 12, 3)
    seen = []
    for number, cover in enumerate(code.covers):
        for place, candidates in enumerate(cover.T):
            rows = code.encoding_matrix[candidates]
            assert (rows == rows[0]).all()
            assert {code.place_of(int(i)) for i in candidates} == {(number, place)}
            seen += candidates.tolist()
        np.testing.assert_array_equal(code.encoding_matrix[cover[0]].sum(axis=0), 1.0)
    assert sorted(seen) == list(range(12))


def test_a_code_that_solves_equations_has_no_places() -> None:
    code = make_code("cyclic", 10, 3)
    assert code.covers == ()
    assert code.place_of(4) is None


# ---- no finite input gives a wrong gradient silently ---------------------------------------------

_finite = st.floats(allow_nan=False, allow_infinity=False, width=64)


@st.composite
def coded(draw: st.DrawFn) -> tuple[GradientCode, FloatArray, list[int]]:
    n = draw(st.integers(2, 9))
    s = draw(st.integers(1, n - 1))
    code = make_code(draw(st.sampled_from([k for k in KINDS if exists(k, n, s)])), n, s)
    values = draw(
        st.lists(_finite, min_size=code.chunk_fractions.size, max_size=code.chunk_fractions.size)
    )
    dtype = draw(st.sampled_from([np.float64, np.float32, np.float16]))
    with np.errstate(over="ignore"):
        partials = np.array(values)[:, None].astype(dtype)
    partials[~np.isfinite(partials)] = np.finfo(dtype).max
    stragglers = draw(st.lists(st.integers(0, n - 1), max_size=s, unique=True))
    return code, partials, stragglers


@settings(max_examples=300, deadline=None, print_blob=True)
@given(coded())
def test_finite_partials_give_the_gradient_or_an_error(
    case: tuple[GradientCode, FloatArray, list[int]],
) -> None:
    code, partials, stragglers = case
    responded = without(code.n, stragglers)
    try:
        results = encode_all(code, partials)
        decoded = code.decode(results, responded)
    except (ParameterError, IllConditionedError) as error:
        if not isinstance(error, IllConditionedError) and "weighted sum" not in str(error):
            raise
        return
    exact = np.array([np.sum(column.astype(np.longdouble)) for column in partials.T])
    vector = np.abs(code.decoding_vector(responded))
    reach = vector @ np.abs(code.encoding_matrix) @ np.abs(partials.astype(np.longdouble))
    info = np.finfo(partials.dtype)
    # What m roundings to nearest, and vanishing below the least number, may cost.
    bound = 4 * code.n * (float(info.eps) * reach + float(info.smallest_subnormal) * code.n)
    bound *= max(1.0, float(vector.max()))
    assert np.isfinite(decoded).all()
    assert (np.abs(decoded.astype(np.longdouble) - exact) <= bound).all()
