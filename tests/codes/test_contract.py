"""What every gradient code owes, for every family in the registry."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqgc.codes import (
    BinaryCode,
    CodeKind,
    CyclicCode,
    FractionalRepetitionCode,
    GradientCode,
    make_code,
)
from seqgc.errors import NotDecodableError
from tests.codes.registry import FAMILIES, encode_all, masks, parameters, relative_error, without

SMALL = [pytest.param(*case, id="{}-{}-{}".format(*case)) for case in parameters(6)]
NAMES = {
    "BinaryCode": BinaryCode,
    "CyclicCode": CyclicCode,
    "FractionalRepetitionCode": FractionalRepetitionCode,
}


@pytest.mark.parametrize(("kind", "n", "s"), SMALL)
def test_every_survivor_set_that_can_decode_does(kind: CodeKind, n: int, s: int) -> None:
    code = FAMILIES[kind][0](n, s)
    partials = np.random.default_rng([n, s]).standard_normal((code.chunk_fractions.size, 3))
    results = encode_all(code, partials)
    for responded in masks(n):
        if not code.can_decode(responded):
            assert np.count_nonzero(~responded) > s, responded
            with pytest.raises(NotDecodableError, match="do not determine the gradient"):
                code.decode(results, responded)
            continue
        vector = code.decoding_vector(responded)
        assert vector.dtype == np.float64
        assert not vector[~responded].any(), responded
        assert np.abs(vector @ code.encoding_matrix - 1).max() <= 1e-10, responded
        lost = np.where(responded[:, None], results, np.nan)
        assert relative_error(code.decode(lost, responded), partials.sum(axis=0)) <= 1e-10


@pytest.mark.parametrize(("kind", "n", "s"), SMALL)
def test_one_straggler_too_many_can_be_fatal(kind: CodeKind, n: int, s: int) -> None:
    code = make_code(kind, n, s)
    assert not all(code.can_decode(responded) for responded in masks(n, missing=s + 1))


@pytest.mark.parametrize(("kind", "n", "s"), SMALL)
def test_supports_coefficients_and_loads_agree_with_the_matrix(
    kind: CodeKind, n: int, s: int
) -> None:
    code = make_code(kind, n, s)
    assert code.encoding_matrix.shape == (n, code.chunk_fractions.size)
    assert code.encoding_matrix.dtype == code.chunk_fractions.dtype == np.float64
    assert code.chunk_fractions.sum() == pytest.approx(1.0, abs=1e-15)
    touched = []
    for worker, row in enumerate(code.encoding_matrix):
        chunks = code.support(worker)
        assert sorted(chunks) == np.flatnonzero(row).tolist()
        np.testing.assert_array_equal(row[chunks], code.coefficients(worker))
        touched.append(code.chunk_fractions[chunks].sum())
    assert max(touched) == pytest.approx(code.load, rel=1e-14)


@pytest.mark.parametrize(("kind", "n", "s"), SMALL)
def test_a_code_is_its_content(kind: CodeKind, n: int, s: int) -> None:
    code = make_code(kind, n, s)
    clones = [eval(repr(code), NAMES), pickle.loads(pickle.dumps(code)), copy.deepcopy(code)]
    for clone in clones:
        assert clone == code
        assert hash(clone) == hash(code)
        np.testing.assert_array_equal(clone.encoding_matrix, code.encoding_matrix)
        assert not clone.encoding_matrix.flags.writeable
    assert len({code, *clones}) == 1
    assert code != make_code(kind, n + s + 1, s)
    assert all(code != other(n, 0) for name, (other, _) in FAMILIES.items() if name != kind)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_code_does_not_change(kind: CodeKind) -> None:
    code = make_code(kind, 6, 2)
    for field in ("n", "s", "encoding_matrix", "chunk_fractions", "load"):
        with pytest.raises((dataclasses.FrozenInstanceError, AttributeError)):
            setattr(code, field, 1)
    for array in (
        code.encoding_matrix,
        code.chunk_fractions,
        code.support(1),
        code.coefficients(1),
    ):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        code.decoding_vector(np.ones(6, dtype=np.bool_))[:] = 7.0


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_decoding_keeps_the_dtype_and_sums_no_narrower_than_float32(
    kind: CodeKind, dtype: type[np.floating]
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


@pytest.mark.parametrize("kind", FAMILIES)
def test_long_vectors_are_summed_block_by_block(kind: CodeKind) -> None:
    code = make_code(kind, 4, 1)
    partials = np.random.default_rng(0).standard_normal((code.chunk_fractions.size, 150_001))
    decoded = code.decode(encode_all(code, partials), without(4, [2]))
    np.testing.assert_allclose(decoded, partials.sum(axis=0), rtol=0, atol=1e-13)


@st.composite
def decodable(draw: st.DrawFn) -> tuple[GradientCode, np.ndarray, int]:
    kind = draw(st.sampled_from(sorted(FAMILIES)))
    s = draw(st.integers(0, 5))
    n = draw(st.integers(1, 6)) * (s + 1) if kind == "rep" else draw(st.integers(s + 1, 24))
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
