"""The JSON headers of messages with arrays.

Each header class converts in two directions. ``of`` converts a message to its header and the arrays
of its body. ``message`` converts a header and a body to the message. Both methods raise `WireError`
if the message is not valid.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from msgspec.structs import asdict

from seqgc import ports
from seqgc.errors import ParameterError, WireError, one_line
from seqgc.ports import (
    Flaw,
    FlawKind,
    FloatArray,
    Payload,
    Quantized,
    Task,
    TaskPhases,
    WeightedPoints,
    WeightRef,
    WorkItem,
)
from seqgc.wire._frame import Array, Body
from seqgc.wire._message_types import (
    MAX_PIECES,
    Count,
    Digest,
    InvokeMessage,
    Line,
    Name,
    Phases,
    Record,
    ResultMessage,
    StoreRef,
    Subject,
    TaskMessage,
    WorkloadRef,
)

# ---- tasks --------------------------------------------------------------------------------------


class _Weights(Record, frozen=True, kw_only=True):
    """The JSON of a `seqgc.ports.WeightRef`."""

    model: Name
    version: Count
    digest: Digest
    dtype: Literal["float16", "float32", "float64"]
    size: Count

    @classmethod
    def of(cls, ref: WeightRef) -> _Weights:
        model, version, digest, size = ref.model, ref.version, ref.digest, ref.size
        dtype: Any = ref.dtype
        return cls(model=model, version=version, digest=digest, dtype=dtype, size=size)

    def ref(self) -> WeightRef:
        return WeightRef(**asdict(self))

    def params(self, body: Body) -> FloatArray:
        """Take these weights from the body, check their digest, and return them."""
        params = body.take(np.dtype(self.dtype), self.size)
        little = params.astype(params.dtype.newbyteorder("<"), copy=False)
        if (digest := hashlib.sha256(little.data).hexdigest()) != self.digest:
            got, expected = digest[:12], self.digest[:12]
            raise WireError(
                f"weights of {self.model!r} must have digest {expected}…, got {got}…; drop them"
            )
        return params


class _Part(Record, frozen=True, kw_only=True):
    """The JSON of a `seqgc.ports.WeightedPoints`.

    The ``count`` points and coefficients are in the body.
    """

    model: Name
    count: Count
    weights: _Weights
    span: tuple[Count, Count] | None
    pieces: Annotated[list[Count], Meta(max_length=MAX_PIECES)]

    @classmethod
    def of(cls, part: WeightedPoints) -> _Part:
        points, coefficients = np.shape(part.points), np.shape(part.coefficients)
        if len(points) != 1 or points != coefficients:
            raise WireError(
                f"task for model {part.model!r}: points and coefficients must be vectors of the "
                f"same length, got shapes {points} and {coefficients}"
            )
        return cls(
            model=part.model,
            count=points[0],
            weights=_Weights.of(part.weights),
            span=part.span,
            pieces=list(part.pieces),
        )


class _Item(Record, frozen=True, kw_only=True):
    """The JSON of a `seqgc.ports.WorkItem`."""

    slot: Count
    parts: list[_Part]


_Delay: TypeAlias = Annotated[float, Meta(ge=0)]  # always finite, because JSON has no infinity


class TaskHeader(Record, frozen=True, kw_only=True, tag="task"):
    """The header of a `TaskMessage`.

    The body has all points (int64), then all coefficients (float64).
    """

    subject: Subject
    delay_s: _Delay
    part_delays_s: list[_Delay] = msgspec.field(default_factory=list)
    payload: Payload | None
    rounding_seed: Count | None
    items: list[_Item]

    @classmethod
    def of(cls, message: TaskMessage) -> tuple[TaskHeader, list[Array]]:
        if not 0 <= message.delay_s < math.inf:
            raise WireError(f"a task's delay must be finite seconds >= 0; got {message.delay_s}")
        items = message.task.items
        header = cls(
            subject=message.subject,
            delay_s=message.delay_s,
            part_delays_s=list(message.part_delays_s),
            payload=message.payload,
            rounding_seed=message.rounding_seed,
            items=[_Item(slot=i.slot, parts=[_Part.of(part) for part in i.parts]) for i in items],
        )
        parts = [part for item in items for part in item.parts]
        points = np.concatenate([np.empty(0, np.int64), *(part.points for part in parts)])
        coefficients = np.concatenate([np.empty(0, np.float64), *(p.coefficients for p in parts)])
        _check_points(points, coefficients)
        _check_delays(header)
        return header, [points.astype(np.int64, copy=False), coefficients]

    def message(self, body: Body) -> TaskMessage:
        """Return the message. The arrays of its parts are views of the body."""
        count = sum(part.count for item in self.items for part in item.parts)
        points = body.take(np.dtype(np.int64), count)
        coefficients = body.take(np.dtype(np.float64), count)
        _check_points(points, coefficients)
        _check_slots([item.slot for item in self.items], "task")
        _check_delays(self)
        round, worker, attempt = self.subject.address
        items = tuple(self._work_items(points, coefficients))
        message = TaskMessage(
            task=Task(round=round, worker=worker, attempt=attempt, items=items),
            delay_s=self.delay_s,
            part_delays_s=tuple(self.part_delays_s),
            payload=self.payload,
            rounding_seed=self.rounding_seed,
            code=self.subject.code,
        )
        if (got := self.subject.weights_digest) != (expected := message.subject.weights_digest):
            raise WireError(
                f"task frame names weights {got[:12]!r}…, its task uses {expected[:12]!r}…"
            )
        return message

    def _work_items(self, points: Array, coefficients: Array) -> Iterator[WorkItem]:
        end = 0
        for item in self.items:
            parts = []
            for part in item.parts:
                begin, end = end, end + part.count
                parts.append(
                    WeightedPoints(
                        model=part.model,
                        weights=part.weights.ref(),
                        span=part.span,
                        points=points[begin:end],
                        coefficients=coefficients[begin:end],
                        pieces=tuple(part.pieces),
                    )
                )
            yield WorkItem(slot=item.slot, parts=tuple(parts))


class InvokeHeader(Record, frozen=True, kw_only=True, tag="invoke"):
    """The header of an `InvokeMessage`. The body has the task's arrays, then the weights."""

    request: TaskHeader
    workload: WorkloadRef
    store: StoreRef
    inline_limit_bytes: Count
    weights: list[_Weights]

    @classmethod
    def of(cls, message: InvokeMessage) -> tuple[InvokeHeader, list[Array]]:
        _ = message.workload.canonical  # raises an error if a setting cannot be written as JSON
        request, arrays = TaskHeader.of(message.request)
        for ref, params in message.weights:
            if np.shape(params) != (ref.size,) or params.dtype.name != ref.dtype:
                raise WireError(
                    f"weights of {ref.model!r} must be {ref.dtype} of shape ({ref.size},); got "
                    f"{params.dtype} of {np.shape(params)}"
                )
        header = cls(
            request=request,
            workload=message.workload,
            store=message.store,
            inline_limit_bytes=message.inline_limit_bytes,
            weights=[_Weights.of(ref) for ref, _ in message.weights],
        )
        return header, [*arrays, *(params for _, params in message.weights)]

    def message(self, body: Body) -> InvokeMessage:
        request = self.request.message(body)
        _ = self.workload.canonical
        return InvokeMessage(
            request=request,
            workload=self.workload,
            store=self.store,
            inline_limit_bytes=self.inline_limit_bytes,
            weights=tuple((each.ref(), each.params(body)) for each in self.weights),
        )


