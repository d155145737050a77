"""Accuracy at n = 256, conditioning at small n, and the guard that refuses the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from seqgc.codes import CyclicCode, GradientCode, make_code
from seqgc.codes import cyclic as cyclic_module
from seqgc.errors import IllConditionedError
from seqgc.ports import BoolArray, FloatArray, payload_format
from tests.codes.registry import (
    DRAWN,
    contiguous_sets,
    encode_all,
    masks,
    random_sets,
    relative_error,
    without,
)

N, COLUMNS, SEED = 256, 64, 20170
DIVIDING, OTHERS = (1, 7, 15, 31), (2, 6, 14, 20, 30)  # does s + 1 divide N?


def lengths(chosen: cyclic_module.CyclicDesign, sets: Iterator[BoolArray]) -> FloatArray:
    """Return the shortest decoding vectors' lengths over sqrt(n): the amplifications."""
    stragglers = np.array([np.flatnonzero(~responded) for responded in sets])
    found: FloatArray = chosen.solutions.lengths(stragglers)
    return found / np.sqrt(len(chosen.coefficients))


def float32_errors(code: GradientCode, sets: Iterator[BoolArray]) -> tuple[list[float], int]:
    """Return the relative errors from float32 results, and how many sets were refused."""
    rng = np.random.default_rng(SEED)
    partials = rng.standard_normal((code.chunk_fractions.size, COLUMNS))
    results, gradient = encode_all(code, partials).astype(np.float32), partials.sum(axis=0)
    errors, refused = [], 0
    for responded in sets:
        try:
            decoded = code.decode(np.where(responded[:, None], results, np.nan), responded)
            errors.append(relative_error(decoded, gradient))
        except IllConditionedError:
            refused += 1
    return errors, refused


@pytest.mark.parametrize("s", [*DIVIDING, *OTHERS])
@pytest.mark.parametrize("pattern", ["random", "contiguous"])
def test_cyclic_float32_results_decode_to_four_digits(s: int, pattern: str) -> None:
    sets = random_sets(N, s, DRAWN, seed=SEED) if pattern == "random" else contiguous_sets(N, s)
    errors, refused = float32_errors(CyclicCode(N, s), sets)
    print(
        f"\ncyclic n={N} s={s} {pattern} (seed {SEED}): relative error median"
        f" {np.median(errors):.1e}, worst {max(errors):.1e};"
        f" IllConditionedError {refused} of {refused + len(errors)}"
    )
    assert max(errors) <= (1e-6 if s in DIVIDING else 1e-4)
    assert np.median(errors) <= 1e-6
    assert refused <= (0 if s in DIVIDING else 1), f"{refused} sets refused, seed {SEED}"


ADDED = [("rep", s) for s in DIVIDING] + [("binary", s) for s in (*DIVIDING, *OTHERS)]


@pytest.mark.parametrize(("kind", "s"), ADDED)
def test_repetition_and_binary_float32_results_decode_to_six_digits(kind: str, s: int) -> None:
    code = make_code(kind, N, s)
    for sets in (random_sets(N, s, DRAWN, seed=SEED), contiguous_sets(N, s)):
        errors, refused = float32_errors(code, sets)
        assert refused == 0
        assert max(errors) <= 1e-6


@pytest.mark.parametrize("n", range(2, 10))
def test_cyclic_small_codes_are_well_conditioned_whoever_is_missing(n: int) -> None:
    for s in range(n):
        code = CyclicCode(n, s)
        for missing in range(s + 1):
            for responded in masks(n, missing=missing):
                vector = code.decoding_vector(responded)
                residual = np.abs(vector @ code.encoding_matrix - 1).max()
                assert residual <= 1e-12, (n, s, responded)
                assert code.amplification(vector) <= 20, (n, s, responded)


@pytest.mark.parametrize(("n", "s"), [(255, 14), (255, 15), (251, 6), (30, 29), (64, 40), (48, 46)])
def test_cyclic_takes_any_parity(n: int, s: int) -> None:
    code = CyclicCode(n, s)
    medians = []
    for sets in (random_sets(n, s, 50, seed=SEED), contiguous_sets(n, s)):
        found = [code.amplification(code.decoding_vector(responded)) for responded in sets]
        medians.append(np.median(found))
    assert max(medians) <= 10, medians


@pytest.mark.parametrize("s", OTHERS)
def test_cyclic_amplifies_as_little_as_its_design_says(s: int) -> None:
    # The figures in the docstring of `seqgc.codes.cyclic`; Gaussian coefficients have 200 and more.
    chosen = cyclic_module.design(N, s)
    drawn = lengths(chosen, random_sets(N, s, 2000, seed=SEED))
    assert np.median(drawn) <= 2.0
    assert np.quantile(drawn, 0.99) <= 150
    assert lengths(chosen, contiguous_sets(N, s)).max() <= 1.5


@pytest.mark.parametrize(("n", "s"), [(3, 1), (7, 3), (8, 6), (9, 5), (13, 6), (64, 40), (256, 30)])
def test_rows_are_unit_null_vectors_of_a_parity_matrix(n: int, s: int) -> None:
    chosen = cyclic_module.design(n, s)
    matrix = CyclicCode(n, s).encoding_matrix
    parity = np.linalg.svd(matrix)[2][n - s :]
    assert np.abs(parity.sum(axis=1)).max() <= 1e-12
    assert np.abs(parity @ matrix.T).max() <= 1e-13
    assert np.linalg.norm(chosen.coefficients, axis=1) == pytest.approx(1.0)
    assert (chosen.coefficients[:, 0] > 0).all()


