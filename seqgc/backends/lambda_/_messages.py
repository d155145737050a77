from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from seqgc.errors import ParameterError, StoreError, WireError, one_line
from seqgc.ports import BlobStore, FloatArray, Task, TaskPhases, WeightRef, payload_format
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

_SPARE_BYTES: Final = 4096  # of a reply's limit, not used for the envelope
_HEADER_BYTES: Final = 512  # an estimate for the frame of an answer, without its parts
_PART_BYTES: Final = 96  # an estimate for each part in the header of this frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocations:
    """A converter that makes the invocations of one run and reads their answers.

    Functions read weights from ``store``, and put answers there that are too large for a reply.
    ``shared`` is the same store, opened by the master. If ``store`` is of kind "inline", ``shared``
    has the weights that an invocation contains; None means that no weights are sent.
    ``max_body_bytes`` is the size limit of an invocation and of its reply, as JSON.

    Raises
    ------
    ParameterError
        If the master has no access to the store, or if the store belongs to another run.
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
        """Return the body of the invocation for a task. Raises the errors of `frame`."""
        return to_json(self.frame(request))

    def frame(self, request: TaskMessage) -> bytes:
        """Return the frame of the invocation for a task.

        Raises
        ------
        WireError
            If the task cannot be encoded, or if the frame or the answer would be too large.
        StoreError
            If weights that the frame must contain are not in the store.
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
        """Decode an answer. Raises `WireError` if it is damaged or belongs to another task."""
        message = decode(frame, run_id=self.run_id)
        if not isinstance(message, AnswerMessage):
            raise WireError(
                f"a function answered with a {type(message).__name__}, which is dropped"
            )
        request.check(message)
        return message

    def redeem(
        self, request: TaskMessage, receipt: ReceiptMessage, *, wanted: Callable[[], bool]
    ) -> ResultMessage:
        """Fetch the answer of a receipt from the store, and remove it there.

        Any thread may call this. If ``wanted`` returns False, the answer is not fetched, and the
        result is empty. Raises `WireError` if the answer is damaged or belongs to another task, and
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
            with suppress(Exception):  # an answer that remains only takes space
                self.shared.remove(receipt.key)
        message = self.answer(request, frame)
        if not isinstance(message, ResultMessage):
            raise WireError(f"{receipt.key!r} holds a {type(message).__name__}, which is dropped")
        phases = None if receipt.phases is None else TaskPhases(*receipt.phases)
        return replace(message, phases=phases)

    def _check_answer(self, request: TaskMessage) -> None:
        """Raise `WireError` if the answer of a task would be too large for a reply."""
        if self.store.kind != "inline":
            return
        frame_bytes = _HEADER_BYTES
        for part in (part for item in request.task.items for part in item.parts):
            if request.payload is not None:
                item_bytes = payload_format(request.payload).bits // 8
            else:  # the results have at least the size of float32
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
            f"{self.max_body_bytes} bytes that Lambda accepts: use {remedy}"
        )
