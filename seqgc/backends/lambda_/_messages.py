"""Conversion of tasks to invocations and of replies to results, with checks of both."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np

from seqgc.errors import ParameterError, StoreError, WireError, one_line
from seqgc.ports import BlobStore, FloatArray, Task, WeightRef, payload_format
from seqgc.wire import (
    MESSAGE_LIMIT_BYTES,
    AnswerMessage,
    InvokeMessage,
    ReceiptMessage,
    ResultMessage,
    StoreRef,
    TaskMessage,
    WorkloadRef,
    decode,
    encode,
    envelope_bytes,
    to_json,
)

__all__ = ["Invocations"]

_SPARE_BYTES: Final = 4096  # reserved in an answer for what surrounds its JSON
_HEADER_BYTES: Final = 512  # of an answer's frame
_PART_BYTES: Final = 96  # of a part's slot and the lengths of its pieces in that header


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocations:
    """Makes the invocations of one run and reads their answers.

    Functions read weights from ``store``, and write answers there that are too large for a reply.
    ``shared`` is the same store as the master sees it; if ``store`` is of kind "inline", it holds
    the weights that are sent within an invocation (None: no weights are sent). ``max_body_bytes``
    limits an invocation and its reply, as JSON.

    Raises `ParameterError` if the master has no access to the store, or if the store belongs to
    another run.
    """

    run_id: str
    workload: WorkloadRef
    store: StoreRef
    shared: BlobStore | None = None
    max_body_bytes: int = MESSAGE_LIMIT_BYTES

    def __post_init__(self) -> None:
        if self.shared is None and self.store.kind != "inline":
            remedy = "open the store on the master too, or use StoreRef(kind='inline')"
            raise ParameterError("shared", "must be given with a store", None, remedy)
        if not self.store.is_of(self.run_id):
            rule = f"must have a location that ends with the run id {self.run_id!r}"
            raise ParameterError("store", rule, self.store.location)

    def body(self, request: TaskMessage) -> bytes:
        """Return the body of the invocation for a task; raises like `frame`."""
        return to_json(self.frame(request))

    def frame(self, request: TaskMessage) -> bytes:
        """Return the frame of the invocation for a task.

        Raises `WireError` if the task cannot be encoded, or if the frame or its answer would be too
        large, and `StoreError` if weights that it must contain are not in the store.
        """
        self._check_answer(request)
        weights: tuple[tuple[WeightRef, FloatArray], ...] = ()
        if self.store.kind == "inline" and self.shared is not None:
            refs = dict.fromkeys(p.weights for item in request.task.items for p in item.parts)
            weights = tuple((ref, self.shared.fetch(ref)) for ref in refs)
        message = InvokeMessage(
            request=request,
            workload=self.workload,
            store=self.store,
            inline_limit_bytes=self.max_body_bytes - _SPARE_BYTES,
            weights=weights,
        )
        frame = encode(message, run_id=self.run_id)
        if (size := envelope_bytes(len(frame))) > self.max_body_bytes:
            remedy = "a store (EFS or S3) for weights, or fewer points per task"
            raise self._too_large(request.task, "the task", size, remedy)
        return frame

    def answer(self, request: TaskMessage, frame: bytes) -> AnswerMessage:
        """Decode an answer; raise `WireError` if it is damaged or answers another task."""
        message = decode(frame, run_id=self.run_id)
        if not isinstance(message, AnswerMessage):
            raise WireError(f"a function answered with a {type(message).__name__}: it is dropped")
        request.check(message)
        return message

    def redeem(
        self, request: TaskMessage, receipt: ReceiptMessage, *, wanted: Callable[[], bool]
    ) -> ResultMessage:
        """Fetch the answer that a receipt stands for, and remove it from the store.

        Any thread may call this. If the answer is not ``wanted`` any more, it is not fetched, and
        has no results. Raises `WireError` if the answer is damaged or answers another task, and
        `StoreError` if it is missing or the store cannot be read.
        """
        if self.shared is None:
            raise StoreError(f"the answer is in a store ({receipt.key!r}), but the run has none")
        try:
            if not wanted():
                return ResultMessage(subject=request.subject, results={})
            frame = self.shared.get(
                receipt.key, digest=receipt.digest, size_bytes=receipt.size_bytes
            )
        except OSError as error:
            why = f"cannot be read: {one_line(error)}"
            raise StoreError(f"the answer under {receipt.key!r} {why}") from error
        finally:
            with suppress(Exception):  # an answer that stays costs only space
                self.shared.remove(receipt.key)
        message = self.answer(request, frame)
        if not isinstance(message, ResultMessage):
            raise WireError(f"{receipt.key!r} holds a {type(message).__name__}: it is dropped")
        return message

    def _check_answer(self, request: TaskMessage) -> None:
        """Refuse a task whose answer, which is as long as its weights, would be too large."""
        if self.store.kind != "inline":
            return
        frame_bytes = _HEADER_BYTES
        for part in (part for item in request.task.items for part in item.parts):
            if request.payload is not None:
                item_bytes = payload_format(request.payload).bits // 8
            else:  # at least float32; more is not known
                item_bytes = max(4, np.dtype(part.weights.dtype).itemsize)
            frame_bytes += (sum(part.pieces) or part.weights.size) * item_bytes + _PART_BYTES
        if (size := envelope_bytes(frame_bytes)) > self.max_body_bytes - _SPARE_BYTES:
            remedy = "a store (EFS or S3) for answers, or a narrower `payload`"
            raise self._too_large(request.task, "its answer", size, remedy)

    def _too_large(self, task: Task, what: str, size: int, remedy: str) -> WireError:
        where = f"round {task.round}, worker {task.worker}"
        megabytes = math.ceil(size / 1e4) / 100
        return WireError(
            f"{where}: {what} of {megabytes:g} MB as JSON ({size} bytes) exceeds the "
            f"{self.max_body_bytes} bytes that Lambda carries: use {remedy}"
        )
