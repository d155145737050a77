"""Tasks to invocation bodies, and answer bodies back to results: every size and address checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np

from seqgc.backends.lambda_._transport import Body
from seqgc.errors import ParameterError, StoreError, WireError
from seqgc.ports import BlobStore, FloatArray, Task, WeightRef, payload_format
from seqgc.wire import (
    MESSAGE_LIMIT_BYTES,
    FailureMessage,
    InvokeMessage,
    ReceiptMessage,
    ResultMessage,
    StoreRef,
    TaskMessage,
    WorkloadRef,
    decode,
    encode,
    envelope_bytes,
    from_json,
    to_json,
)

__all__ = ["Invocations"]

_SPARE_BYTES: Final = 4096  # of an answer: its header, and the JSON's spaces


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocations:
    """Makes invocations of one run and reads their answers.

    Parameters
    ----------
    run_id
        Written into every frame; frames of another run are refused.
    workload
        What the function computes: a factory's name and its settings.
    store
        Where functions find weights, and put answers that are too large for a reply.
    shared
        The same store as the master sees it. With a store of kind "inline" it holds the weights
        that travel along; None: none do.
    max_body_bytes
        Of an invocation and of its reply, as JSON.

    Raises
    ------
    ParameterError
        If answers may go into a store that the master does not see.
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

    def body(self, request: TaskMessage) -> bytes:
        """Return the body of the invocation that asks this.

        Raises
        ------
        WireError
            If it has no frame, or it or its answer is larger than Lambda carries.
        StoreError
            If the weights that must travel along are not in the store.
        """
        self._check_answer(request)
        message = InvokeMessage(
            request=request,
            workload=self.workload,
            store=self.store,
            inline_limit_bytes=self.max_body_bytes - _SPARE_BYTES,
            weights=self._weights(request.task),
        )
        frame = encode(message, run_id=self.run_id)
        if (size := envelope_bytes(len(frame))) > self.max_body_bytes:
            remedy = "a store (EFS or S3) for weights, or fewer points per task"
            raise self._too_large(request.task, "the task", size, remedy)
        return to_json(frame)

    def answer(
        self, request: TaskMessage, body: Body
    ) -> Mapping[int, FloatArray] | FailureMessage | ReceiptMessage:
        """Return what a reply's body says: results, why there are none, or where they lie.

        Raises
        ------
        WireError
            If it is damaged, or no answer to what was request.
        StoreError
            If the results lie in a store, and there is none.
        """
        message = self._decoded(request, from_json(body))
        if isinstance(message, ReceiptMessage) and self.shared is None:
            raise StoreError(f"the answer is under {message.key!r} of a store that is none")
        return message.results if isinstance(message, ResultMessage) else message

    def redeemed(
        self, request: TaskMessage, receipt: ReceiptMessage, *, wanted: Callable[[], bool]
    ) -> Mapping[int, FloatArray]:
        """Return the results that a receipt is for; any thread may call it.

        What lay in the store is removed, if it can be. An answer that is not ``wanted`` any more
        is not fetched from there: it has no results then.

        Raises
        ------
        WireError
            If they are damaged, or no answer to what was request.
        StoreError
            If the store does not have what the receipt promises, or cannot be read.
        """
        if self.shared is None:
            raise StoreError(f"the answer is under {receipt.key!r} of a store that is none")
        try:
            if not wanted():
                return {}
            frame = self.shared.get(
                receipt.key, digest=receipt.digest, size_bytes=receipt.size_bytes
            )
        except OSError as error:
            why = " ".join(str(error).split())
            raise StoreError(f"the answer under {receipt.key!r} cannot be read: {why}") from error
        finally:
            with suppress(Exception):  # what stays behind costs only space
                self.shared.remove(receipt.key)
        message = self._decoded(request, frame)
        if not isinstance(message, ResultMessage):
            raise WireError(f"a {type(message).__name__} lies under {receipt.key!r}; drop it")
        return message.results

    def _decoded(
        self, request: TaskMessage, frame: bytes
    ) -> ResultMessage | FailureMessage | ReceiptMessage:
        message = decode(frame, run_id=self.run_id)
        if not isinstance(message, ResultMessage | FailureMessage | ReceiptMessage):
            raise WireError(f"a function answered with a {type(message).__name__}; drop it")
        request.check(message)
        return message

    def _weights(self, task: Task) -> tuple[tuple[WeightRef, FloatArray], ...]:
        if self.store.kind != "inline" or self.shared is None:
            return ()
        refs = dict.fromkeys(part.weights for item in task.items for part in item.parts)
        return tuple((ref, self.shared.fetch(ref)) for ref in refs)

    def _check_answer(self, request: TaskMessage) -> None:
        """Refuse a task whose answer cannot come back: it is as long as the weights it is about."""
        if self.store.kind != "inline":
            return
        parts = [part for item in request.task.items for part in item.parts]
        if request.payload is not None:
            item_bytes = payload_format(request.payload).bits // 8
            least = item_bytes * sum(part.weights.size for part in parts)
        else:  # no narrower than float32, which is all that is known
            least = sum(
                part.weights.size * max(4, np.dtype(part.weights.dtype).itemsize) for part in parts
            )
        if (size := envelope_bytes(least)) > self.max_body_bytes - _SPARE_BYTES:
            remedy = "a store (EFS or S3) for answers, or a narrower `payload`"
            raise self._too_large(request.task, "its answer", size, remedy)

    def _too_large(self, task: Task, what: str, size: int, remedy: str) -> WireError:
        where = f"round {task.round}, worker {task.worker}"
        megabytes = math.ceil(size / 1e4) / 100
        return WireError(
            f"{where}: {what} of {megabytes:g} MB as JSON ({size} bytes) exceeds the "
            f"{self.max_body_bytes} bytes that Lambda carries: use {remedy}"
        )
