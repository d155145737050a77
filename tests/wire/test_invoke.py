"""Invocations and their answers: what a function and its master do not take from each other."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from seqgc.errors import WireError
from seqgc.ports import FloatArray, Task, WeightedPoints, WeightRef, WorkItem
from seqgc.wire import (
    MAX_FRAME_BYTES,
    AnswerMessage,
    FailureMessage,
    InvokeMessage,
    Message,
    ReadyMessage,
    ReceiptMessage,
    ResultMessage,
    StoreKind,
    StoreRef,
    TaskMessage,
    WorkloadRef,
    decode,
    decode_invocation,
    encode,
)
from tests.wire.frames import RUN, header_of, setting, tampered


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
        request=asked(ref),
        workload=WorkloadRef(name="models", settings={"precision": "float64"}),
        store=StoreRef(kind="directory", location="weights/run-1"),
        inline_limit_bytes=1000,
        weights=((ref, params),),
    )
    return dataclasses.replace(message, **changes)


def digest_of(message: TaskMessage) -> str:
    return message.subject.weights_digest


def changed(answer: AnswerMessage, **changes: Any) -> AnswerMessage:
    """Return an answer with other fields; those without arrays are msgspec's structs."""
    if isinstance(answer, ResultMessage):
        return dataclasses.replace(answer, **changes)
    return msgspec.structs.replace(answer, **changes)


def test_every_frame_says_which_code_and_which_weights_it_is_about() -> None:
    params = np.arange(3.0)
    message = asked(ref_of(params))
    digest = ref_of(params).digest
    frames: list[TaskMessage | InvokeMessage | AnswerMessage] = [
        message,
        invocation(params),
        message.result({0: np.ones(3)}),
        message.failure("no"),
    ]
    for each in frames:
        header = header_of(encode(each, run_id=RUN))["message"]
        subject = header.get("request", header)["subject"]
        assert (subject["code"], subject["weights_digest"]) == ("gc:s=1", digest)


def test_weights_of_several_models_have_one_digest_whatever_their_order() -> None:
    a, b = ref_of(np.zeros(2), model="a"), ref_of(np.ones(2), model="b")
    both = digest_of(asked(a, b))
    assert both == digest_of(asked(b, a, b))
    assert len({both, digest_of(asked(a)), digest_of(asked(b)), digest_of(asked())}) == 4
    assert (digest_of(asked(a)), digest_of(asked())) == (a.digest, "")


def test_an_invocation_tells_its_run() -> None:
    message = invocation(np.arange(3.0), store=StoreRef(kind="inline"))
    frame = encode(message, run_id="whose?")
    run_id, message = decode_invocation(frame)
    assert run_id == "whose?"
    np.testing.assert_array_equal(message.weights[0][1], np.arange(3.0))
    assert not message.weights[0][1].flags.writeable


def test_a_function_takes_nothing_but_invocations() -> None:
    frame = encode(asked(), run_id=RUN)
    with pytest.raises(WireError, match="InvokeMessage or StayMessage; got a TaskMessage"):
        decode_invocation(frame)


def test_a_task_about_other_weights_than_its_frame_says_is_refused() -> None:
    frame = tampered(
        asked(ref_of(np.ones(2))), setting("subject", "weights_digest", value="0" * 64)
    )
    with pytest.raises(WireError, match="weights '000000000000'…"):
        decode(frame, run_id=RUN)


@pytest.mark.parametrize(
    "params", [np.ones(2), np.ones((3, 1)), np.ones(3, np.float32), np.float64(1)]
)
def test_weights_that_are_not_what_they_are_called_are_not_sent(params: Any) -> None:
    message = invocation(np.ones(3))
    message = dataclasses.replace(message, weights=((ref_of(np.ones(3)), params),))
    with pytest.raises(WireError, match=r"weights of 'cnn' must be float64 of shape \(3,\)"):
        encode(message, run_id=RUN)


INLINE = ("weights", 0)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (setting(*INLINE, "digest", value="0" * 64), "must have digest 000000000000…"),
        (setting(*INLINE, "digest", value="x"), "at `$.message.weights[0].digest`"),
        (setting(*INLINE, "size", value=2), "must have digest b0c45303f7f1…, got fc62429c3e69…"),
        (setting(*INLINE, "size", value=2**50), "its header describes 9007199254741024 or more"),
        (setting(*INLINE, "dtype", value="float32"), "must have digest b0c45303f7f1…"),
        (setting(*INLINE, "dtype", value="object"), "Invalid enum value 'object'"),
        (setting("weights", value=[]), "56 body bytes, its header describes 32"),
        (setting("store", "kind", value="pickle"), "Invalid enum value 'pickle'"),
        (setting("store", "location", value="x" * 1001), "Expected `str` of length <= 1000"),
        (setting("workload", "name", value=3), "Expected `str`, got `int`"),
        (setting("workload", "settings", value=[1]), "Expected `object`, got `array`"),
        (setting("workload", "code", value="x"), "unknown field `code` - at `$.message.workload`"),
        (setting("inline_limit_bytes", value=-1), "Expected `int` >= 0"),
        (setting("request", "subject", "code", value="c" * 101), "Expected `str` of length <= 100"),
        (
            setting("request", "subject", "weights_digest", value="no digest"),
            "`$.message.request.s",
        ),
    ],
)
def test_an_invocation_that_does_not_add_up_is_refused(
    change: Callable[[Any], None], rule: str
) -> None:
    frame = tampered(invocation(np.arange(3.0)), change)
    with pytest.raises(WireError) as caught:
        decode(frame, run_id=RUN)
    assert rule in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "location", "run"),
    [
        ("directory", "weights/another", RUN),
        ("directory", f"{RUN}/", RUN),
        ("directory", f"{RUN}/.", "."),
        ("directory", f"{RUN}/", ""),
        ("directory", "", ""),
        ("s3", f"s3://training/{RUN}/", ""),
    ],
)
def test_a_store_that_is_not_the_runs_own_is_refused(
    kind: StoreKind, location: str, run: str
) -> None:
    message = invocation(np.ones(1), store=StoreRef(kind=kind, location=location))
    with pytest.raises(WireError, match="a store's location must end in the run's id"):
        decode_invocation(encode(message, run_id=run))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, b"bytes"])
