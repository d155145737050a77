"""Tasks and invocations on the wire: all points in one array, all coefficients in another."""

from __future__ import annotations

import hashlib
import math
from typing import Literal, TypeAlias

import numpy as np

from seqgc.errors import WireError
from seqgc.ports import FloatArray, Payload, Task, WeightedPoints, WeightRef, WorkItem
from seqgc.wire._frame import Array, Body
from seqgc.wire._messages import InvokeMessage, StoreRef, Subject, TaskMessage, WorkloadRef
from seqgc.wire._values import Count, Digest, Name, Record, Seconds

__all__ = [
    "InvokeHeader",
    "TaskHeader",
    "invoke_message",
    "invoke_parts",
    "task_message",
    "task_parts",
]

_WeightDtype: TypeAlias = Literal["float16", "float32", "float64"]


class _Weights(Record, frozen=True, kw_only=True):
    """A `seqgc.ports.WeightRef`."""

    model: Name
    version: Count
    digest: Digest
    dtype: _WeightDtype
    size: Count


class _Part(Record, frozen=True, kw_only=True):
    """A `seqgc.ports.WeightedPoints` without its ``count`` points and coefficients."""

    model: Name
    count: Count
    weights: _Weights


class _Item(Record, frozen=True, kw_only=True):
    """A `seqgc.ports.WorkItem`."""

    slot: Count
    parts: list[_Part]


class TaskHeader(Subject, frozen=True, kw_only=True, tag="task"):
    """A `TaskMessage`; the body is its points (int64), then its coefficients (float64)."""

    delay_s: Seconds
    payload: Payload | None
    rounding_seed: Count | None
    items: list[_Item]


class InvokeHeader(Record, frozen=True, kw_only=True, tag="invoke"):
    """An `InvokeMessage`; behind its task's arrays, those of the ``weights`` that travel along."""

    request: TaskHeader
    workload: WorkloadRef
    store: StoreRef
    inline_limit_bytes: Count
    weights: list[_Weights]


def task_parts(message: TaskMessage) -> tuple[TaskHeader, list[Array]]:
    """Return a message's header, and its points and coefficients, part after part.

    Raises
    ------
    WireError
        If its delay is no time, a part's points and coefficients do not pair up, or some are
        negative or not finite.
    """
    if not 0 <= message.delay_s < math.inf:
        raise WireError(f"a task's delay must be finite seconds >= 0; got {message.delay_s}")
    parts = [part for item in message.task.items for part in item.parts]
    for part in parts:
        points, coefficients = np.asarray(part.points), np.asarray(part.coefficients)
        if points.ndim != 1 or points.shape != coefficients.shape:
            raise WireError(
                f"task for model {part.model!r}: points of shape {points.shape} do not pair up "
                f"with coefficients of shape {coefficients.shape}"
            )
    points = np.concatenate([np.empty(0, np.int64), *(part.points for part in parts)])
    coefficients = np.concatenate([np.empty(0, np.float64), *(p.coefficients for p in parts)])
    _check_points(points, coefficients)
    header = TaskHeader(
        **message.subject,
        delay_s=message.delay_s,
        payload=message.payload,
        rounding_seed=message.rounding_seed,
        items=[
            _Item(slot=item.slot, parts=[_part(part) for part in item.parts])
            for item in message.task.items
        ],
    )
    return header, [points.astype(np.int64, copy=False), coefficients]


