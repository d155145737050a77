"""Messages to frames and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from seqgc.errors import SeqgcError, WireError
from seqgc.ports import PAYLOADS, FloatArray, Payload
from seqgc.wire._fields import Fields, one_line
from seqgc.wire._frame import MAX_FRAME_BYTES, Array, Frame, is_digest, pack, unpack
from seqgc.wire._invoke import invoke_arrays, invoke_fields, invoke_of
from seqgc.wire._messages import (
    Answer,
    CancelMessage,
    FailureMessage,
    InvokeMessage,
    Message,
    ReadyMessage,
    ReceiptMessage,
    ResultMessage,
    TaskMessage,
)
from seqgc.wire._results import (
    quantized_results,
    result_arrays,
    result_fields,
    results_of,
)
from seqgc.wire._task import task_arrays, task_fields, task_of

__all__ = ["decode", "decode_invocation", "encode"]

_REASON_CHARACTERS = 1000


def encode(message: Message, *, run_id: str) -> bytes:
    """Return a message's frame.

    Raises
    ------
    WireError
        If the message has no frame: a result that is not finite, not a vector, of mixed dtypes …

    Examples
    --------
    >>> frame = encode(CancelMessage(round=3, worker=1), run_id="r1")
    >>> decode(frame, run_id="r1")
    CancelMessage(round=3, worker=1)
    >>> decode(frame, run_id="another")
    Traceback (most recent call last):
        ...
    seqgc.errors.WireError: frame belongs to run 'r1', not 'another'; drop it
    """
    return pack(_frame_of(message, run_id))


def decode(data: bytes | bytearray, *, run_id: str, max_bytes: int = MAX_FRAME_BYTES) -> Message:
    """Return the message in a frame; its arrays are read-only, views of ``data`` where they can be.

    Raises
    ------
    WireError
        If the frame is damaged, cut short, longer than ``max_bytes``, of another version or run,
        or says something that no worker or master would: one line says which.
    """
    return _message_of(unpack(data, run_id=run_id, max_bytes=max_bytes))


def decode_invocation(
    data: bytes | bytearray, *, max_bytes: int = MAX_FRAME_BYTES
) -> tuple[str, InvokeMessage]:
    """Return the run, whichever it is, and the invocation in a frame.

    Raises
    ------
    WireError
        As `decode`, and if it is another kind of message.
    """
    frame = unpack(data, run_id=None, max_bytes=max_bytes)
    message = _message_of(frame)
    if not isinstance(message, InvokeMessage):
        raise WireError(f"a function is asked by an invoke frame; got a {frame.kind} frame")
    return frame.run_id, message


def _message_of(frame: Frame) -> Message:
    if (read := _READERS.get(frame.kind)) is None:
        raise WireError(f"frame of unknown kind {frame.kind!r}; known: {', '.join(_READERS)}")
    try:
        return read(frame, Fields(frame.fields, where=f"{frame.kind} frame"))
    except SeqgcError:
        raise
    except Exception as error:  # no frame, whatever it says, is more than a refused frame
        why = _line(f"{type(error).__name__}: {error}")
        raise WireError(f"{frame.kind} frame cannot be read; drop it: {why}") from error


def _frame_of(message: Message, run_id: str) -> Frame:
    match message:
        case TaskMessage(task=task):
            return _task_frame("task", run_id, message, _task_fields(message), task_arrays(task))
        case InvokeMessage(asked=asked):
            fields = _task_fields(asked) | invoke_fields(message)
            arrays = task_arrays(asked.task) + invoke_arrays(message)
            return _task_frame("invoke", run_id, asked, fields, arrays)
        case ResultMessage(results=results, payload=payload, rounding_seed=root):
            seed = None if root is None else (root, *_address(message))
            sent = quantized_results(results, payload=payload, seed=seed, pieces=message.pieces)
            fields = result_fields(sent, single=_is_single(results)) | _rounding_fields(message)
            return _answer_frame("result", run_id, message, fields, result_arrays(sent))
        case FailureMessage(reason=reason):
            return _answer_frame("failure", run_id, message, {"reason": _line(reason)})
        case ReceiptMessage(key=key, digest=digest, size_bytes=size):
            fields = {"key": key, "digest": digest, "size_bytes": int(size)}
            return _answer_frame("receipt", run_id, message, fields)
        case CancelMessage():
            return _frame("cancel", run_id, (message.round, message.worker, 0), {})
        case ReadyMessage(problem=problem):
            fields = {"problem": _line(problem)}
            return _frame("ready", run_id, (0, message.worker, 0), fields)


def _is_single(results: Mapping[int, FloatArray]) -> bool:
    return all(np.asarray(result).dtype == np.float32 for result in results.values())


def _task_frame(
    kind: str,
    run_id: str,
    asked: TaskMessage,
    fields: Mapping[str, object],
    arrays: tuple[Array, ...],
) -> Frame:
    task = asked.task
    address = (task.round, task.worker, task.attempt)
    return _frame(kind, run_id, address, fields, arrays, subject=(asked.code, asked.weights))


def _answer_frame(
    kind: str,
    run_id: str,
    answer: Answer,
    fields: Mapping[str, object],
    arrays: tuple[Array, ...] = (),
) -> Frame:
    subject = (answer.code, answer.weights)
    return _frame(kind, run_id, _address(answer), fields, arrays, subject=subject)


def _frame(
    kind: str,
    run_id: str,
    address: tuple[int, int, int],
    fields: Mapping[str, object],
    arrays: tuple[Array, ...] = (),
    *,
    subject: tuple[str, str] = ("", ""),
) -> Frame:
    round, worker, attempt = address
    code, weights = subject
    return Frame(
        kind=kind,
        run_id=run_id,
        round=round,
        worker=worker,
        attempt=attempt,
        fields=fields,
        arrays=arrays,
        code=code,
        weights=weights,
    )


def _address(message: Answer) -> tuple[int, int, int]:
    return message.round, message.worker, message.attempt


def _line(text: str) -> str:
    return one_line(text, limit=_REASON_CHARACTERS)


def _task_fields(message: TaskMessage) -> dict[str, object]:
    return task_fields(message.task) | {"delay_s": message.delay_s} | _rounding_fields(message)


def _rounding_fields(message: TaskMessage | ResultMessage) -> dict[str, object]:
    return {"payload": message.payload, "rounding_seed": message.rounding_seed}


def _rounding(fields: Fields) -> tuple[Payload | None, int | None]:
    payload = fields.one_of("payload", PAYLOADS) if fields.given("payload") else None
    return payload, fields.integer("rounding_seed") if fields.given("rounding_seed") else None


def _asked(frame: Frame, fields: Fields, arrays: tuple[Array, ...]) -> TaskMessage:
    payload, rounding_seed = _rounding(fields)
    asked = TaskMessage(
        task=task_of(frame, fields, arrays),
        delay_s=fields.seconds("delay_s"),
        payload=payload,
        rounding_seed=rounding_seed,
        code=frame.code,
    )
    if frame.weights != (due := asked.weights):
        raise WireError(
            f"{frame.kind} frame is about weights {frame.weights[:12]!r}…, its task about "
            f"{due[:12]!r}…"
        )
    return asked


def _read_task(frame: Frame, fields: Fields) -> TaskMessage:
    return _asked(frame, fields, frame.arrays)


def _read_invoke(frame: Frame, fields: Fields) -> InvokeMessage:
    return invoke_of(frame, fields, asked=_asked(frame, fields, frame.arrays[:2]))


def _read_result(frame: Frame, fields: Fields) -> ResultMessage:
    payload, rounding_seed = _rounding(fields)
    return ResultMessage(
        round=frame.round,
        worker=frame.worker,
        attempt=frame.attempt,
        results=results_of(frame, fields, payload=payload),
        payload=payload,
        rounding_seed=rounding_seed,
        code=frame.code,
        weights=frame.weights,
    )


def _read_failure(frame: Frame, fields: Fields) -> FailureMessage:
    return FailureMessage(
        round=frame.round,
        worker=frame.worker,
        attempt=frame.attempt,
        reason=_line(fields.text("reason", limit=_REASON_CHARACTERS)),
        code=frame.code,
        weights=frame.weights,
    )


def _read_receipt(frame: Frame, fields: Fields) -> ReceiptMessage:
    if not is_digest(digest := fields.text("digest")):
        raise WireError(f"receipt frame has no SHA-256 for a digest: {digest[:80]!r}")
    if (size_bytes := fields.integer("size_bytes")) > MAX_FRAME_BYTES:
        raise WireError(
            f"receipt frame promises {size_bytes} bytes; a frame has {MAX_FRAME_BYTES} at most"
        )
    return ReceiptMessage(
        round=frame.round,
        worker=frame.worker,
        attempt=frame.attempt,
        key=fields.text("key"),
        digest=digest,
        size_bytes=size_bytes,
        code=frame.code,
        weights=frame.weights,
    )


def _read_cancel(frame: Frame, _: Fields) -> CancelMessage:
    return CancelMessage(round=frame.round, worker=frame.worker)


def _read_ready(frame: Frame, fields: Fields) -> ReadyMessage:
    problem = _line(fields.text("problem", limit=_REASON_CHARACTERS))
    return ReadyMessage(worker=frame.worker, problem=problem)


_READERS: Mapping[str, Callable[[Frame, Fields], Message]] = {
    "task": _read_task,
    "invoke": _read_invoke,
    "result": _read_result,
    "failure": _read_failure,
    "receipt": _read_receipt,
    "cancel": _read_cancel,
    "ready": _read_ready,
}
