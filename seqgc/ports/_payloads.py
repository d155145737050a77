"""Payload formats: the number formats in which results are sent, and their packing.

A quantized vector is ``values * 2**exponent`` with one exponent for the whole vector. The exponent
scales the largest magnitude to the top of float16's range, so that the few exponents of a 16-bit
format cover the magnitudes below. Scaling by a power of two is exact; only rounding to the format's
precision loses information.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from seqgc.errors import ParameterError, did_you_mean
from seqgc.ports._records import Flaw, FloatArray, WorkItem

Payload: TypeAlias = Literal["float64", "float32", "float16", "bfloat16"]
PAYLOADS: Final[tuple[Payload, ...]] = get_args(Payload)

# The largest magnitude is scaled into [2**14, 2**15]: the highest range of float16 that leaves room
# for rounding up. Other formats could use any range; they use the same one.
_TOP = 15

EXPONENTS: Final = range(-1073 - _TOP, 1023 - _TOP + 1)
"""The exponents that `quantize` may choose: those of float64, with room to round up at the top."""

# A restored vector fits into float32 if its largest magnitude does not overflow, and if numbers
# that underflow (below 2**-126) are less than 2**-48 of the largest magnitude.
_FLOAT32_EXPONENTS = range(-126 + 25 - _TOP, 127 - _TOP + 1)

_FLOAT16_PLACES = np.int32(~0x7000_1FFF)  # sign, the lower 5 bits of the exponent, 10 of 23 bits
_LARGEST_HALF = 65504.0

# The root mean square error of rounding normal deviates to nearest, relative to the root mean
# square of the deviates, in units of the unit round-off u. Between 2**e and 2**(e+1) the error is
# uniform within half a spacing, so its variance is (u 2**e)**2 / 3. The average over the normal
# distribution is 0.4237 to 0.4256 u, which depends on where sigma lies between two powers of two.
_NORMAL_ROUNDING = 0.426


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadFormat:
    """The precision, range and size of a payload format."""

    name: Payload
    precision: int  # bits of the significand, including the implicit bit
    storage: np.dtype[Any]  # of `Quantized.values`; uint16 is the upper half of a float32's bits
    least_normal: int  # magnitudes below 2**least_normal are rounded to a fixed spacing
    tolerance: float  # default limit of a decoded gradient's predicted relative error

    @property
    def bits(self) -> int:
        """The number of bits of one coordinate in a message."""
        return 8 * self.storage.itemsize

    @property
    def unit_roundoff(self) -> float:
        """The largest relative error of rounding to nearest; twice this in stochastic rounding."""
        return 2.0**-self.precision

    @property
    def rounding(self) -> float:
        """The relative error, in the 2-norm, of a vector of normal deviates rounded to nearest.

        With stochastic rounding the error is sqrt(2) times as large: its variance is 1/6 of the
        squared spacing instead of 1/12.
        """
        return _NORMAL_ROUNDING * self.unit_roundoff

    def holds(self, dtype: npt.DTypeLike) -> bool:
        """Return True if the format can represent every float of this dtype without rounding."""
        return self.storage.kind == "f" and np.can_cast(dtype, self.storage, "safe")


_TABLE: Final[tuple[tuple[Payload, int, str, int, float], ...]] = (
    ("float64", 53, "float64", -1022, 1e-4),
    ("float32", 24, "float32", -126, 1e-4),
    ("float16", 11, "float16", -14, 1e-2),
    ("bfloat16", 8, "uint16", -126, 1e-2),
)
_FORMATS: Mapping[str, PayloadFormat] = {
    name: PayloadFormat(
        name=name, precision=bits, storage=np.dtype(dtype), least_normal=least, tolerance=tolerance
    )
    for name, bits, dtype, least, tolerance in _TABLE
}


def payload_format(payload: Payload) -> PayloadFormat:
    """Return the format with this name, or raise `ParameterError`.

    Examples
    --------
    >>> payload_format("float8")
    Traceback (most recent call last):
        ...
    seqgc.errors.ParameterError: `payload` must be one of float64, float32, float16, bfloat16; got \