def test_a_setting_that_json_cannot_say_is_not_sent(value: Any) -> None:
    workload = WorkloadRef(name="models", settings={"lr": value})
    with pytest.raises(WireError, match="'models' has a setting without JSON form"):
        encode(invocation(np.ones(1), workload=workload), run_id=RUN)


def test_a_code_of_more_than_100_characters_is_not_sent() -> None:
    assert encode(asked(code="c" * 100), run_id=RUN)
    with pytest.raises(WireError, match="100 characters; got 101"):
        encode(asked(code="c" * 101), run_id=RUN)


def test_a_receipt_without_a_digest_is_refused() -> None:
    receipt = ReceiptMessage(subject=asked().subject, key="k", digest="0" * 64, size_bytes=9)
    frame = tampered(receipt, setting("digest", value="../etc/passwd"))
    with pytest.raises(WireError, match=r"at `\$\.message\.digest`"):
        decode(frame, run_id=RUN)


@pytest.mark.parametrize(
    "change",
    [
        {"round": 9},
        {"worker": 9},
        {"attempt": 9},
        {"code": "another"},
        {"weights_digest": "0" * 64},
    ],
)
def test_an_answer_to_something_else_is_refused_by_what_is_wrong(change: dict[str, Any]) -> None:
    message = asked(ref_of(np.ones(2)))
    answers: list[AnswerMessage] = [
        message.result({0: np.ones(2)}),
        message.failure("out of memory"),
        message.receipt(digest="0" * 64, size_bytes=9),
    ]
    for answer in answers:
        message.check(answer)
        (name,) = change
        subject = msgspec.structs.replace(answer.subject, **change)
        with pytest.raises(WireError, match=rf"answer has {name} "):
            message.check(changed(answer, subject=subject))


@pytest.mark.parametrize(
    "key", ["", "k", "result-2-1-1-" + "0" * 32, "result-2-1-0-" + "1" * 32, "../result-2-1-0"]
)
def test_a_receipt_for_what_is_not_this_answers_key_is_refused(key: str) -> None:
    message = asked()
    receipt = message.receipt(digest="0" * 64, size_bytes=9)
    assert receipt.key == "result-2-1-0-" + "0" * 32
    message.check(receipt)
    with pytest.raises(WireError, match=r"answer has key .*'result-2-1-0-0*'"):
        message.check(changed(receipt, key=key))


def test_results_of_other_slots_or_in_another_format_are_refused() -> None:
    message = asked(ref_of(np.ones(2)))
    answer = message.result({0: np.ones(2)})
    for results in ({}, {1: np.ones(2)}, {0: np.ones(2), 1: np.ones(2)}):
        with pytest.raises(WireError, match=r"answer has slots .*\[0\]"):
            message.check(dataclasses.replace(answer, results=results))
    with pytest.raises(WireError, match=r"payload 'float16', .*None"):
        message.check(dataclasses.replace(answer, payload="float16"))


def test_a_receipt_for_more_than_a_frame_may_have_is_refused() -> None:
    receipt = ReceiptMessage(
        subject=asked().subject, key="k", digest="0" * 64, size_bytes=MAX_FRAME_BYTES + 1
    )
    with pytest.raises(WireError, match=r"<= 268435456 - at `\$\.message\.size_bytes`"):
        decode(encode(receipt, run_id=RUN), run_id=RUN)


def test_a_failure_is_one_line_of_bounded_length() -> None:
    failed = asked().failure("first\n  second " + "x" * 5000)
    decoded = decode(encode(failed, run_id=RUN), run_id=RUN)
    assert isinstance(decoded, FailureMessage)
    assert decoded.reason.startswith("first second xxx")
    assert len(decoded.reason) == 1000


HOSTILE = "one\ntwo\x00\x1b[2J\u202e\ud800 three\u2028four"
HARMLESS = "one two\ufffd\ufffd[2J\ufffd\ufffd three four"


@pytest.mark.parametrize("name", ["reason", "problem"])
def test_what_went_wrong_is_printable_whoever_wrote_it(name: str) -> None:
    messages: dict[str, tuple[Message, Message]] = {
        "reason": (asked().failure(HOSTILE), asked().failure("")),
        "problem": (ReadyMessage(worker=0, problem=HOSTILE), ReadyMessage(worker=0)),
    }
    sent, empty = messages[name]
    assert getattr(decode(encode(sent, run_id=RUN), run_id=RUN), name) == HARMLESS
    unmatched = tampered(empty, setting(name, value=HOSTILE))  # a surrogate, which is no text
    with pytest.raises(WireError, match="surrogate"):
        decode(unmatched, run_id=RUN)
    frame = tampered(empty, setting(name, value=HOSTILE.replace("\ud800", "\u202e")))
    assert getattr(decode(frame, run_id=RUN), name) == HARMLESS


def test_the_order_of_settings_does_not_make_another_workload() -> None:
    one = WorkloadRef(name="a", settings={"x": 1, "y": {"p": 2, "q": 3}})
    other = WorkloadRef(name="a", settings={"y": {"q": 3, "p": 2}, "x": 1})
    assert one.canonical == other.canonical
    assert one.canonical != WorkloadRef(name="b", settings=one.settings).canonical
