"""Rounding of vectors of floats to fewer bits, by their bits as integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from seqgc.ports._records import FloatArray

__all__ = ["bfloat16_bits", "rounded_stochastically", "times_power"]


def times_power(vector: FloatArray, exponent: int) -> FloatArray:
    """Return ``vector * 2**exponent`` in its dtype; the vector itself if that is 1."""
    if exponent == 0:
        return vector
    info = np.finfo(vector.dtype)
    if info.minexp <= exponent < info.maxexp:
        return vector * vector.dtype.type(2.0**exponent)
    scaled: FloatArray = np.ldexp(vector, exponent)  # the power itself has no normal float
    return scaled


def bfloat16_bits(scaled: FloatArray) -> npt.NDArray[np.uint16]:
    """Round to bfloat16, to nearest even, and return the bits (shape as given)."""
    if scaled.dtype == np.float64:  # first within float64: rounding twice is not rounding once
        scaled = _rounded_bits(scaled, drop=52 - 7)
    bits = _rounded_bits(scaled.astype(np.float32, copy=False), drop=16).view(np.uint32)
    return (bits >> np.uint32(16)).astype(np.uint16)


def _rounded_bits(vector: FloatArray, *, drop: int) -> FloatArray:
    """Round off the lowest ``drop`` bits of each significand, to nearest even.

    As an integer, a float's bits grow with its magnitude by one per spacing; a carry out of the
    significand raises the exponent, as it should.
    """
    bits, unsigned = _bits(vector)
    one, shift = unsigned(1), unsigned(drop)
    half = unsigned((1 << (drop - 1)) - 1)
    kept = bits + half
    kept += (bits >> shift) & one
    kept >>= shift
    kept <<= shift
    rounded: FloatArray = kept.view(vector.dtype)
    return rounded


def rounded_stochastically(
    vector: FloatArray, rng: np.random.Generator, *, precision: int, least_normal: int
) -> FloatArray:
    """Round to one of the two neighbours in a format, unbiased; the dtype stays.

    The format has ``precision`` bits of significand, least normal number ``2**least_normal``.
    Adding uniform random bits below the last one kept, and cutting them off, carries with the
    probability that the cut-off part is of a spacing. Below the least normal number the spacing no
    longer shrinks with the magnitude, so there it is done in units of it.
    """
    bits, unsigned = _bits(vector)
    drop = np.finfo(vector.dtype).nmant - (precision - 1)
    noise = rng.integers(0, 1 << drop, size=vector.shape, dtype=unsigned)
    noise += bits
    noise >>= unsigned(drop)
    noise <<= unsigned(drop)
    rounded = noise.view(vector.dtype)
    small = np.abs(vector) < 2.0**least_normal
    small &= vector != 0
    if small.any():
        spacing = 2.0 ** (least_normal - precision + 1)
        parts = vector[small].astype(np.float64) / spacing
        units = np.floor(np.abs(parts) + rng.random(parts.shape))
        rounded[small] = np.copysign(units * spacing, parts)
    return rounded


def _bits(vector: FloatArray) -> tuple[npt.NDArray[Any], type[np.unsignedinteger[Any]]]:
    unsigned: type[np.unsignedinteger[Any]] = np.uint32 if vector.dtype.itemsize == 4 else np.uint64
    return np.ascontiguousarray(vector).view(unsigned), unsigned
