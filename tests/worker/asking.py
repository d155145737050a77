"""Invocations as a master would send them, and functions to invoke, without any service between."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from seqgc.ports import FloatArray, Task, WeightedPoints, WeightRef, WorkItem
from seqgc.wire import (
    InvokeMessage,
    Json,
    Message,
    StoreRef,
    TaskMessage,
    WorkloadRef,
    decode,
    encode,
    from_json,
    to_mapping,
)
from seqgc.worker import Compute, FetchWeights, FunctionWorker, Registry

LIMIT_BYTES = 6 * 2**20
INLINE = StoreRef(kind="inline")


def ref_of(params: FloatArray, *, model: str = "cnn", version: int = 0) -> WeightRef:
    return WeightRef(
        model=model,
        version=version,
        digest=hashlib.sha256(params.tobytes()).hexdigest(),
        dtype=params.dtype.name,
        size=params.size,
    )


def task_of(*refs: WeightRef, round: int = 4, worker: int = 1, attempt: int = 0) -> Task:
    """One mini-task with a part for each reference."""
    parts = tuple(
        WeightedPoints(
            model=ref.model,
            weights=ref,
            points=np.array([0, 2]),
            coefficients=np.array([0.5, 2.0]),
        )
        for ref in refs
    )
    items = (WorkItem(slot=0, parts=parts),)
    return Task(round=round, worker=worker, attempt=attempt, items=items)


def invocation(
    *params: FloatArray,
    name: str = "scale",
    settings: Mapping[str, Json] | None = None,
    store: StoreRef = INLINE,
    limit_bytes: int = LIMIT_BYTES,
    bring: bool = True,
    delay_s: float = 0.0,
    task: Task | None = None,
) -> InvokeMessage:
    refs = [ref_of(each, version=version) for version, each in enumerate(params)]
    task = task_of(*refs) if task is None else task
    return InvokeMessage(
        request=TaskMessage(task=task, delay_s=delay_s, code="gc:s=1"),
        workload=WorkloadRef(name=name, settings=settings or {}),
        store=store,
        inline_limit_bytes=limit_bytes,
        weights=tuple(zip(refs, params, strict=True)) if bring else (),
    )


def ask(worker: FunctionWorker, message: InvokeMessage, *, run_id: str = "r") -> Message:
    """Return the worker's answer, which is one to the task; the run's store bears its name."""
    if message.store.kind != "inline":
        store = StoreRef(kind=message.store.kind, location=run_id)
        message = replace(message, store=store)
    reply = worker.serve(to_mapping(encode(message, run_id=run_id))).reply
    answer: Any = decode(from_json(reply), run_id=run_id)
    message.request.check(answer)
    return answer  # type: ignore[no-any-return]


class Scales:
    """A workload whose results are the weights times the coefficients' sum; it counts its makings.

    The setting ``fail`` makes every computation raise, ``value`` replaces results.
    """

    def __init__(self) -> None:
        self.made: list[Mapping[str, Json]] = []
        self.registry = Registry()
        self.registry.register("scale")(self)

    def __call__(self, settings: Mapping[str, Json], fetch_weights: FetchWeights) -> Compute:
        self.made.append(settings)

        def compute(parts: tuple[WeightedPoints, ...]) -> FloatArray:
            if "fail" in settings:
                raise ValueError(f"{settings['fail']}")
            if "value" in settings:
                return np.full(3, float(str(settings["value"])))
            return np.concatenate(
                [fetch_weights(part.weights) * part.coefficients.sum() for part in parts]
            )

        return compute
