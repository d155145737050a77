"""What master and workers say to each other, and its frames.

Master to worker: a `TaskMessage`, a `CancelMessage`. Worker to master: a `ReadyMessage`, then per
task a `ResultMessage` or a `FailureMessage`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from seqgc._types import FloatArray
from seqgc.errors import WireError
from seqgc.payloads import PAYLOADS, Payload
from seqgc.ports import Task
from seqgc.wire._fields import Fields
from seqgc.wire._frame import MAX_FRAME_BYTES, Array, Frame, pack, unpack
from seqgc.wire._results import (
    quantized_results,
    result_arrays,
    result_fields,
    results_of,
)
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskMessage:
    """A task; it is to be answered no earlier than ``delay_s`` seconds after it was received.

    ``payload`` and ``rounding_seed`` are what its `ResultMessage` is to have.
    """

    task: Task
    delay_s: float = 0.0
    payload: Payload | None = None
    rounding_seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResultMessage:
    """A task's results by slot: finite vectors of one dtype, float32 or float64.

    They travel in the format ``payload`` (None: their own dtype), and arrive as what that format
    made of them. With a ``rounding_seed``, 0 to 2**53, rounding is stochastic, each result's by a
    generator of its own, seeded with that, round, worker, attempt and slot.
    """

    round: int
    worker: int
    attempt: int
    results: Mapping[int, FloatArray]
    payload: Payload | None = None
    rounding_seed: int | None = None


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
    """Return the message in a frame; its arrays are read-only, views of ``data`` where they can be.

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
            fields = task_fields(task) | {"delay_s": delay_s} | _rounding_fields(message)
            address = (task.round, task.worker, task.attempt)
            return _frame("task", run_id, address, fields, task_arrays(task))
        case ResultMessage(results=results, payload=payload, rounding_seed=root):
            seed = None if root is None else (root, *_address(message))
            quantized = quantized_results(results, payload=payload, seed=seed)
            fields = result_fields(quantized) | _rounding_fields(message)
            return _frame("result", run_id, _address(message), fields, result_arrays(quantized))
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


def _rounding_fields(message: TaskMessage | ResultMessage) -> dict[str, object]:
    return {"payload": message.payload, "rounding_seed": message.rounding_seed}


def _rounding(fields: Fields) -> tuple[Payload | None, int | None]:
    payload = fields.one_of("payload", PAYLOADS) if fields.given("payload") else None
    return payload, fields.integer("rounding_seed") if fields.given("rounding_seed") else None


def _read_task(frame: Frame, fields: Fields) -> TaskMessage:
    payload, rounding_seed = _rounding(fields)
    return TaskMessage(
        task=task_of(frame, fields),
        delay_s=fields.seconds("delay_s"),
        payload=payload,
        rounding_seed=rounding_seed,
    )


def _read_result(frame: Frame, fields: Fields) -> ResultMessage:
    payload, rounding_seed = _rounding(fields)
    return ResultMessage(
        round=frame.round,
        worker=frame.worker,
        attempt=frame.attempt,
        results=results_of(frame, fields, payload=payload),
        payload=payload,
        rounding_seed=rounding_seed,
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