'float8' (did you mean 'float64'?)
    """
    if not isinstance(payload, str) or payload not in _FORMATS:
        rule = f"must be one of {', '.join(_FORMATS)}"
        raise ParameterError("payload", rule, payload, did_you_mean(str(payload), _FORMATS))
    return _FORMATS[payload]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Quantized:
    """A vector in a payload format: ``values * 2**exponent``.

    ``values`` (P,) are read-only, with the dtype ``storage`` of the format.

    Raises
    ------
    ParameterError
        If the values have another dtype or shape, or ``exponent`` is not in `EXPONENTS`.
    """

    payload: Payload
    values: npt.NDArray[Any]
    exponent: int

    def __post_init__(self) -> None:
        storage = payload_format(self.payload).storage
        if self.values.ndim != 1 or self.values.dtype != storage:
            rule = f"must be a vector of {storage} ({self.payload})"
            got = f"{self.values.dtype} of shape {self.values.shape}"
            raise ParameterError("values", rule, got)
        if type(self.exponent) is not int or self.exponent not in EXPONENTS:
            rule = f"must be an integer from {EXPONENTS[0]} to {EXPONENTS[-1]}"
            raise ParameterError("exponent", rule, self.exponent)
        values = self.values.view()
        values.flags.writeable = False
        object.__setattr__(self, "values", values)


def quantize(
    vector: FloatArray, payload: Payload, *, rng: np.random.Generator | None = None
) -> Quantized:
    """Round a vector to a payload format.

    If the format can represent all numbers of the vector's dtype, the vector is not changed: the
    values are a view of it, and the exponent is 0. Otherwise the vector is scaled by a power of two
    so that its largest magnitude is between ``2**14`` and ``2**15``, and is then rounded once. By
    default each number is rounded to nearest, ties to even. With ``rng``, a number is rounded up or
    down at random so that its expected value does not change (stochastic rounding, Gupta et al.
    2015, section 3). A number that the format can represent is not changed by rounding.

    Numbers smaller than ``2**(least_normal - 14)`` times the largest magnitude (for float16,
    ``2**-28`` times) have a constant absolute error instead of the format's relative error.

    Raises
    ------
    ParameterError
        If ``vector`` (P,) has numbers that are not finite floats of at most 64 bits, the format is
        unknown, or rounding could overflow float64.

    Examples
    --------
    >>> small = quantize(np.array([3e-300, 0.0, -1e-300]), "float16")
    >>> small.values.dtype, small.exponent
    (dtype('float16'), -1009)
    >>> restore(small)
    array([ 3.00102582e-300,  0.00000000e+000, -1.00034194e-300])
    """
    fmt = payload_format(payload)
    vector = np.asarray(vector)
    if vector.ndim != 1 or vector.dtype.kind != "f" or vector.dtype.itemsize > 8:
        rule = "must be a vector of float16, float32 or float64"
        raise ParameterError("vector", rule, f"{vector.dtype} of shape {vector.shape}")
    if not math.isfinite(peak := _peak(vector)):
        remedy = "the model diverged or a loss is undefined"
        raise ParameterError("vector", "must be finite", peak, remedy)
    if fmt.holds(vector.dtype):
        values = vector.astype(fmt.storage, copy=False)
        return Quantized(payload=payload, values=values, exponent=0)
    if vector.dtype == np.float16:
        vector = vector.astype(np.float32)
    exponent = math.frexp(peak)[1] - _TOP if peak else 0
    if exponent not in EXPONENTS:
        raise ParameterError("vector", "must be less than 2**1023 in magnitude to be rounded", peak)
    scaled = _times_power(vector, -exponent)
    if rng is not None:
        scaled = _rounded_stochastically(
            scaled, rng, precision=fmt.precision, least_normal=fmt.least_normal
        )
    values = _bfloat16_bits(scaled) if payload == "bfloat16" else scaled.astype(fmt.storage)
    return Quantized(payload=payload, values=values, exponent=exponent)


def restore(quantized: Quantized, dtype: npt.DTypeLike | None = None) -> FloatArray:
    """Return the vector (P,) that a quantized vector represents.

    The result may be a read-only view of the quantized values. ``dtype`` is float32 or float64. By
    default it is float32, unless the format is float64 or the magnitudes do not fit into float32. A
    vector that was float32 before it was quantized fits, unless rounding up overflows. In float64
    the result is exact. In float32, numbers below ``2**-126`` are rounded to multiples of
    ``2**-149``, like all results of float32 arithmetic.

    Raises
    ------
    ParameterError
        If a value is not finite, if ``dtype`` is another type, or if it is float32 and the vector
        overflows or has the format float64.
    """
    is_double = quantized.payload == "float64"
    if dtype is None:
        fits = quantized.exponent in _FLOAT32_EXPONENTS and not is_double
        dtype = np.float32 if fits else np.float64
    target: np.dtype[Any] = np.dtype(dtype)
    if target not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ParameterError("dtype", "must be float32 or float64", str(target))
    if target == np.float32 and is_double:
        raise ParameterError("dtype", "must be float64 for the format float64", str(target))
    values, exponent = _widened(quantized)
    with np.errstate(over="ignore", invalid="ignore"):  # checked below
        vector: FloatArray = _times_power(values.astype(target, copy=False), exponent)
    is_half = quantized.payload == "float16"  # `_widened` makes infinity a number above all halves
    largest = math.ldexp(_LARGEST_HALF, quantized.exponent) if is_half else sys.float_info.max
    if not _peak(vector) <= largest:
        rule = f"must be finite, also after multiplication by 2**exponent in {target}"
        raise ParameterError("values", rule, f"exponent {quantized.exponent}")
    return vector


def _widened(quantized: Quantized) -> tuple[FloatArray, int]:
    """Return the values (P,) as float32 or float64, and their exponent."""
    bits, exponent = quantized.values, quantized.exponent
    if quantized.payload == "bfloat16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32), exponent
    if quantized.payload != "float16":
        return bits, exponent
    # NumPy's conversion takes five times as long. If the bits of a half are moved to the places of
    # sign, exponent and significand in a float32, the result is the same number except for the
    # biases of the exponents, 15 and 127. Infinity and NaN become numbers larger than any half.
    wide = bits.view(np.int16).astype(np.int32)
    wide <<= 13
    wide &= _FLOAT16_PLACES
    return wide.view(np.float32), exponent + 127 - 15


def _peak(vector: FloatArray) -> float:
    """Return the largest magnitude in a vector (P,).

    The result is 0 for an empty vector, and NaN for a vector with a NaN.
    """
    return max(float(vector.max()), -float(vector.min())) if vector.size else 0.0


# ---- rounding of floats to fewer bits, with integer arithmetic -----------------------------------


def _times_power(vector: FloatArray, exponent: int) -> FloatArray:
    """Return ``vector * 2**exponent`` in the vector's dtype; for exponent 0 the vector itself."""
    if exponent == 0:
        return vector
    info = np.finfo(vector.dtype)
    if info.minexp <= exponent < info.maxexp:
        return vector * vector.dtype.type(2.0**exponent)
    scaled: FloatArray = np.ldexp(vector, exponent)  # 2**exponent is not a normal float
    return scaled