def _check_points(points: Array, coefficients: Array) -> None:
    if points.dtype.kind != "i" or (points < 0).any():
        raise WireError("a task's points must be integers >= 0, indices into the dataset")
    if not np.isfinite(coefficients).all():
        raise WireError("a task's coefficients must be finite")


def _check_delays(header: TaskHeader) -> None:
    """Raise `WireError` unless the delays of a task's items fit the items and the task's delay."""
    delays_s = header.part_delays_s
    if not delays_s:
        return
    rises = all(0 <= a <= b < math.inf for a, b in pairwise([0.0, *delays_s]))
    if len(delays_s) != len(header.items) or not rises or delays_s[-1] != header.delay_s:
        rule = f"one for each of the {len(header.items)} items, rising to {header.delay_s}"
        raise WireError(f"the delays of a task's items must be {rule}; got {delays_s[:8]}")


def _check_slots(slots: Sequence[int], kind: str) -> None:
    if len(set(slots)) != len(slots):
        raise WireError(f"{kind} frame repeats a slot: {slots[:100]}")


# ---- results ------------------------------------------------------------------------------------

_Piece: TypeAlias = tuple[Count, int]  # length, exponent


class _Slot(Record, frozen=True, kw_only=True):
    """The JSON of one result, which is the concatenation of its pieces."""

    slot: Count
    pieces: Annotated[list[_Piece], Meta(min_length=1, max_length=MAX_PIECES)]


