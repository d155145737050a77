"""Payload formats: what rounding loses, what scaling keeps, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from seqgc.errors import ParameterError
from seqgc.ports import (
    EXPONENTS,
    PAYLOADS,
    Payload,
    Quantized,
    payload_format,
    quantize,
    restore,
)

NARROW: tuple[Payload, ...] = ("float16", "bfloat16")
ROUNDING: list[tuple[Payload, str]] = [  # format, dtype of what is rounded to it
    ("float32", "float64"),
    ("float16", "float32"),
    ("float16", "float64"),
    ("bfloat16", "float16"),
    ("bfloat16", "float32"),
    ("bfloat16", "float64"),
]


def vectors(dtype: str) -> st.SearchStrategy[npt.NDArray[np.floating]]:
    """Return vectors of a dtype, of all magnitudes that can be rounded."""
    width = int(dtype.removeprefix("float"))
    largest = min(2.0**1023, float(np.finfo(dtype).max))
    numbers = st.floats(-largest, largest, width=width, exclude_max=True, exclude_min=True)
    return hnp.arrays(dtype, st.integers(0, 20), elements=numbers)


def representable(fmt: Payload, rng: np.random.Generator, size: int) -> npt.NDArray[np.float64]:
    """Return values of the format, of many magnitudes, as float64."""
    p = payload_format(fmt).precision
    significands = rng.integers(2 ** (p - 1), 2**p, size)
    return np.ldexp(significands * rng.choice([-1.0, 1.0], size), rng.integers(-12, 3, size) - p)


@pytest.mark.parametrize(
    ("name", "bits", "info"),
    [
        ("float64", 64, np.finfo(np.float64)),
        ("float32", 32, np.finfo(np.float32)),
        ("float16", 16, np.finfo(np.float16)),
        ("bfloat16", 16, torch.finfo(torch.bfloat16)),
    ],
)
def test_formats_are_what_others_say_they_are(name: Payload, bits: int, info: np.finfo) -> None:
    fmt = payload_format(name)
    assert (fmt.name, fmt.bits, fmt.storage.itemsize * 8) == (name, bits, bits)
    assert fmt.unit_roundoff == info.eps / 2
    assert 2.0**fmt.least_normal == info.tiny
    assert name in PAYLOADS


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("scale", [-1000, -160, -120, -1, 0, 90, 130, 1000])
@pytest.mark.parametrize("stochastic", [False, True])
def test_what_a_format_holds_comes_back_exactly(
    payload: Payload, scale: int, stochastic: bool
) -> None:
    rng = np.random.default_rng(1)
    vector = np.ldexp(representable(payload, rng, 500), scale)
    vector[3] = 0.0
    quantized = quantize(vector, payload, rng=rng if stochastic else None)
    assert quantized.values.dtype == payload_format(payload).storage
    assert not quantized.values.flags.writeable
    assert np.array_equal(restore(quantized, np.float64), vector)
    assert np.array_equal(restore(quantized), vector)


@pytest.mark.parametrize(
    ("dtype", "payload"),
    [
        ("float16", "float16"),
        ("float16", "float32"),
        ("float32", "float32"),
        ("float32", "float64"),
        ("float64", "float64"),
    ],
)
def test_a_wide_enough_format_sends_the_vector_as_it_is(dtype: str, payload: Payload) -> None:
    info = np.finfo(dtype)
    vector = np.array([info.max, -info.tiny, info.smallest_subnormal, 0.0], dtype)
    quantized = quantize(vector, payload, rng=np.random.default_rng(0))
    assert quantized.exponent == 0
    assert np.shares_memory(quantized.values, vector) == (dtype == payload)
    restored = restore(quantized)
    assert restored.dtype == ("float64" if payload == "float64" else "float32")
    assert np.array_equal(restored, vector)
    assert vector.flags.writeable


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_float16_rounds_as_numpy_does(dtype: str) -> None:
    rng = np.random.default_rng(2)
    # The largest is where the scale is 1, so that numpy's own cast is what must come out;
    # subnormals and ties (odd multiples of half a spacing) included.
    vector = np.concatenate(
        [
            [2.0**14 + 8],
            rng.standard_normal(5000) * np.exp2(rng.uniform(-26, 12, 5000)),
            np.arange(2049, 4096, 2) / 2,
            np.arange(1, 200) * 2.0**-25,
        ]
    ).astype(dtype)
    quantized = quantize(vector, "float16")
    assert quantized.exponent == 0
    assert np.array_equal(quantized.values, vector.astype(np.float16))


def test_bfloat16_rounds_as_torch_does() -> None:
    rng = np.random.default_rng(3)
    vector = np.concatenate(
        [
            [2.0**14 + 64],
            rng.standard_normal(5000) * np.exp2(rng.uniform(-140, 12, 5000)),
            np.arange(257, 512, 2) / 2,
            np.arange(1, 200) * 2.0**-134,
        ]
    ).astype(np.float32)
    quantized = quantize(vector, "bfloat16")
    expected = torch.from_numpy(vector).to(torch.bfloat16)
    assert quantized.exponent == 0
    assert np.array_equal(quantized.values, expected.view(torch.uint16).numpy())
    assert np.array_equal(restore(quantized), expected.float().numpy())


def test_a_double_is_rounded_to_bfloat16_once() -> None:
    # Just above a tie: by way of float32 it would become the tie, and go down to even.
    vector = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-8, 1 + 3 * 2.0**-8])
    assert restore(quantize(vector, "bfloat16")).tolist() == [1 + 2.0**-7, 1.0, 1 + 2.0**-6]


@pytest.mark.parametrize(("payload", "dtype"), ROUNDING)
@pytest.mark.parametrize("seed", [None, 4])
@given(data=st.data())
def test_each_coordinate_is_as_accurate_as_the_format(
    payload: Payload, dtype: str, seed: int | None, data: st.DataObject
) -> None:
    fmt, vector = payload_format(payload), data.draw(vectors(dtype))
    rng = None if seed is None else np.random.default_rng(seed)
    quantized = quantize(vector, payload, rng=rng)
    restored = restore(quantized, np.float64)
    assert restored.shape == vector.shape
    # In units of the format's least normal number, below which accuracy is absolute.
    shift = -quantized.exponent - fmt.least_normal
    exact = np.ldexp(vector.astype(np.float64), shift)
    error = np.abs(np.ldexp(restored, shift) - exact)
    rounding = fmt.unit_roundoff * (1 if rng is None else 2)
    assert (error <= rounding * np.maximum(np.abs(exact), 1)).all()


@pytest.mark.parametrize(("payload", "dtype"), ROUNDING)
@given(data=st.data())
def test_the_default_dtype_loses_nothing_that_matters(
    payload: Payload, dtype: str, data: st.DataObject
) -> None:
    quantized = quantize(data.draw(vectors(dtype)), payload)
    default, exact = restore(quantized), restore(quantized, np.float64)
    error = np.abs(default.astype(np.float64) - exact).max(initial=0.0)
    assert error <= 2.0**-48 * np.abs(exact).max(initial=0.0)


@pytest.mark.parametrize("payload", NARROW)
@pytest.mark.parametrize(
    ("dtype", "magnitude"),
    [
        ("float64", 1e-300),
        ("float64", 1e300),
        ("float64", 5e-324),
        ("float64", 8.9e307),
        ("float32", 1e-45),
        ("float32", 3.4e38),
        ("float32", 1e-30),
    ],
)
@pytest.mark.parametrize("stochastic", [False, True])
def test_tiny_and_huge_vectors_survive(
    payload: Payload, dtype: str, magnitude: float, stochastic: bool
) -> None:
    vector = (np.array([1.0, -0.3, 0.01, 0.0]) * magnitude).astype(dtype)
    rng = np.random.default_rng(5) if stochastic else None
    quantized = quantize(vector, payload, rng=rng)
    assert quantized.exponent in EXPONENTS
    restored = restore(quantized).astype(np.float64)
    error = np.abs(restored - vector) / np.where(vector, np.abs(vector.astype(np.float64)), 1.0)
    assert error.max() <= 2 * payload_format(payload).unit_roundoff
    assert restored[0] != 0


@pytest.mark.parametrize("exponent", [0, -1, 5, -60, -1000])
def test_every_16_bit_pattern_is_restored(exponent: int) -> None:
    bits = np.arange(2**16).astype(np.uint16)
    halves = bits.view(np.float16)
    halves = halves[np.isfinite(halves)]
    uppers = torch.from_numpy(bits).view(torch.bfloat16).double().numpy()
    finite = np.isfinite(uppers)
    for payload, values, exact in (
        ("float16", halves, halves.astype(np.float64)),
        ("bfloat16", bits[finite], uppers[finite]),
    ):
        quantized = Quantized(payload=payload, values=values, exponent=exponent)
        restored = restore(quantized, np.float64)
        assert np.array_equal(restored, np.ldexp(exact, exponent))
        assert np.array_equal(np.signbit(restored), np.signbit(exact))


def test_float16_uses_its_range_up_to_one_binade() -> None:
    for magnitude in (1e-9, 0.3, 1.0, 2.0**-0.0001, 1e9):
        values = quantize(np.array([magnitude, magnitude / 3]), "float16").values
        assert 2.0**14 <= values.max() <= 2.0**15


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("values", [[], [0.0], [0.0, -0.0, 0.0], [-2.5], [7e-310]])
@pytest.mark.parametrize("stochastic", [False, True])
def test_short_and_zero_vectors(payload: Payload, values: list[float], stochastic: bool) -> None:
    vector = np.array(values, np.float64)
    rng = np.random.default_rng(6) if stochastic else None
    quantized = quantize(vector, payload, rng=rng)
    assert quantized.values.shape == vector.shape
    if not vector.any():
        assert quantized.exponent == 0
    restored = restore(quantized)
    rounding = 2 * payload_format(payload).unit_roundoff
    np.testing.assert_allclose(restored, vector, rtol=rounding, atol=0)
    assert np.array_equal(np.signbit(restored), np.signbit(vector))


@pytest.mark.parametrize(("payload", "dtype"), ROUNDING)
def test_stochastic_rounding_is_unbiased(payload: Payload, dtype: str) -> None:
    fmt = payload_format(payload)
    # The last three are far below the least normal number after scaling; all are between values.
    tails = [0.3, 2.6, 90.7] if dtype != "float16" else [0.3]
    least = 2.0 ** (fmt.least_normal - fmt.precision + 1 - 15)
    vector = np.array([1.0, 1 / 3, -0.7, 1e-3, *(least * t for t in tails)]).astype(dtype)
    exact = vector.astype(np.float64)
    rng, draws = np.random.default_rng(7), 4000
    drawn = restore(quantize(np.tile(vector, draws), payload, rng=rng), np.float64)
    drawn = drawn.reshape(draws, -1)
    rounded = drawn.std(axis=0)
    assert (np.abs(drawn.mean(axis=0) - exact) <= 4 * rounded / math.sqrt(draws) + 1e-15).all()
    for column, value in zip(drawn.T, exact, strict=True):
        low, high = column.min(), column.max()
        assert low <= value <= high
        assert len(np.unique(column)) <= 2  # the two neighbours, none beyond
    assert (rounded > 0).sum() >= len(vector) - 2


@pytest.mark.parametrize("payload", NARROW)
def test_stochastic_rounding_never_overflows(payload: Payload) -> None:
    rng = np.random.default_rng(8)
    for dtype in ("float32", "float64"):
        largest = min(np.nextafter(2.0**1023, 0), np.finfo(dtype).max)
        vector = np.full(1000, largest, dtype)
        vector[::2] *= -1
        quantized = quantize(vector, payload, rng=rng)
        assert np.isfinite(
            restore(Quantized(payload=payload, values=quantized.values, exponent=0))
        ).all()


def test_stochastic_rounding_is_the_generators() -> None:
    vector = np.random.default_rng(9).standard_normal(100)
    draw = [
        quantize(vector, "bfloat16", rng=np.random.default_rng(seed)).values for seed in (1, 1, 2)
    ]
    assert np.array_equal(draw[0], draw[1])
    assert not np.array_equal(draw[0], draw[2])


@pytest.mark.parametrize(
    ("payload", "dtype"), [pair for pair in ROUNDING if pair[1] != "float16"]
)  # deviates in float16 are on a grid too coarse to be normal
def test_rounding_of_normal_deviates_is_as_documented(payload: Payload, dtype: str) -> None:
    fmt = payload_format(payload)
    vector = np.random.default_rng(10).standard_normal(200_000).astype(dtype).astype(np.float64)
    for rng, factor in ((None, 1.0), (np.random.default_rng(11), math.sqrt(2))):
        restored = restore(quantize(vector.astype(dtype), payload, rng=rng), np.float64)
        error = np.linalg.norm(restored - vector) / np.linalg.norm(vector)
        assert error == pytest.approx(factor * fmt.rounding, rel=0.01)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_what_is_not_finite_is_refused(bad: float, payload: Payload, dtype: str) -> None:
    with pytest.raises(ParameterError, match=r"`vector` must be finite; got \S+ \(the model"):
        quantize(np.array([1.0, bad, 2.0], dtype), payload)


@pytest.mark.parametrize(
    "vector",
    [np.arange(3), np.ones((2, 2)), np.float64(1.0), np.ones(2, complex), np.ones(2, bool)],
)
def test_what_is_no_vector_of_floats_is_refused(vector: npt.NDArray[np.floating]) -> None:
    with pytest.raises(ParameterError, match="`vector` must be a vector of float16, float32 or"):
        quantize(vector, "float16")


@pytest.mark.parametrize("payload", ["float32", *NARROW])
def test_what_rounding_could_carry_beyond_float64_is_refused(payload: Payload) -> None:
    with pytest.raises(ParameterError, match=r"`vector` must be less than 2\*\*1023 in magnitude"):
        quantize(np.array([1.0, -(2.0**1023)]), payload)
    quantize(np.array([1.0, -(2.0**1023)]), "float64")


@pytest.mark.parametrize("name", ["float8", "half", "", None, 16])
def test_unknown_formats_are_refused(name: Payload) -> None:
    with pytest.raises(ParameterError, match="`payload` must be one of float64, float32, float16"):
        quantize(np.ones(2), name)


@pytest.mark.parametrize(
    ("payload", "values", "exponent", "argument"),
    [
        ("float16", np.ones(2, np.float32), 0, "values"),
        ("bfloat16", np.ones(2, np.float16), 0, "values"),
        ("float16", np.ones((2, 1), np.float16), 0, "values"),
        ("float16", np.ones(2, np.float16), 1009, "exponent"),
        ("float16", np.ones(2, np.float16), -1089, "exponent"),
        ("float16", np.ones(2, np.float16), 1.0, "exponent"),
        ("float16", np.ones(2, np.float16), True, "exponent"),
    ],
)
def test_no_quantized_vector_is_malformed(
    payload: Payload, values: npt.NDArray[np.floating], exponent: int, argument: str
) -> None:
    with pytest.raises(ParameterError, match=f"`{argument}` must"):
        Quantized(payload=payload, values=values, exponent=exponent)


@pytest.mark.parametrize(
    ("payload", "values", "exponent"),
    [
        ("float16", np.array([1.0, np.inf], np.float16), 0),
        ("float32", np.array([np.nan], np.float32), 0),
        ("float32", np.array([3e38], np.float32), 100),  # no quantize scales it there
        ("bfloat16", np.array([0x7F80], np.uint16), 3),
        ("float64", np.array([1e308]), 1000),
    ],
)
def test_restoring_what_is_not_finite_is_refused(
    payload: Payload, values: npt.NDArray[np.floating], exponent: int
) -> None:
    quantized = Quantized(payload=payload, values=values, exponent=exponent)
    with pytest.raises(ParameterError, match="`values` must be finite, also after"):
        restore(quantized)


def test_a_dtype_that_cannot_hold_the_vector_is_refused() -> None:
    tiny, huge = (quantize(np.array([value]), "float16") for value in (1e-300, 1e300))
    assert restore(tiny, np.float32) == 0.0  # asked for: what float32 makes of it
    with pytest.raises(ParameterError, match="`values` must be finite, also after"):
        restore(huge, np.float32)
    with pytest.raises(ParameterError, match="`dtype` must be float32 or float64; got 'float16'"):
        restore(tiny, np.float16)
    with pytest.raises(ParameterError, match="`dtype` must be float64 for the format float64"):
        restore(quantize(np.ones(1), "float64"), np.float32)
    assert restore(tiny).dtype == np.float64
