"""Tasks and invocations on the wire: all points in one array, all coefficients in another.

A message that makes no sense is a `WireError` before it is sent (``of``), and on arrival
(``message``).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
from msgspec.structs import asdict

from seqgc.errors import WireError
from seqgc.ports import FloatArray, Payload, Task, WeightedPoints, WeightRef, WorkItem
from seqgc.wire._frame import Array, Body
from seqgc.wire._message_types import InvokeMessage, StoreRef, Subject, TaskMessage, WorkloadRef
from seqgc.wire._values import Count, Digest, Name, Record, Seconds

__all__ = ["InvokeHeader", "TaskHeader"]


class _Weights(Record, frozen=True, kw_only=True):
    """A `seqgc.ports.WeightRef`."""

    model: Name
    version: Count
    digest: Digest
    dtype: Literal["float16", "float32", "float64"]
    size: Count

    @property
    def ref(self) -> WeightRef:
        """The reference itself."""
        return WeightRef(**asdict(self))

    def params(self, body: Body) -> FloatArray:
        """Return the weights, which are next in the body, if they have the digest."""
        params = body.take(np.dtype(self.dtype), self.size)
        little = params.astype(params.dtype.newbyteorder("<"), copy=False)
        if (found := hashlib.sha256(little.data).hexdigest()) != self.digest:
            raise WireError(
                f"weights of {self.model!r} have digest {found[:12]}… where {self.digest[:12]}… is "
                "due"
            )
        return params


class _Part(Record, frozen=True, kw_only=True):
    """A `seqgc.ports.WeightedPoints` without its ``count`` points and coefficients."""

    model: Name
    count: Count
    weights: _Weights

    def weighted(self, points: Array, coefficients: Array) -> WeightedPoints:
        """Return the part with these points and coefficients."""
        return WeightedPoints(
            model=self.model, weights=self.weights.ref, points=points, coefficients=coefficients
        )


class _Item(Record, frozen=True, kw_only=True):
    """A `seqgc.ports.WorkItem`."""

    slot: Count
    parts: list[_Part]


class TaskHeader(Record, frozen=True, kw_only=True, tag="task"):
    """A `TaskMessage`; the body is its points (int64), then its coefficients (float64)."""

    subject: Subject
    delay_s: Seconds
    payload: Payload | None
    rounding_seed: Count | None
    items: list[_Item]

    @classmethod
    def of(cls, message: TaskMessage) -> tuple[TaskHeader, list[Array]]:
        """Return a message's header, and its points and coefficients, part after part."""
        if not 0 <= message.delay_s < math.inf:
            raise WireError(f"a task's delay must be finite seconds >= 0; got {message.delay_s}")
        items = message.task.items
        header = cls(
            subject=message.subject,
            delay_s=message.delay_s,
            payload=message.payload,
            rounding_seed=message.rounding_seed,
            items=[_Item(slot=each.slot, parts=[_part(p) for p in each.parts]) for each in items],
        )
        parts = [part for item in items for part in item.parts]
        points = np.concatenate([np.empty(0, np.int64), *(part.points for part in parts)])
        coefficients = np.concatenate([np.empty(0, np.float64), *(p.coefficients for p in parts)])
        _check_points(points, coefficients)
        return header, [points.astype(np.int64, copy=False), coefficients]

    def message(self, body: Body) -> TaskMessage:
        """Return the message of this header; its parts are views of the arrays behind it."""
        count = sum(part.count for item in self.items for part in item.parts)
        points = body.take(np.dtype(np.int64), count)
        coefficients = body.take(np.dtype(np.float64), count)
        _check_points(points, coefficients)
        slots = [item.slot for item in self.items]
        if len(set(slots)) != len(slots):
            raise WireError(f"task frame repeats a slot: {slots[:100]}")
        round, worker, attempt = self.subject.address
        items = tuple(self._work_items(points, coefficients))
        message = TaskMessage(
            task=Task(round=round, worker=worker, attempt=attempt, items=items),
            delay_s=self.delay_s,
            payload=self.payload,
            rounding_seed=self.rounding_seed,
            code=self.subject.code,
        )
        if (named := self.subject.weights_digest) != (due := message.subject.weights_digest):
            raise WireError(
                f"task frame is about weights {named[:12]!r}…, its task about {due[:12]!r}…"
            )
        return message

    def _work_items(self, points: Array, coefficients: Array) -> Iterator[WorkItem]:
        begin = 0
        for item in self.items:
            parts = []
            for part in item.parts:
                own = slice(begin, begin := begin + part.count)
                parts.append(part.weighted(points[own], coefficients[own]))
            yield WorkItem(slot=item.slot, parts=tuple(parts))


class InvokeHeader(Record, frozen=True, kw_only=True, tag="invoke"):
    """An `InvokeMessage`; behind its task's arrays, those of the ``weights`` that travel along."""

    request: TaskHeader
    workload: WorkloadRef
    store: StoreRef
    inline_limit_bytes: Count
    weights: list[_Weights]

    @classmethod
    def of(cls, message: InvokeMessage) -> tuple[InvokeHeader, list[Array]]:
        """Return a message's header, its task's arrays, and the weights that travel along."""
        _ = message.workload.canonical  # refuses what the other side could not key its memory by
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
            weights=[_weights(ref) for ref, _ in message.weights],
        )
        return header, [*arrays, *(params for _, params in message.weights)]

    def message(self, body: Body) -> InvokeMessage:
        """Return the message of this header and the arrays behind it."""
        request = self.request.message(body)
        _ = self.workload.canonical
        return InvokeMessage(
            request=request,
            workload=self.workload,
            store=self.store,
            inline_limit_bytes=self.inline_limit_bytes,
            weights=tuple((each.ref, each.params(body)) for each in self.weights),
        )


def _weights(ref: WeightRef) -> _Weights:
    return _Weights(
        model=ref.model,
        version=ref.version,
        digest=ref.digest,
        dtype=ref.dtype,  # type: ignore[arg-type]
        size=ref.size,
    )


def _part(part: WeightedPoints) -> _Part:
    points, coefficients = np.shape(part.points), np.shape(part.coefficients)
    if len(points) != 1 or points != coefficients:
        raise WireError(
            f"task for model {part.model!r}: points of shape {points} do not pair up with "
            f"coefficients of shape {coefficients}"
        )
    return _Part(model=part.model, count=points[0], weights=_weights(part.weights))


def _check_points(points: Array, coefficients: Array) -> None:
    if points.dtype.kind != "i" or (points < 0).any():
        raise WireError("a task's points must be integers >= 0, indices into the dataset")
    if not np.isfinite(coefficients).all():
        raise WireError("a task's coefficients must be finite")
