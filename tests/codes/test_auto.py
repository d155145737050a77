"""`make_code("auto")`: what it picks is exact enough whoever is missing, and it says why."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import numpy as np
import pytest

from seqgc.codes import GradientCode, make_code
from seqgc.codes._auto import CODES
from seqgc.codes._survivors import contiguous_sets, random_sets, responded_without, worst_found
from seqgc.errors import IllConditionedError, ParameterError
from seqgc.ports import PAYLOADS, BoolArray, FloatArray, Payload, payload_format, quantize, restore
from tests.codes.registry import encode_all, relative_error

N, COLUMNS, SEED = 256, 48, 40
TOLERATED = (1, 3, 7, 15, 27, 63, 127)
LARGEST_ERROR: dict[Payload, float] = {
    "float16": 5e-3,
    "bfloat16": 4e-2,
    "float32": 1e-5,
    "float64": 1e-10,
}


def survivor_sets(code: GradientCode) -> Iterator[BoolArray]:
    """Yield 200 random and 256 contiguous sets, and the worst that another search finds."""
    n, s = code.n, code.s
    for stragglers in random_sets(n, s, 200, np.random.default_rng([SEED, s])):
        yield responded_without(n, stragglers)
    for stragglers in contiguous_sets(n, s):
        yield responded_without(n, stragglers)
    yield worst_found(code, seed=SEED)[0]


def received(code: GradientCode, partials: FloatArray, payload: Payload) -> FloatArray:
    """Return every worker's result (n, p) as it arrives."""
    wide = np.float64 if payload == "float64" else np.float32
    results = encode_all(code, partials)
    return np.stack([restore(quantize(row, payload)).astype(wide) for row in results])


def acceptable(n: int, s: int, payload: Payload) -> list[GradientCode]:
    """Return the codes of every family that `auto` does not turn down."""
    lines = make_code("auto", n, s, payload=payload).explain().splitlines()[1:]
    kinds = [
        line.split(":")[0].strip()
        for line in lines
        if "not chosen" not in line and "does not divide" not in line
    ]
    assert kinds
    return [CODES[kind](n, s) for kind in kinds]


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
    code = make_code("auto", N, 27, payload=payload)
    assert type(code).__name__ == "BinaryCode"
    (line,) = (line for line in code.explain().splitlines() if line.strip().startswith("cyclic"))
    assert "not chosen" in line
    assert "amplify rounding errors" in line
    # and rightly so: the set that it names is beyond what the format could bear
    cyclic = make_code("cyclic", N, 27)
    mask, amplification = worst_found(cyclic)
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


def test_explain_remembers_the_payload_it_was_chosen_for() -> None:
    code = make_code("auto", 12, 4, payload="float16")
    assert "float16 results: binary" in code.explain()
    assert pickle.loads(pickle.dumps(code)).explain() == code.explain()
    assert "float64 results: cyclic" in code.explain("float64")
    assert "float32 results" in make_code("binary", 12, 4).explain()
    assert code == make_code("binary", 12, 4)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ParameterError, match="`payload` must be one of float64, float32"):
        make_code("auto", 4, 1, payload="float8")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="`s` must satisfy 0 <= s < n"):
        make_code("auto", 4, 4)
