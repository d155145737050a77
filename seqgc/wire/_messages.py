"""What master and workers say to each other, and its frames.

Master to worker: a `TaskMessage`, a `CancelMessage`. Worker to master: a `ReadyMessage`, then per
task a `ResultMessage` or a `FailureMessage`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from seqgc._types import FloatArray
from seqgc.errors import WireError
from seqgc.ports import Task
from seqgc.wire._fields import Fields
from seqgc.wire._frame import MAX_FRAME_BYTES, Array, Frame, pack, unpack
from seqgc.wire._task import task_arrays, task_fields, task_of

__all__ = [
    "CancelMessage",
    "FailureMessage",
    "Message",
    "ReadyMessage",
    "ResultMessage",
    "TaskMessage",
    "decode",
    "encode",
]

_REASON_CHARACTERS = 1000
_RESULT_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskMessage:
    """A task; it is to be answered no earlier than ``delay_s`` seconds after it was received."""

    task: Task
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResultMessage:
    """A task's results by slot: finite vectors of one dtype, float32 or float64."""

    round: int
    worker: int
    attempt: int
    results: Mapping[int, FloatArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureMessage:
    """A task that will not be answered; ``reason`` is one line."""

    round: int
    worker: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelMessage:
    """Whatever ``worker`` still does for ``round`` is of no use, every attempt of it."""

    round: int
    worker: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyMessage:
    """The worker takes tasks from now on; or never will, because of ``problem``, if not empty."""

    worker: int
    problem: str = ""


Message: TypeAlias = TaskMessage | ResultMessage | FailureMessage | CancelMessage | ReadyMessage


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
    """Return the message in a frame; its arrays are read-only views of ``data``.

    Raises
    ------
    WireError
        If the frame is damaged, cut short, longer than ``max_bytes``, of another version or run,
        or says something that no worker or master would: one line says which.
    """
    frame = unpack(data, run_id=run_id, max_bytes=max_bytes)
    if (read := _READERS.get(frame.kind)) is None:
        raise WireError(f"frame of unknown kind {frame.kind!r}; known: {', '.join(_READERS)}")
    return read(frame, Fields(frame.fields, where=f"{frame.kind} frame"))


def _frame_of(message: Message, run_id: str) -> Frame:
    match message:
        case TaskMessage(task=task, delay_s=delay_s):
            fields = task_fields(task) | {"delay_s": delay_s}
            address = (task.round, task.worker, task.attempt)
            return _frame("task", run_id, address, fields, task_arrays(task))
        case ResultMessage(results=results):
            arrays = tuple(np.asarray(result) for result in results.values())
            _check_results(arrays)
            fields = {"slots": [int(slot) for slot in results]}
            return _frame("result", run_id, _address(message), fields, arrays)
        case FailureMessage(reason=reason):
            fields = {"reason": " ".join(reason.split())[:_REASON_CHARACTERS]}
            return _frame("failure", run_id, _address(message), fields)
        case CancelMessage():
            return _frame("cancel", run_id, (message.round, message.worker, 0), {})
        case ReadyMessage(problem=problem):
            fields = {"problem": " ".join(problem.split())[:_REASON_CHARACTERS]}
            return _frame("ready", run_id, (0, message.worker, 0), fields)


def _frame(
    kind: str,
    run_id: str,
    address: tuple[int, int, int],
    fields: Mapping[str, object],
    arrays: tuple[Array, ...] = (),
) -> Frame:
    round, worker, attempt = address
    return Frame(
        kind=kind,
        run_id=run_id,
        round=round,
        worker=worker,
        attempt=attempt,
        fields=fields,
        arrays=arrays,
    )


def _address(message: ResultMessage | FailureMessage) -> tuple[int, int, int]:
    return message.round, message.worker, message.attempt


def _check_results(arrays: tuple[Array, ...]) -> None:
    for array in arrays:
        if array.ndim != 1 or array.dtype not in _RESULT_DTYPES or array.dtype != arrays[0].dtype:
            raise WireError(
                "results must be vectors of one dtype, float32 or float64; "
                f"got shape {array.shape}, {array.dtype} after {arrays[0].dtype}"
            )
        if not np.isfinite(array).all():
            raise WireError(
                "a result is not finite (NaN or Inf): the model diverged or a loss is undefined; "
                "lower the learning rate or check the data"
            )


def _read_task(frame: Frame, fields: Fields) -> TaskMessage:
    return TaskMessage(task=task_of(frame, fields), delay_s=fields.seconds("delay_s"))


def _read_result(frame: Frame, fields: Fields) -> ResultMessage:
    slots = fields.integers("slots")
    if len(slots) != len(frame.arrays) or len(set(slots)) != len(slots):
        raise WireError(f"result frame has {len(frame.arrays)} arrays for slots {slots}")
    _check_results(frame.arrays)
    return ResultMessage(
        round=frame.round,
        worker=frame.worker,
        attempt=frame.attempt,
        results=dict(zip(slots, frame.arrays, strict=True)),
    )


def _read_failure(frame: Frame, fields: Fields) -> FailureMessage:
    return FailureMessage(
        round=frame.round,
        worker=frame.worker,
        attempt=frame.attempt,
        reason=fields.text("reason", limit=_REASON_CHARACTERS),
    )


def _read_cancel(frame: Frame, _: Fields) -> CancelMessage:
    return CancelMessage(round=frame.round, worker=frame.worker)


def _read_ready(frame: Frame, fields: Fields) -> ReadyMessage:
    problem = fields.text("problem", limit=_REASON_CHARACTERS)
    return ReadyMessage(worker=frame.worker, problem=problem)


_READERS: Mapping[str, Callable[[Frame, Fields], Message]] = {
    "task": _read_task,
    "result": _read_result,
    "failure": _read_failure,
    "cancel": _read_cancel,
    "ready": _read_ready,
}
