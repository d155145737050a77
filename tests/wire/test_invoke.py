"""Invocations and their answers: what a function and its master do not take from each other."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from seqgc.errors import WireError
from seqgc.ports import FloatArray, Task, WeightedPoints, WeightRef, WorkItem
from seqgc.wire import (
    MAX_FRAME_BYTES,
    SCHEMA_VERSION,
    Answer,
    CancelMessage,
    FailureMessage,
    InvokeMessage,
    Message,
    ReadyMessage,
    ReceiptMessage,
    StoreRef,
    TaskMessage,
    WorkloadRef,
    decode,
    decode_invocation,
    encode,
)
from seqgc.wire import _frame as frame_module

RUN = "run-1"


def ref_of(params: FloatArray, *, model: str = "cnn", version: int = 7) -> WeightRef:
    return WeightRef(
        model=model,
        version=version,
        digest=hashlib.sha256(params.tobytes()).hexdigest(),
        dtype=params.dtype.name,
        size=params.size,
    )


def asked(*weights: WeightRef, code: str = "gc:s=1") -> TaskMessage:
    points, coefficients = np.array([3, 4]), np.array([0.5, 2.0])
    parts = tuple(
        WeightedPoints(model=ref.model, weights=ref, points=points, coefficients=coefficients)
        for ref in weights
    )
    task = Task(round=2, worker=1, attempt=0, items=(WorkItem(slot=0, parts=parts),))
    return TaskMessage(task=task, code=code)


def invocation(params: FloatArray, **changes: Any) -> InvokeMessage:
    ref = ref_of(params)
    message = InvokeMessage(
        asked=asked(ref),
        workload=WorkloadRef(name="models", settings={"precision": "float64"}),
        store=StoreRef(kind="directory", location="run-1/weights"),
        inline_limit_bytes=1000,
        weights=((ref, params),),
    )
    return dataclasses.replace(message, **changes)


def tampered(frame: bytes, change: Callable[[Any], None]) -> bytes:
    """Return the frame with another header, and the digest that goes with it."""
    *_, header_bytes, body_bytes = struct.unpack_from("<4sHHIQ", frame)
    header = json.loads(frame[52 : 52 + header_bytes])
    change(header)
    text = json.dumps(header).encode()
    prefix = struct.pack("<4sHHIQ", b"SGCF", SCHEMA_VERSION, 0, len(text), body_bytes)
    body = frame[52 + header_bytes :]
    return prefix + frame_module._digest(prefix, text, body) + text + body


def header_of(frame: bytes) -> dict[str, Any]:
    *_, header_bytes, _ = struct.unpack_from("<4sHHIQ", frame)
    header: dict[str, Any] = json.loads(frame[52 : 52 + header_bytes])
    return header


def test_every_frame_says_which_code_and_which_weights_it_is_about() -> None:
    params = np.arange(3.0)
    message = asked(ref_of(params))
    digest = ref_of(params).digest
    frames: list[TaskMessage | InvokeMessage | Answer] = [
        message,
        invocation(params),
        message.answered({0: np.ones(3)}),
        message.failed("no"),
    ]
    for each in frames:
        header = header_of(encode(each, run_id=RUN))
        assert (header["code"], header["weights"]) == ("gc:s=1", digest)
    header = header_of(encode(CancelMessage(round=0, worker=0), run_id=RUN))
    assert (header["code"], header["weights"]) == ("", "")


def test_weights_of_several_models_have_one_digest_whatever_their_order() -> None:
    a, b = ref_of(np.zeros(2), model="a"), ref_of(np.ones(2), model="b")
    both = asked(a, b).weights
    assert both == asked(b, a, b).weights
    assert len({both, asked(a).weights, asked(b).weights, asked().weights}) == 4
    assert (asked(a).weights, asked().weights) == (a.digest, "")


def test_an_invocation_tells_its_run() -> None:
    frame = encode(invocation(np.arange(3.0)), run_id="whose?")
    run_id, message = decode_invocation(frame)
    assert run_id == "whose?"
    np.testing.assert_array_equal(message.weights[0][1], np.arange(3.0))
    assert not message.weights[0][1].flags.writeable


def test_a_function_takes_nothing_but_invocations() -> None:
    frame = encode(asked(), run_id=RUN)
    with pytest.raises(WireError, match="asked by an invoke frame; got a task frame"):
        decode_invocation(frame)


def test_a_task_about_other_weights_than_its_frame_says_is_refused() -> None:
    frame = tampered(
        encode(asked(ref_of(np.ones(2))), run_id=RUN), lambda h: h.update(weights="0" * 64)
    )
    with pytest.raises(WireError, match="task frame is about weights '000000000000'…"):
        decode(frame, run_id=RUN)


@pytest.mark.parametrize(
    "params", [np.ones(2), np.ones((3, 1)), np.ones(3, np.float32), np.float64(1)]
)
def test_weights_that_are_not_what_they_are_called_are_not_sent(params: Any) -> None:
    message = invocation(np.ones(3))
    message = dataclasses.replace(message, weights=((ref_of(np.ones(3)), params),))
    with pytest.raises(WireError, match=r"weights of 'cnn' must be float64 of shape \(3,\)"):
        encode(message, run_id=RUN)


def _set(*path: str | int, value: object) -> Callable[[Any], None]:
    def change(header: Any) -> None:
        for step in path[:-1]:
            header = header[step]
        header[path[-1]] = value

    return change


INLINE = ("fields", "inline", 0)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (_set(*INLINE, "digest", value="0" * 64), "where 000000000000… is due"),
        (_set(*INLINE, "digest", value="x"), "digest 'x'"),
        (_set(*INLINE, "size", value=2), "must be float64 of shape (2,)"),
        (_set(*INLINE, "dtype", value="float32"), "must be float32 of shape (3,)"),
        (_set("fields", "inline", value=[]), "1 arrays of weights for 0"),
        (_set("fields", "store", "kind", value="pickle"), "one of directory, s3, inline"),
        (_set("fields", "store", "location", value="x" * 1001), "at most 1000 characters"),
        (_set("fields", "workload", "name", value=3), "`name` must be a string"),
        (_set("fields", "workload", "settings", value=[1]), "settings must be a JSON object"),
        (_set("fields", "inline_limit_bytes", value=-1), "`inline_limit_bytes` must be an integer"),
        (_set("code", value="c" * 101), "`code` must be a string of at most 100 characters"),
        (_set("weights", value="no digest"), "SHA-256 or empty; got 'no digest'"),
    ],
)
def test_an_invocation_that_does_not_add_up_is_refused(
    change: Callable[[Any], None], rule: str
) -> None:
    frame = tampered(encode(invocation(np.arange(3.0)), run_id=RUN), change)
    with pytest.raises(WireError) as caught:
        decode(frame, run_id=RUN)
    assert rule in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_setting_that_json_reads_as_infinity_is_refused() -> None:
    frame = encode(invocation(np.ones(1)), run_id=RUN)
    huge = tampered(frame, _set("fields", "workload", "settings", value={"lr": 12345}))
    *_, header_bytes, body_bytes = struct.unpack_from("<4sHHIQ", huge)
    text = huge[52 : 52 + header_bytes].replace(b"12345", b"1e999")
    prefix = struct.pack("<4sHHIQ", b"SGCF", SCHEMA_VERSION, 0, len(text), body_bytes)
    body = huge[52 + header_bytes :]
    frame = prefix + frame_module._digest(prefix, text, body) + text + body
    with pytest.raises(WireError, match="'models' has a setting without JSON form"):
        decode(frame, run_id=RUN)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, b"bytes"])
def test_a_setting_that_json_cannot_say_is_not_sent(value: Any) -> None:
    workload = WorkloadRef(name="models", settings={"lr": value})
    with pytest.raises(WireError, match="'models' has a setting without JSON form"):
        encode(invocation(np.ones(1), workload=workload), run_id=RUN)


def test_a_code_of_more_than_100_characters_is_not_sent() -> None:
    assert encode(asked(code="c" * 100), run_id=RUN)
    with pytest.raises(WireError, match="at most 100 characters; got 101"):
        encode(asked(code="c" * 101), run_id=RUN)


def test_a_receipt_without_a_digest_is_refused() -> None:
    receipt = ReceiptMessage(round=2, worker=1, attempt=0, key="k", digest="0" * 64, size_bytes=9)
    frame = tampered(
        encode(receipt, run_id=RUN), lambda h: h["fields"].update(digest="../etc/passwd")
    )
    with pytest.raises(WireError, match="receipt frame has no SHA-256"):
        decode(frame, run_id=RUN)


@pytest.mark.parametrize(
    "change",
    [
        {"round": 9},
        {"worker": 9},
        {"attempt": 9},
        {"code": "another"},
        {"weights": "0" * 64},
    ],
)
def test_an_answer_to_something_else_is_refused_by_what_is_wrong(change: dict[str, Any]) -> None:
    message = asked(ref_of(np.ones(2)))
    answers: list[Answer] = [
        message.answered({0: np.ones(2)}),
        message.failed("out of memory"),
        message.stored(digest="0" * 64, size_bytes=9),
    ]
    for answer in answers:
        message.require(answer)
        (name,) = change
        with pytest.raises(WireError, match=rf"answer has {name} .* was asked for; drop it"):
            message.require(dataclasses.replace(answer, **change))


@pytest.mark.parametrize(
    "key", ["", "k", "result-2-1-1-" + "0" * 32, "result-2-1-0-" + "1" * 32, "../result-2-1-0"]
)
def test_a_receipt_for_what_is_not_this_answers_key_is_refused(key: str) -> None:
    message = asked()
    receipt = message.stored(digest="0" * 64, size_bytes=9)
    assert receipt.key == "result-2-1-0-" + "0" * 32
    message.require(receipt)
    with pytest.raises(WireError, match=r"answer has key .* where 'result-2-1-0-0*' is due"):
        message.require(dataclasses.replace(receipt, key=key))


def test_results_of_other_slots_or_in_another_format_are_refused() -> None:
    message = asked(ref_of(np.ones(2)))
    answer = message.answered({0: np.ones(2)})
    for results in ({}, {1: np.ones(2)}, {0: np.ones(2), 1: np.ones(2)}):
        with pytest.raises(WireError, match=r"answer has slots .* where \[0\] were asked for"):
            message.require(dataclasses.replace(answer, results=results))
    with pytest.raises(WireError, match="answer has payload float16 where None was asked for"):
        message.require(dataclasses.replace(answer, payload="float16"))


def test_a_receipt_for_more_than_a_frame_may_have_is_refused() -> None:
    receipt = ReceiptMessage(
        round=2, worker=1, attempt=0, key="k", digest="0" * 64, size_bytes=MAX_FRAME_BYTES + 1
    )
    with pytest.raises(WireError, match="receipt frame promises 268435457 bytes"):
        decode(encode(receipt, run_id=RUN), run_id=RUN)


def test_a_failure_is_one_line_of_bounded_length() -> None:
    failed = asked().failed("first\n  second " + "x" * 5000)
    decoded = decode(encode(failed, run_id=RUN), run_id=RUN)
    assert isinstance(decoded, FailureMessage)
    assert decoded.reason.startswith("first second xxx")
    assert len(decoded.reason) == 1000


HOSTILE = "one\ntwo\x00\x1b[2J\u202e\ud800 three\u2028four"
HARMLESS = "one two\ufffd\ufffd[2J\ufffd\ufffd three four"


@pytest.mark.parametrize("name", ["reason", "problem"])
def test_what_went_wrong_is_printable_whoever_wrote_it(name: str) -> None:
    messages: dict[str, tuple[Message, Message]] = {
        "reason": (asked().failed(HOSTILE), asked().failed("")),
        "problem": (ReadyMessage(worker=0, problem=HOSTILE), ReadyMessage(worker=0)),
    }
    sent, empty = messages[name]
    for frame in (
        encode(sent, run_id=RUN),
        tampered(encode(empty, run_id=RUN), lambda h: h["fields"].update({name: HOSTILE})),
    ):
        assert getattr(decode(frame, run_id=RUN), name) == HARMLESS


def test_the_order_of_settings_does_not_make_another_workload() -> None:
    one = WorkloadRef(name="a", settings={"x": 1, "y": {"p": 2, "q": 3}})
    other = WorkloadRef(name="a", settings={"y": {"q": 3, "p": 2}, "x": 1})
    assert one.canonical == other.canonical
    assert one.canonical != WorkloadRef(name="b", settings=one.settings).canonical
