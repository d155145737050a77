"""`compare_codes`: what it chooses is exact enough whoever is missing, and it says why."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from seqgc.codes import GradientCode, code_kinds, compare_codes, make_code, worst_survivors
from seqgc.errors import IllConditionedError, ParameterError
from seqgc.ports import PAYLOADS, BoolArray, FloatArray, Payload, payload_format, quantize, restore
from tests.codes.registry import DRAWN, contiguous_sets, encode_all, random_sets, relative_error

N, COLUMNS, SEED = 256, 48, 40
TOLERATED = (1, 3, 7, 15, 27, 63, 127)
LARGEST_ERROR: dict[Payload, float] = {
    "float16": 5e-3,
    "bfloat16": 4e-2,
    "float32": 1e-5,
    "float64": 1e-10,
}


def survivor_sets(code: GradientCode) -> Iterator[BoolArray]:
    """Yield random and contiguous sets, and the worst that another search finds."""
    yield from random_sets(code.n, code.s, DRAWN, seed=SEED)
    yield from contiguous_sets(code.n, code.s)
    yield worst_survivors(code, seed=SEED)[0]


def received(code: GradientCode, partials: FloatArray, payload: Payload) -> FloatArray:
    """Return every worker's result (n, p) as it arrives."""
    wide = np.float64 if payload == "float64" else np.float32
    results = encode_all(code, partials)
    return np.stack([restore(quantize(row, payload)).astype(wide) for row in results])


def acceptable(n: int, s: int, payload: Payload) -> list[GradientCode]:
    """Return the codes of every kind that is not turned down."""
    rows = compare_codes(n, s, payload=payload).rows
    assert [row.kind for row in rows] == list(code_kinds())
    codes = [make_code(row.kind, n, s) for row in rows if not row.why_not]
    assert codes
    return codes


@pytest.mark.parametrize("s", TOLERATED)
@pytest.mark.parametrize("payload", PAYLOADS)
def test_every_acceptable_code_is_exact_whoever_is_missing(s: int, payload: Payload) -> None:
    for code in acceptable(N, s, payload):
        partials = np.random.default_rng([SEED, s]).standard_normal(
            (code.chunk_fractions.size, COLUMNS)
        )
        gradient, results = partials.sum(axis=0), received(code, partials, payload)
        worst = max(
            relative_error(
                code.decode(np.where(mask[:, None], results, np.nan), mask, payload=payload),
                gradient,
            )
            for mask in survivor_sets(code)
        )
        assert worst <= LARGEST_ERROR[payload], (code, payload, worst, SEED)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_cyclic_codes_that_cannot_are_turned_down_with_a_reason(payload: Payload) -> None:
    comparison = compare_codes(N, 27, payload=payload)
    assert type(comparison.code).__name__ == "BinaryCode"
    (row,) = (row for row in comparison.rows if row.kind == "cyclic")
    assert row.why_not
    assert not row.chosen
    assert row.predicted_error == row.amplification * payload_format(payload).rounding
    assert f"amplify rounding errors {row.amplification:.3g} times" in str(row)
    assert str(row).endswith(f"{row.why_not}: not chosen")
    # and rightly so: the set that it names is beyond what the format could bear
    cyclic = make_code("cyclic", N, 27)
    mask, amplification = worst_survivors(cyclic)
    assert amplification * payload_format(payload).rounding > LARGEST_ERROR[payload] / 100
    with pytest.raises(IllConditionedError):
        cyclic.check_error(cyclic.decoding_vector(mask), payload, tolerance=1e-11)


def test_a_wide_payload_may_take_the_cheaper_code() -> None:
    wide = make_code("auto", 12, 4, payload="float32")
    narrow = make_code("auto", 12, 4, payload="float16")
    assert (type(wide).__name__, type(narrow).__name__) == ("CyclicCode", "BinaryCode")
    assert wide.load < narrow.load


def test_of_equal_loads_the_one_that_decodes_more_sets() -> None:
    code = make_code("auto", 12, 3)
    assert type(code).__name__ == "FractionalRepetitionCode"


def test_a_table_says_what_was_compared_and_why() -> None:
    comparison = compare_codes(12, 4, payload="float16")
    assert (
        comparison.code == make_code("auto", 12, 4, payload="float16") == make_code("binary", 12, 4)
    )
    assert [row.chosen for row in comparison.rows] == [False, False, True]
    assert comparison.rows[2].load == 0.5
    title, rep, cyclic, binary = str(comparison).splitlines()
    assert title.startswith("n=12, s=4, float16 results: binary, the least load (share of a batch)")
    assert rep == "  rep: `s` must be such that s + 1 divides n (repetition code), n=12"
    assert cyclic.endswith("more than 1e-03: not chosen")
    assert binary.endswith("times: predicted relative error 2.1e-04")


def test_every_payload_has_a_table_of_its_own() -> None:
    chosen = {p: type(compare_codes(12, 4, payload=p).code).__name__ for p in PAYLOADS}
    assert chosen["float64"] == chosen["float32"] == "CyclicCode"
    assert chosen["float16"] == "BinaryCode"
    assert "float32 results" in str(compare_codes(12, 4))


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ParameterError, match="`payload` must be one of float64, float32"):
        make_code("auto", 4, 1, payload="float8")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="`s` must satisfy 0 <= s < n"):
        make_code("auto", 4, 4)
    with pytest.raises(ParameterError, match="`n` must be an integer >= 1"):
        compare_codes(2.0, 1)  # type: ignore[arg-type]
