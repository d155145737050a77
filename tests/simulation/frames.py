"""What happens to invocations and answers on their way: damage, and answers to something else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from seqgc.ports import FloatArray
from seqgc.stores import MemoryStore
from seqgc.wire import ResultMessage, StoreRef, decode, encode, from_json, to_json, to_mapping
from tests.simulation import values

if TYPE_CHECKING:
    from tests.simulation.faults import Fault
    from tests.simulation.functions import Call

_ANOTHER_RUN = "another-0123456789ab"


def flipped(data: bytes, amount: float) -> bytes:
    """Return the bytes with one bit turned."""
    damaged, bit = bytearray(data), int(1e9 * amount) % (8 * len(data))
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def altered(call: Call, answer: bytes) -> bytes:
    """Return what becomes of an answer by the fault of its call."""
    if call.kind == "damage" and call.amount >= 0.5:
        return flipped(answer, call.amount)
    if call.kind not in {"foreign", "falsify"}:
        return answer
    frame = from_json(answer)
    assert call.kind is not None
    wrong = _wrong(call.kind, call.amount, bytes(frame), run_id=call.run_id)
    return answer if wrong is None else to_json(wrong)


def not_finite(call: Call, answer: bytes) -> ResultMessage | None:
    """Return an answer of which one number is none, as a worker says so; None: it is no result."""
    message = decode(from_json(answer), run_id=call.run_id)
    if not isinstance(message, ResultMessage):
        return None
    return call.request.result(values.not_finite(message.results, call.amount))


def altered_frames(fault: Fault, frame: bytes, *, run_id: str) -> list[bytes]:
    """Return what is sent over a connection in place of a frame."""
    match fault.kind:
        case "repeat":
            return [frame, frame]
        case "damage":
            return [flipped(frame, fault.amount)]
        case "foreign" | "falsify":
            wrong = _wrong(fault.kind, fault.amount, frame, run_id=run_id)
            true = [frame] if fault.kind == "foreign" or wrong is None else []
            return [*([] if wrong is None else [wrong]), *true]
    return [frame]


def _wrong(kind: str, amount: float, frame: bytes, *, run_id: str) -> bytes | None:
    """Return the frame of another answer than was asked for; None: it is no result's."""
    message = decode(frame, run_id=run_id)
    if not isinstance(message, ResultMessage):
        return None  # a receipt, or a failure
    if kind == "falsify":
        results = _falsified(message.results, amount)
        return encode(replace(message, results=results), run_id=run_id)
    results = {slot: np.full_like(vector, 1e3) for slot, vector in message.results.items()}
    subject = message.subject
    match int(5 * amount):
        case 0:
            run_id = _ANOTHER_RUN
        case 1:
            later = {"round": subject.round + 1, "attempt": subject.attempt + 5}  # asked by nobody
            subject = msgspec.structs.replace(subject, **later)
        case 2:
            subject = msgspec.structs.replace(subject, worker=subject.worker + 1)
        case _:
            subject = msgspec.structs.replace(subject, attempt=subject.attempt + 1)
    return encode(replace(message, subject=subject, results=results), run_id=run_id)


def _falsified(results: Mapping[int, FloatArray], amount: float) -> Mapping[int, FloatArray]:
    """Return results that the wire carries, and that no worker can have computed."""
    if not results:
        return results
    slot = sorted(results)[int(1000 * amount) % len(results)]
    match int(4 * amount):
        case 0:
            return {**results, slot: results[slot][:-1]}
        case 1:
            return {other: vector.astype(np.float64) for other, vector in results.items()}
        case 2:
            return {other: vector for other, vector in results.items() if other != slot}
        case _:
            return {**results, 1 + max(results): results[slot]}


def of_another_run(call: Call) -> dict[str, object]:
    """Return another run's invocation for the same task, at other weights of the same names."""
    message, weights = call.message, {}
    task = call.task
    for ref in {part.weights for item in task.items for part in item.parts}:
        params = np.full(ref.size, 7.0, dtype=ref.dtype)
        weights[ref] = MemoryStore().publish(ref.model, ref.version, params), params
    items = tuple(
        replace(item, parts=tuple(replace(p, weights=weights[p.weights][0]) for p in item.parts))
        for item in task.items
    )
    other = replace(
        message,
        request=replace(message.request, task=replace(task, items=items)),
        store=StoreRef(kind="inline"),
        weights=tuple(weights.values()),
    )
    return to_mapping(encode(other, run_id=_ANOTHER_RUN))
