"""Results on the wire: each in the payload format that its message names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from seqgc.errors import ParameterError, WireError
from seqgc.ports import FloatArray, Payload, Quantized, quantize, restore
from seqgc.wire._fields import Fields
from seqgc.wire._frame import Array, Frame

__all__ = [
    "MAX_PIECES",
    "SentResult",
    "quantized_results",
    "result_arrays",
    "result_fields",
    "results_of",
]

MAX_PIECES = 4096  # of one result; each costs the receiver a call, however short it is

_RESULT_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


class SentResult(NamedTuple):
    """One result as it travels: its values, and by piece its length and exponent."""

    values: Array
    pieces: tuple[int, ...]
    exponents: tuple[int, ...]


def quantized_results(
    results: Mapping[int, FloatArray],
    *,
    payload: Payload | None,
    seed: Sequence[int] | None,
    pieces: Mapping[int, Sequence[int]] | None = None,
) -> dict[int, SentResult]:
    """Return the results by slot as they travel; ``seed``, with the slot, is the generators'.

    ``pieces`` are lengths, by slot, that add up to the result's: each piece is scaled on its own,
    so that a large loss does not take a small gradient's bits, nor one model another's.

    Raises
    ------
    WireError
        If they are not finite vectors of one dtype, float32 or float64, too large to round, or
        not of their pieces' length.
    """
    vectors = {slot: np.asarray(result) for slot, result in results.items()}
    _check(tuple(vectors.values()))
    try:
        return {
            slot: _sent(
                vector,
                payload or _own(vector),
                (pieces or {}).get(slot, (vector.size,)),
                None if seed is None else np.random.default_rng([*seed, slot]),
            )
            for slot, vector in vectors.items()
        }
    except ParameterError as error:
        raise WireError(f"a result cannot be sent: {error}") from error


def _sent(
    vector: FloatArray, payload: Payload, pieces: Sequence[int], rng: np.random.Generator | None
) -> SentResult:
    _check_pieces(pieces, vector.size)
    parts = np.split(vector, np.cumsum(pieces)[:-1])
    quantized = [quantize(part, payload, rng=rng) for part in parts]
    values = (
        quantized[0].values if len(parts) == 1 else np.concatenate([q.values for q in quantized])
    )
    return SentResult(values, tuple(p.size for p in parts), tuple(q.exponent for q in quantized))


def result_fields(sent: Mapping[int, SentResult], *, single: bool) -> dict[str, Any]:
    """Return the JSON part of results: slots, pieces, exponents, whether they were float32."""
    return {
        "slots": [int(slot) for slot in sent],
        "pieces": [list(each.pieces) for each in sent.values()],
        "exponents": [list(each.exponents) for each in sent.values()],
        "single": single,
    }


def result_arrays(sent: Mapping[int, SentResult]) -> tuple[Array, ...]:
    """Return the results' values, slot after slot."""
    return tuple(each.values for each in sent.values())


def results_of(frame: Frame, fields: Fields, *, payload: Payload | None) -> dict[int, FloatArray]:
    """Return the results in a frame by slot, read-only, of the dtype that they had.

    Raises
    ------
    WireError
        If slots repeat, or do not pair up with arrays, pieces and exponents, or an array is not a
        vector of the format or does not stand for finite numbers.
    """
    slots = fields.integers("slots")
    pieces, exponents = fields.integer_lists("pieces"), fields.integer_lists("exponents")
    counts = {len(slots), len(pieces), len(exponents), len(frame.arrays)}
    if len(counts) > 1 or len(set(slots)) != len(slots):
        raise WireError(
            f"result frame has {len(frame.arrays)} arrays, {len(pieces)} lists of pieces, "
            f"{len(exponents)} of exponents for slots {slots}"
        )
    dtype = np.float32 if fields.boolean("single") else np.float64
    try:
        vectors = [
            # One format for all, also if it is the first one's own.
            _restored(values, payload or _own(frame.arrays[0]), lengths, powers, dtype)
            for values, lengths, powers in zip(frame.arrays, pieces, exponents, strict=True)
        ]
    except ParameterError as error:
        raise WireError(f"result frame: {error}") from error
    for vector in vectors:
        vector.flags.writeable = False
    return dict(zip(slots, vectors, strict=True))


def _restored(
    values: Array,
    payload: Payload,
    pieces: Sequence[int],
    exponents: Sequence[int],
    dtype: npt.DTypeLike,
) -> FloatArray:
    if values.ndim != 1 or len(pieces) != len(exponents):
        raise WireError(
            f"result frame has values of shape {values.shape}, {len(exponents)} exponents for "
            f"pieces of {_few(pieces)}"
        )
    _check_pieces(pieces, values.size)
    parts = np.split(values, np.cumsum(pieces)[:-1])
    vectors = [
        restore(Quantized(payload=payload, values=part, exponent=exponent), dtype)
        for part, exponent in zip(parts, exponents, strict=True)
    ]
    return vectors[0] if len(vectors) == 1 else np.concatenate(vectors)


def _check_pieces(pieces: Sequence[int], size: int) -> None:
    """Insist that pieces of these lengths, laid end to end, are a result of this size, and few."""
    if not 1 <= len(pieces) <= MAX_PIECES or min(pieces) < 0 or sum(pieces) != size:
        raise WireError(
            f"a result of {size} numbers must be 1 to {MAX_PIECES} pieces of lengths >= 0 that add "
            f"up to it; got {len(pieces)}: {_few(pieces)}"
        )


def _few(pieces: Sequence[int]) -> str:
    return str(list(pieces[:8]))[:100]


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