def task_message(header: TaskHeader, body: Body) -> TaskMessage:
    """Return the message of a header and the arrays behind it, which its parts are views of.

    Raises
    ------
    WireError
        If a slot is there twice, points or coefficients are too few or make no sense, or the frame
        is about other weights than its task.
    """
    count = sum(part.count for item in header.items for part in item.parts)
    points = body.take(np.dtype(np.int64), count)
    coefficients = body.take(np.dtype(np.float64), count)
    _check_points(points, coefficients)
    items, begin = [], 0
    for item in header.items:
        parts = []
        for part in item.parts:
            own = slice(begin, begin := begin + part.count)
            parts.append(
                WeightedPoints(
                    model=part.model,
                    weights=_ref(part.weights),
                    points=points[own],
                    coefficients=coefficients[own],
                )
            )
        items.append(WorkItem(slot=item.slot, parts=tuple(parts)))
    if len({item.slot for item in items}) != len(items):
        raise WireError(f"task frame repeats a slot: {[item.slot for item in items][:100]}")
    message = TaskMessage(
        task=Task(
            round=header.round, worker=header.worker, attempt=header.attempt, items=tuple(items)
        ),
        delay_s=header.delay_s,
        payload=header.payload,
        rounding_seed=header.rounding_seed,
        code=header.code,
    )
    if header.weights_digest != (due := message.weights_digest):
        raise WireError(
            f"task frame is about weights {header.weights_digest[:12]!r}…, its task about "
            f"{due[:12]!r}…"
        )
    return message


def invoke_parts(message: InvokeMessage) -> tuple[InvokeHeader, list[Array]]:
    """Return a message's header, its task's arrays, and the weights that travel along.

    Raises
    ------
    WireError
        As `task_parts`, and if weights are not the vector of the size and dtype that their
        reference says.
    """
    _ = message.workload.canonical  # refuses what the other side could not key its memory by
    request, arrays = task_parts(message.request)
    for ref, params in message.weights:
        if np.shape(params) != (ref.size,) or params.dtype.name != ref.dtype:
            raise WireError(
                f"weights of {ref.model!r} must be {ref.dtype} of shape ({ref.size},); got "
                f"{params.dtype} of {np.shape(params)}"
            )
        arrays.append(params)
    header = InvokeHeader(
        request=request,
        workload=message.workload,
        store=message.store,
        inline_limit_bytes=message.inline_limit_bytes,
        weights=[_weights(ref) for ref, _ in message.weights],
    )
    return header, arrays


def invoke_message(header: InvokeHeader, body: Body) -> InvokeMessage:
    """Return the message of a header and the arrays behind it.

    Raises
    ------
    WireError
        As `task_message`, and if weights do not have the digest that their reference says.
    """
    message = InvokeMessage(
        request=task_message(header.request, body),
        workload=header.workload,
        store=header.store,
        inline_limit_bytes=header.inline_limit_bytes,
        weights=tuple(
            (_ref(each), body.take(np.dtype(each.dtype), each.size)) for each in header.weights
        ),
    )
    for ref, params in message.weights:
        _check_digest(ref, params)
    _ = message.workload.canonical
    return message


def _part(part: WeightedPoints) -> _Part:
    return _Part(model=part.model, count=len(part.points), weights=_weights(part.weights))


def _weights(ref: WeightRef) -> _Weights:
    return _Weights(
        model=ref.model,
        version=ref.version,
        digest=ref.digest,
        dtype=ref.dtype,  # type: ignore[arg-type]
        size=ref.size,
    )


def _ref(weights: _Weights) -> WeightRef:
    return WeightRef(
        model=weights.model,
        version=weights.version,
        digest=weights.digest,
        dtype=weights.dtype,
        size=weights.size,
    )


def _check_points(points: Array, coefficients: Array) -> None:
    if points.dtype.kind != "i" or (points < 0).any():
        raise WireError("a task's points must be integers >= 0, indices into the dataset")
    if not np.isfinite(coefficients).all():
        raise WireError("a task's coefficients must be finite")


def _check_digest(ref: WeightRef, params: FloatArray) -> None:
    little = params.astype(params.dtype.newbyteorder("<"), copy=False)
    if (found := hashlib.sha256(little.data).hexdigest()) != ref.digest:
        raise WireError(
            f"weights of {ref.model!r} have digest {found[:12]}… where {ref.digest[:12]}… is due"
        )