def _bfloat16_bits(scaled: FloatArray) -> npt.NDArray[np.uint16]:
    """Round to bfloat16, to nearest even, and return the bits in the same shape."""
    # float64 -> float32 -> bfloat16 would round twice, so round in float64 first.
    if scaled.dtype == np.float64:
        scaled = _rounded_bits(scaled, drop=52 - 7)
    bits = _rounded_bits(scaled.astype(np.float32, copy=False), drop=16).view(np.uint32)
    return (bits >> np.uint32(16)).astype(np.uint16)


def _rounded_bits(vector: FloatArray, *, drop: int) -> FloatArray:
    """Round the lowest ``drop`` bits of each significand away, to nearest even.

    The bits of a float are treated as an integer, which increases by one from each float to the
    next larger magnitude. A carry out of the significand correctly increases the exponent.
    """
    bits, unsigned = _bits(vector)
    one, shift = unsigned(1), unsigned(drop)
    half = unsigned((1 << (drop - 1)) - 1)
    upper = bits + half
    upper += (bits >> shift) & one
    upper >>= shift
    upper <<= shift
    rounded: FloatArray = upper.view(vector.dtype)
    return rounded


def _rounded_stochastically(
    vector: FloatArray, rng: np.random.Generator, *, precision: int, least_normal: int
) -> FloatArray:
    """Round each number up or down at random to a number of a format, without bias.

    The format has ``precision`` bits of significand, and its smallest normal number is
    ``2**least_normal``. The function adds uniform random bits below the last bit of the result, and
    then clears these bits. The probability of a carry is the cleared part as a fraction of the
    spacing. Below the smallest normal number the spacing is constant, so numbers are rounded in
    units of this spacing. The dtype does not change.
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


def part_lengths(item: WorkItem, length: int) -> list[tuple[int, ...]]:
    """Return, for each part of a result of ``length`` numbers, the lengths of its pieces.

    If the lengths of the parts do not add up to ``length``, the result is one part of one piece.
    """
    parts = [part.pieces or (part.weights.size,) for part in item.parts]
    return parts if parts and sum(map(sum, parts)) == length else [(length,)]


def without_diverged(
    item: WorkItem, result: FloatArray, *, max_norm: float = math.inf
) -> tuple[FloatArray, dict[str, Flaw]]:
    """Return a copy of a result (p,) in which diverged parts are zeros, and their flaws by model.

    A part has diverged if it is not finite, or if the 2-norm of its gradient and loss is above
    ``max_norm``. In this case its model has diverged, or its loss is undefined. The parts of other
    models remain valid. If no part has diverged, the result itself may be returned.
    """
    if result.ndim != 1 or result.dtype.kind != "f" or norm(result) <= max_norm or not item.parts:
        return result, {}
    parts, models = part_lengths(item, result.size), [{part.model} for part in item.parts]
    if len(parts) != len(models):
        models = [set().union(*models)]
    pieces = np.split(result.copy(), np.cumsum([sum(part) for part in parts])[:-1])
    flaws: dict[str, Flaw] = {}
    for piece, lengths, own in zip(pieces, parts, models, strict=True):
        measured = sum(lengths[:2])
        length = norm(piece[:measured]) if np.isfinite(piece[measured:]).all() else math.nan
        if not length <= max_norm:
            why = "its results are not finite; lower the learning rate, or check the data"
            if not math.isnan(length):
                why = f"a result's norm is {length:.3g}, above max_norm, {max_norm:g}"
            piece[:] = 0
            flaws |= dict.fromkeys(sorted(own), Flaw(kind="diverged", why=why))
    return np.concatenate(pieces), flaws


def norm(vector: FloatArray) -> float:
    """Return the 2-norm of a vector, or NaN if one of its numbers is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        square = float(np.dot(vector, vector))
        if math.isfinite(square):
            return math.sqrt(square)
        peak = float(np.abs(vector).max())
        scaled = np.divide(vector, peak, dtype=np.float64)
        return peak * float(np.linalg.norm(scaled)) if math.isfinite(peak) else math.nan
