"""A task on the wire: all its points in one array, all its coefficients in another."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from seqgc.errors import WireError
from seqgc.ports import Task, WeightedPoints, WeightRef, WorkItem
from seqgc.wire._fields import Fields
from seqgc.wire._frame import Array, Frame, is_digest

__all__ = ["ref_fields", "ref_of", "task_arrays", "task_fields", "task_of", "weights_digest"]

_WEIGHT_DTYPES = ("float16", "float32", "float64")


def task_fields(task: Task) -> dict[str, Any]:
    """Return the JSON part of a task: slots, models, weights, and how many points each part has."""
    return {
        "items": [
            {"slot": int(item.slot), "parts": [_part_fields(part) for part in item.parts]}
            for item in task.items
        ]
    }


def task_arrays(task: Task) -> tuple[Array, Array]:
    """Return a task's points (int64) and coefficients (float64), part after part.

    Raises
    ------
    WireError
        If a part's points and coefficients do not pair up, or are negative or not finite.
    """
    parts = [part for item in task.items for part in item.parts]
    for part in parts:
        points, coefficients = np.asarray(part.points), np.asarray(part.coefficients)
        if points.ndim != 1 or points.shape != coefficients.shape:
            raise WireError(
                f"task for model {part.model!r}: points of shape {points.shape} do not pair up "
                f"with coefficients of shape {coefficients.shape}"
            )
    points = np.concatenate([np.empty(0, np.int64), *(part.points for part in parts)])
    coefficients = np.concatenate([np.empty(0, np.float64), *(p.coefficients for p in parts)])
    _check(points, coefficients)
    return points.astype(np.int64, copy=False), coefficients.astype(np.float64, copy=False)


def task_of(frame: Frame, fields: Fields, arrays: tuple[Array, ...]) -> Task:
    """Return the task in a frame; its own arrays, ``arrays``, are points and coefficients.

    What is returned are views of them.

    Raises
    ------
    WireError
        If slots repeat, counts do not add up to the arrays, or a reference makes no sense.
    """
    cut = _Cutter(arrays)
    items = tuple(
        WorkItem(
            slot=item.integer("slot"),
            parts=tuple(_part(part, cut) for part in item.objects("parts")),
        )
        for item in fields.objects("items")
    )
    cut.finish()
    if len({item.slot for item in items}) != len(items):
        raise WireError(f"task frame repeats a slot: {[item.slot for item in items]}")
    return Task(round=frame.round, worker=frame.worker, attempt=frame.attempt, items=items)


def weights_digest(task: Task) -> str:
    """Return the digest of all the weights that a task uses; empty if it uses none.

    That is their own digest if there is one version, else that of their digests, sorted.
    """
    digests = sorted({part.weights.digest for item in task.items for part in item.parts})
    if len(digests) <= 1:
        return "".join(digests)
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def ref_fields(ref: WeightRef) -> dict[str, Any]:
    """Return the JSON form of a reference to weights."""
    return {
        "model": ref.model,
        "version": int(ref.version),
        "digest": ref.digest,
        "dtype": ref.dtype,
        "size": int(ref.size),
    }


def _part_fields(part: WeightedPoints) -> dict[str, Any]:
    weights = ref_fields(part.weights)
    return {"model": part.model, "count": len(part.points), "weights": weights}


def _part(fields: Fields, cut: _Cutter) -> WeightedPoints:
    points, coefficients = cut.next(fields.integer("count"))
    return WeightedPoints(
        model=fields.text("model"),
        weights=ref_of(fields.inner("weights")),
        points=points,
        coefficients=coefficients,
    )


def ref_of(fields: Fields) -> WeightRef:
    """Return the reference to weights that is in ``fields``.

    Raises
    ------
    WireError
        If it makes no sense.
    """
    digest, dtype = fields.text("digest"), fields.text("dtype")
    if not is_digest(digest) or dtype not in _WEIGHT_DTYPES:
        raise WireError(f"task frame refers to weights of digest {digest!r}, dtype {dtype!r}")
    return WeightRef(
        model=fields.text("model"),
        version=fields.integer("version"),
        digest=digest,
        dtype=dtype,
        size=fields.integer("size"),
    )


def _check(points: Array, coefficients: Array) -> None:
    if points.dtype.kind != "i" or (points < 0).any():
        raise WireError("a task's points must be integers >= 0, indices into the dataset")
    if not np.isfinite(coefficients).all():
        raise WireError("a task's coefficients must be finite")


class _Cutter:
    """Hands out consecutive pieces of the points and coefficients, and insists on using all."""

    def __init__(self, arrays: tuple[Array, ...]) -> None:
        if [array.dtype.str[1:] for array in arrays] != ["i8", "f8"]:
            raise WireError("task frame must have two arrays, points int64, coefficients float64")
        self._points, self._coefficients = arrays
        if self._points.ndim != 1 or self._points.shape != self._coefficients.shape:
            raise WireError("task frame: points and coefficients must be vectors of one length")
        _check(self._points, self._coefficients)
        self._used = 0

    def next(self, count: int) -> tuple[Array, Array]:
        piece = slice(self._used, self._used + count)
        self._used += count
        return self._points[piece], self._coefficients[piece]

    def finish(self) -> None:
        if self._used != len(self._points):
            raise WireError(f"task frame: parts of {self._used} points, {len(self._points)} sent")
