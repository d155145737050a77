"""What an invocation says beyond its task: workload, store, and the weights that travel along."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from seqgc.errors import WireError
from seqgc.ports import FloatArray, WeightRef
from seqgc.wire._fields import Fields
from seqgc.wire._frame import Array, Frame
from seqgc.wire._messages import STORE_KINDS, InvokeMessage, StoreRef, TaskMessage, WorkloadRef
from seqgc.wire._task import ref_fields, ref_of

__all__ = ["invoke_arrays", "invoke_fields", "invoke_of"]

_LOCATION_CHARACTERS = 1000
_TASK_ARRAYS = 2  # points, coefficients


def invoke_fields(message: InvokeMessage) -> dict[str, Any]:
    """Return the JSON part of an invocation, without its task's."""
    _ = message.workload.canonical  # refuses what the other side could not key its memory by
    return {
        "workload": {
            "name": message.workload.name,
            "settings": dict(message.workload.settings),
        },
        "store": {"kind": message.store.kind, "location": message.store.location},
        "inline_limit_bytes": int(message.inline_limit_bytes),
        "inline": [ref_fields(ref) for ref, _ in message.weights],
    }


def invoke_arrays(message: InvokeMessage) -> tuple[Array, ...]:
    """Return the weights that travel along.

    Raises
    ------
    WireError
        If one is not the vector of the size and dtype that its reference says.
    """
    vectors = tuple(np.asarray(vector) for _, vector in message.weights)
    for (ref, _), vector in zip(message.weights, vectors, strict=True):
        _check_form(ref, vector)
    return vectors


def invoke_of(frame: Frame, fields: Fields, *, asked: TaskMessage) -> InvokeMessage:
    """Return the invocation in a frame, whose task is ``asked``.

    Raises
    ------
    WireError
        If weights are not what their reference says, or anything else makes no sense.
    """
    workload, store = fields.inner("workload"), fields.inner("store")
    refs = [ref_of(each) for each in fields.objects("inline")]
    vectors = frame.arrays[_TASK_ARRAYS:]
    if len(refs) != len(vectors):
        raise WireError(f"invoke frame has {len(vectors)} arrays of weights for {len(refs)}")
    for ref, vector in zip(refs, vectors, strict=True):
        _check_form(ref, vector)
        _check_digest(ref, vector)
    message = InvokeMessage(
        asked=asked,
        workload=WorkloadRef(
            name=workload.text("name"), settings=workload.inner("settings").values
        ),
        store=StoreRef(
            kind=store.one_of("kind", STORE_KINDS),
            location=store.text("location", limit=_LOCATION_CHARACTERS),
        ),
        inline_limit_bytes=fields.integer("inline_limit_bytes"),
        weights=tuple(zip(refs, vectors, strict=True)),
    )
    _ = message.workload.canonical  # JSON's 1e999 is read as infinity, which has no JSON form
    return message


def _check_form(ref: WeightRef, vector: FloatArray) -> None:
    if vector.shape != (ref.size,) or vector.dtype.name != ref.dtype:
        raise WireError(
            f"weights of {ref.model!r} must be {ref.dtype} of shape ({ref.size},); got "
            f"{vector.dtype} of {vector.shape}"
        )


def _check_digest(ref: WeightRef, vector: FloatArray) -> None:
    little = vector.astype(vector.dtype.newbyteorder("<"), copy=False)
    if (found := hashlib.sha256(little.data).hexdigest()) != ref.digest:
        raise WireError(
            f"weights of {ref.model!r} have digest {found[:12]}… where {ref.digest[:12]}… is due"
        )
