"""What every gradient code owes, for every kind in the registry."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqgc.codes import GradientCode, code_kinds, make_code
from seqgc.testing import check_code
from tests.codes.registry import (
    KINDS,
    codes,
    encode_all,
    exists,
    fewest_fatal,
    relative_error,
    without,
)

SMALL = [pytest.param(*case, id="{}-{}-{}".format(*case)) for case in codes(6)]


def test_no_registered_kind_goes_untested() -> None:
    assert {kind for kind, n, s in codes(6) if n > s > 0} == set(KINDS) == set(code_kinds())


@pytest.mark.parametrize(("kind", "n", "s"), [*SMALL, ("cyclic", 31, 7), ("binary", 30, 6)])
def test_a_code_keeps_its_contract(kind: str, n: int, s: int) -> None:
    check_code(make_code(kind, n, s))


@pytest.mark.parametrize(("kind", "n", "s"), SMALL)
def test_one_straggler_too_many_can_be_fatal_and_no_fewer(kind: str, n: int, s: int) -> None:
    # Binary: who holds the same chunk, n/G workers rounded down; s + 1 of them if s + 1 divides n.
    fewest = n // (n // (s + 1)) if kind == "binary" else s + 1
    fatal = fewest_fatal(make_code(kind, n, s))
    assert {np.count_nonzero(~responded) for responded in fatal} == {fewest}


@pytest.mark.parametrize(("kind", "n", "s"), SMALL)
def test_codes_of_other_content_or_kind_differ(kind: str, n: int, s: int) -> None:
    code = make_code(kind, n, s)
    assert len({code, make_code(kind, n, s)}) == 1
    assert code != make_code(kind, n + s + 1, s)
    assert all(code != make_code(other, n, 0) for other in KINDS if other != kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_decoding_keeps_the_dtype_and_sums_no_narrower_than_float32(
    kind: str, dtype: type[np.floating]
) -> None:
    code = make_code(kind, 12, 3)
    partials = np.random.default_rng(3).standard_normal((code.chunk_fractions.size, 50))
    results = encode_all(code, partials).astype(dtype)
    responded = without(12, [4, 9])
    decoded = code.decode(results, responded, tolerance=1e-1)
    assert decoded.dtype == dtype
    exact = code.decoding_vector(responded) @ results.astype(np.float64)
    half_ulps = np.spacing(np.abs(exact).astype(dtype)).astype(np.float64) / 2
    # A sum of m products in a precision of unit round-off u errs by at most about m u times the sum
    # of their magnitudes; 12 of them here.
    summed = np.finfo(np.promote_types(dtype, np.float32)).eps / 2
    reach = np.abs(code.decoding_vector(responded)) @ np.abs(results.astype(np.float64))
    assert (np.abs(decoded.astype(np.float64) - exact) <= half_ulps + 13 * summed * reach).all()
    assert code.encode(0, partials[code.support(0)].astype(dtype)).dtype == dtype


@pytest.mark.parametrize("kind", KINDS)
def test_long_vectors_are_summed_block_by_block(kind: str) -> None:
    code = make_code(kind, 4, 1)
    partials = np.random.default_rng(0).standard_normal((code.chunk_fractions.size, 150_001))
    decoded = code.decode(encode_all(code, partials), without(4, [2]))
    np.testing.assert_allclose(decoded, partials.sum(axis=0), rtol=0, atol=1e-13)


@st.composite
def decodable(draw: st.DrawFn) -> tuple[GradientCode, np.ndarray, int]:
    kind = draw(st.sampled_from(KINDS))
    s = draw(st.integers(0, 5))
    n = draw(st.sampled_from([n for n in range(s + 1, 25) if exists(kind, n, s)]))
    stragglers = draw(st.sets(st.integers(0, n - 1), max_size=s))
    return make_code(kind, n, s), without(n, sorted(stragglers)), draw(st.integers(0, 2**32))


@given(case=decodable())
def test_encode_lose_decode_returns_the_gradient(
    case: tuple[GradientCode, np.ndarray, int],
) -> None:
    code, responded, seed = case
    partials = np.random.default_rng(seed).standard_normal((code.chunk_fractions.size, 40))
    results = encode_all(code, partials)
    results[~responded] = np.inf
    decoded = code.decode(results, responded)
    assert relative_error(decoded, partials.sum(axis=0)) <= 1e-10


@given(case=decodable())
def test_one_more_answer_never_hurts(case: tuple[GradientCode, np.ndarray, int]) -> None:
    code, responded, _ = case
    before = code.amplification(code.decoding_vector(responded))
    for worker in np.flatnonzero(~responded):
        more = responded.copy()
        more[worker] = True
        assert code.can_decode(more)
        after = code.amplification(code.decoding_vector(more))
        assert after <= before * (1 + 1e-9)