@pytest.mark.parametrize("s", [2, 1000])
def test_cyclic_takes_a_thousand_workers(s: int) -> None:
    n = 1024
    chosen = cyclic_module.design(n, s)
    drawn = list(random_sets(n, s, 10, seed=SEED))
    assert np.median(lengths(chosen, iter(drawn))) <= 5
    code = CyclicCode(n, s)
    for responded in (drawn[0], without(n, (n - s // 2 + np.arange(s)) % n)):
        vector = code.decoding_vector(responded)
        assert np.abs(vector @ code.encoding_matrix - 1).max() <= 1e-9


def test_a_design_is_the_same_in_every_process() -> None:
    once, again = cyclic_module.design(37, 5), cyclic_module.design.__wrapped__(37, 5)
    assert once is not again
    assert (once.coefficients == again.coefficients).all()


def test_amplification_predicts_the_error_of_rounded_results() -> None:
    code, ratios = CyclicCode(64, 6), []
    rng = np.random.default_rng(SEED)
    for responded in random_sets(64, 6, 40, seed=SEED):
        partials = rng.standard_normal((64, 400))
        results = encode_all(code, partials)
        noisy = results + rng.standard_normal(results.shape) * 1e-6 * results.std(axis=1)[:, None]
        error = relative_error(code.decode(noisy, responded), partials.sum(axis=0))
        ratios.append(error / (1e-6 * code.amplification(code.decoding_vector(responded))))
    assert 0.8 <= min(ratios) <= max(ratios) <= 1.25, (min(ratios), max(ratios))


# ---- the guard ----------------------------------------------------------------------------------


def harshest_set(code: GradientCode) -> tuple[BoolArray, float]:
    """Return the worst of many random survivor sets, and its amplification."""
    sets = random_sets(code.n, code.s, 300, seed=SEED)
    found = [(code.amplification(code.decoding_vector(mask)), mask) for mask in sets]
    amplification, responded = max(found, key=lambda pair: pair[0])
    assert amplification > 20, "no harsh set among these"
    return responded, amplification


def test_the_guard_refuses_narrow_results_where_wide_ones_do() -> None:
    code = CyclicCode(64, 14)
    responded, amplification = harshest_set(code)
    partials = np.random.default_rng(SEED).standard_normal((64, COLUMNS))
    results = encode_all(code, partials)
    assert relative_error(code.decode(results, responded), partials.sum(axis=0)) <= 1e-10
    with pytest.raises(IllConditionedError) as caught:
        code.decode(results.astype(np.float16), responded)
    assert caught.value.amplification == pytest.approx(amplification)
    error = amplification * payload_format("float16").rounding
    assert str(caught.value) == (
        f"CyclicCode(n=64, s=14): float16 results would give a relative error of {error:.1e},"
        f" over 1e-02 (amplification {amplification:.1e}); wait for one more answer, send wider"
        " results, or use a repetition or binary code"
    )


def test_the_guard_keeps_the_callers_tolerance() -> None:
    code = CyclicCode(64, 14)
    responded, amplification = harshest_set(code)
    results = np.ones((64, 2), dtype=np.float32)
    expected = amplification * payload_format("float32").rounding
    assert np.isfinite(code.decode(results, responded, tolerance=expected * 1.01)).all()
    with pytest.raises(IllConditionedError):
        code.decode(results, responded, tolerance=expected * 0.99)


def test_the_guard_lets_half_precision_pass_where_no_code_does_better() -> None:
    code = make_code("rep", 64, 3)
    partials = np.random.default_rng(SEED).standard_normal((64, COLUMNS))
    decoded = code.decode(encode_all(code, partials).astype(np.float16), without(64, [5]))
    assert 1e-5 < relative_error(decoded, partials.sum(axis=0)) < 1e-3


_DESIGN = cyclic_module.design(13, 3)


def spoiled(null_space: FloatArray) -> cyclic_module.CyclicDesign:
    solutions = dataclasses.replace(_DESIGN.solutions, null_space=null_space)
    return _DESIGN._replace(solutions=solutions)


def test_the_guard_refuses_a_vector_that_does_not_solve(monkeypatch: pytest.MonkeyPatch) -> None:
    code = CyclicCode(13, 3)
    wrong = _DESIGN.solutions.null_space + 1e-6 * np.random.default_rng(SEED).standard_normal(
        (3, 13)
    )
    monkeypatch.setattr(cyclic_module, "design", lambda _n, _s: spoiled(wrong))
    with pytest.raises(IllConditionedError, match=r"CyclicCode\(n=13, s=3\).* residual is"):
        code.decoding_vector(without(13, [1, 5, 6]))


def test_the_guard_refuses_singular_equations(monkeypatch: pytest.MonkeyPatch) -> None:
    singular = _DESIGN.solutions.null_space.copy()
    singular[:, 5] = 0.0
    monkeypatch.setattr(cyclic_module, "design", lambda _n, _s: spoiled(singular))
    with pytest.raises(IllConditionedError, match="singular") as caught:
        CyclicCode(13, 3).decoding_vector(without(13, [5]))
    assert caught.value.amplification == np.inf