class ResultHeader(Record, frozen=True, kw_only=True, tag="result"):
    """The header of a `ResultMessage`. The body has the values of all results.

    ``dtype`` is the type of the results in memory, which may differ from their format in the body.
    """

    subject: Subject
    payload: Payload | None
    rounding_seed: Count | None
    dtype: Literal["float32", "float64"]
    results: list[_Slot]
    flaws: dict[Name, tuple[FlawKind, Line]] = msgspec.field(default_factory=dict)
    is_last: bool = True
    phases: Phases | None = None

    @classmethod
    def of(cls, message: ResultMessage) -> tuple[ResultHeader, list[Array]]:
        vectors = {slot: np.asarray(vector) for slot, vector in message.results.items()}
        dtypes = [vector.dtype for vector in vectors.values()]
        for vector in vectors.values():
            if vector.ndim != 1 or vector.dtype not in ("f4", "f8") or vector.dtype != dtypes[0]:
                raise WireError(
                    "results must be vectors of one dtype, float32 or float64; "
                    f"got shape {vector.shape}, {vector.dtype} after {dtypes[0]}"
                )
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
            dtype="float64" if np.float64 in dtypes else "float32",
            results=slots,
            flaws={m: (flaw.kind, one_line(flaw.why)) for m, flaw in message.flaws.items()},
            is_last=message.is_last,
            phases=message.phases,
        )
        return header, arrays

    def message(self, body: Body) -> ResultMessage:
        """Return the message. The arrays of its results are read-only."""
        _check_slots([each.slot for each in self.results], "result")
        if not self.is_last and (len(self.results) != 1 or self.flaws):
            raise WireError("a result frame that is not the last must have one result, and no flaw")
        try:
            return ResultMessage(
                subject=self.subject,
                results={each.slot: self._restored(each.pieces, body) for each in self.results},
                payload=self.payload,
                rounding_seed=self.rounding_seed,
                flaws={m: Flaw(kind=k, why=one_line(why)) for m, (k, why) in self.flaws.items()},
                is_last=self.is_last,
                phases=None if self.phases is None else TaskPhases(*self.phases),
            )
        except ParameterError as error:
            raise WireError(f"result frame: {error}") from error

    def _restored(self, pieces: Sequence[_Piece], body: Body) -> FloatArray:
        payload: Payload = self.payload or self.dtype
        storage = ports.payload_format(payload).storage
        vectors = []
        for size, exponent in pieces:
            values = body.take(storage, size)
            quantized = Quantized(payload=payload, values=values, exponent=exponent)
            vectors.append(ports.restore(quantized, self.dtype))
        vector = vectors[0] if len(vectors) == 1 else np.concatenate(vectors)
        vector.flags.writeable = False
        return vector


WithArrays: TypeAlias = TaskHeader | InvokeHeader | ResultHeader
HEADERS: Final[Mapping[type, Any]] = {
    TaskMessage: TaskHeader,
    InvokeMessage: InvokeHeader,
    ResultMessage: ResultHeader,
}


def _quantized(message: ResultMessage, slot: int, vector: FloatArray) -> list[Quantized]:
    """Convert a result to the message's number format, each piece at its own scale.

    If the format needs no scaling, the result is one piece.
    """
    lengths = (message.pieces or {}).get(slot, (vector.size,))
    if not 1 <= len(lengths) <= MAX_PIECES or min(lengths) < 0 or sum(lengths) != vector.size:
        raise WireError(
            f"a result of {vector.size} numbers must be 1 to {MAX_PIECES} pieces of lengths >= 0 "
            f"with this sum; got {len(lengths)} pieces: {str(list(lengths[:8]))[:100]}"
        )
    payload: Payload = message.payload or vector.dtype.name  # type: ignore[assignment]
    seed = message.rounding_seed

    # Each piece has its own generator, so that a model's bits do not depend on the other models.
    def rng(piece: int) -> np.random.Generator | None:
        if seed is None:
            return None
        return np.random.default_rng([seed, *message.subject.address, slot, piece])

    try:
        is_one_piece = len(lengths) == 1 or ports.payload_format(payload).holds(vector.dtype)
        parts = [vector] if is_one_piece else np.split(vector, np.cumsum(lengths)[:-1])
        return [ports.quantize(part, payload, rng=rng(i)) for i, part in enumerate(parts)]
    except ParameterError as error:
        raise WireError(f"a result cannot be sent: {error}") from error
