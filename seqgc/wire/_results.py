"""Results on the wire: each in the payload format that its message names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from seqgc._types import FloatArray
from seqgc.errors import ParameterError, WireError
from seqgc.payloads import EXPONENTS, Payload, Quantized, quantize, restore
from seqgc.wire._fields import Fields
from seqgc.wire._frame import Array, Frame

__all__ = ["quantized_results", "result_arrays", "result_fields", "results_of"]

_RESULT_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


def quantized_results(
    results: Mapping[int, FloatArray], *, payload: Payload | None, seed: Sequence[int] | None
) -> dict[int, Quantized]:
    """Return the results by slot as they travel; ``seed``, with the slot, is the generators'.

    Raises
    ------
    WireError
        If they are not finite vectors of one dtype, float32 or float64, or too large to round.
    """
    vectors = {slot: np.asarray(result) for slot, result in results.items()}
    _check(tuple(vectors.values()))
    try:
        return {
            slot: quantize(
                vector,
                payload or _own(vector),
                rng=None if seed is None else np.random.default_rng([*seed, slot]),
            )
            for slot, vector in vectors.items()
        }
    except ParameterError as error:
        raise WireError(f"a result cannot be sent: {error}") from error


def result_fields(quantized: Mapping[int, Quantized]) -> dict[str, Any]:
    """Return the JSON part of results: which slots' they are, and their exponents."""
    return {
        "slots": [int(slot) for slot in quantized],
        "exponents": [each.exponent for each in quantized.values()],
    }


def result_arrays(quantized: Mapping[int, Quantized]) -> tuple[Array, ...]:
    """Return the results' values, slot after slot."""
    return tuple(each.values for each in quantized.values())


def results_of(frame: Frame, fields: Fields, *, payload: Payload | None) -> dict[int, FloatArray]:
    """Return the results in a frame by slot, read-only and of one dtype.

    Raises
    ------
    WireError
        If slots repeat, or do not pair up with arrays and exponents, or an array is not a vector
        of the format or does not stand for finite numbers.
    """
    slots = fields.integers("slots")
    exponents = fields.integers("exponents", within=EXPONENTS)
    if not len(slots) == len(exponents) == len(frame.arrays) or len(set(slots)) != len(slots):
        raise WireError(
            f"result frame has {len(frame.arrays)} arrays, {len(exponents)} exponents for slots "
            f"{slots}"
        )
    try:
        quantized = [
            # One format for all, also if it is the first one's own.
            Quantized(payload=payload or _own(frame.arrays[0]), values=values, exponent=exponent)
            for values, exponent in zip(frame.arrays, exponents, strict=True)
        ]
        vectors = [restore(each) for each in quantized]
        if len({vector.dtype for vector in vectors}) > 1:  # one is beyond float32
            vectors = [restore(each, np.float64) for each in quantized]
    except ParameterError as error:
        raise WireError(f"result frame: {error}") from error
    for vector in vectors:
        vector.flags.writeable = False
    return dict(zip(slots, vectors, strict=True))


def _own(vector: Array) -> Payload:
    """Return the format of a vector that travels in its own dtype.

    Raises
    ------
    WireError
        If that is no dtype of results.
    """
    if vector.dtype not in _RESULT_DTYPES:
        raise WireError(f"results must be of dtype float32 or float64; got {vector.dtype}")
    return cast("Payload", vector.dtype.name)


def _check(vectors: tuple[Array, ...]) -> None:
    for vector in vectors:
        if (
            vector.ndim != 1
            or vector.dtype not in _RESULT_DTYPES
            or vector.dtype != vectors[0].dtype
        ):
            raise WireError(
                "results must be vectors of one dtype, float32 or float64; "
                f"got shape {vector.shape}, {vector.dtype} after {vectors[0].dtype}"
            )
        if not np.isfinite(vector).all():
            raise WireError(
                "a result is not finite (NaN or Inf): the model diverged or a loss is undefined; "
                "lower the learning rate or check the data"
            )
