"""Results on the wire: each in the payload format that its message names.

What is no finite vector is a `WireError` before it is sent (``of``), and on arrival (``message``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

import numpy as np
from msgspec import Meta

from seqgc.errors import ParameterError, WireError
from seqgc.ports import FloatArray, Payload, Quantized, payload_format, quantize, restore
from seqgc.wire._frame import Array, Body
from seqgc.wire._message_types import ResultMessage, Subject
from seqgc.wire._values import MAX_PIECES, Count, Record

__all__ = ["ResultHeader"]

_Dtype: TypeAlias = Literal["float32", "float64"]
_Piece: TypeAlias = tuple[Count, int]  # length, exponent


class _Slot(Record, frozen=True, kw_only=True):
    """One result: its pieces, laid end to end, are its numbers."""

    slot: Count
    pieces: Annotated[list[_Piece], Meta(min_length=1, max_length=MAX_PIECES)]


class ResultHeader(Record, frozen=True, kw_only=True, tag="result"):
    """Results without their numbers; ``dtype`` is theirs before and after they travelled."""

    subject: Subject
    payload: Payload | None
    rounding_seed: Count | None
    dtype: _Dtype
    results: list[_Slot]

    @classmethod
    def of(cls, message: ResultMessage) -> tuple[ResultHeader, list[Array]]:
        """Return a message's header, and its results' values, slot after slot."""
        vectors = {slot: np.asarray(vector) for slot, vector in message.results.items()}
        dtype = _dtype(list(vectors.values()))
        slots: list[_Slot] = []
        arrays: list[Array] = []
        for slot, vector in vectors.items():
            quantized = _quantized(message, slot, vector)
            slots.append(_Slot(slot=slot, pieces=[(q.values.size, q.exponent) for q in quantized]))
            arrays.extend(each.values for each in quantized)
        header = cls(
            subject=message.subject,
            payload=message.payload,
            rounding_seed=message.rounding_seed,
            dtype=dtype,
            results=slots,
        )
        return header, arrays

    def message(self, body: Body) -> ResultMessage:
        """Return the message of this header and the values behind it; its results are read-only."""
        slots = [each.slot for each in self.results]
        if len(set(slots)) != len(slots):
            raise WireError(f"result frame repeats a slot: {slots[:100]}")
        try:
            return ResultMessage(
                subject=self.subject,
                results={each.slot: self._restored(each.pieces, body) for each in self.results},
                payload=self.payload,
                rounding_seed=self.rounding_seed,
            )
        except ParameterError as error:
            raise WireError(f"result frame: {error}") from error

    def _restored(self, pieces: Sequence[_Piece], body: Body) -> FloatArray:
        payload: Payload = self.payload or self.dtype
        storage = payload_format(payload).storage
        vectors = [
            restore(
                Quantized(payload=payload, values=body.take(storage, size), exponent=exponent),
                self.dtype,
            )
            for size, exponent in pieces
        ]
        vector = vectors[0] if len(vectors) == 1 else np.concatenate(vectors)
        vector.flags.writeable = False
        return vector


def _quantized(message: ResultMessage, slot: int, vector: FloatArray) -> list[Quantized]:
    """Return a result's pieces as they travel; in one piece if nothing has to be scaled."""
    lengths = (message.pieces or {}).get(slot, (vector.size,))
    _check_pieces(lengths, vector.size)
    payload: Payload = message.payload or vector.dtype.name  # type: ignore[assignment]
    seed, rng = message.rounding_seed, None
    if seed is not None:
        rng = np.random.default_rng([seed, *message.subject.address, slot])
    try:
        whole = len(lengths) == 1 or payload_format(payload).holds(vector.dtype)
        parts = [vector] if whole else np.split(vector, np.cumsum(lengths)[:-1])
        return [quantize(part, payload, rng=rng) for part in parts]
    except ParameterError as error:
        if np.isfinite(vector).all():
            raise WireError(f"a result cannot be sent: {error}") from error
        raise WireError(
            "a result is not finite (NaN or Inf): the model diverged or a loss is undefined; "
            "lower the learning rate or check the data"
        ) from error


def _dtype(vectors: Sequence[Array]) -> _Dtype:
    """Return the dtype of all vectors; float32 if there are none."""
    for vector in vectors:
        if vector.ndim != 1 or vector.dtype not in ("f4", "f8") or vector.dtype != vectors[0].dtype:
            raise WireError(
                "results must be vectors of one dtype, float32 or float64; "
                f"got shape {vector.shape}, {vector.dtype} after {vectors[0].dtype}"
            )
    return "float64" if vectors and vectors[0].dtype == np.float64 else "float32"


def _check_pieces(lengths: Sequence[int], size: int) -> None:
    """Insist that pieces of these lengths, laid end to end, are a result of this size, and few."""
    if not 1 <= len(lengths) <= MAX_PIECES or min(lengths) < 0 or sum(lengths) != size:
        raise WireError(
            f"a result of {size} numbers must be 1 to {MAX_PIECES} pieces of lengths >= 0 that add "
            f"up to it; got {len(lengths)}: {str(list(lengths[:8]))[:100]}"
        )
