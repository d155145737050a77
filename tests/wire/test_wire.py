"""Frames come back as they were sent, or not at all."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from seqgc.errors import WireError
from seqgc.ports import (
    PAYLOADS,
    FloatArray,
    Payload,
    Task,
    WeightedPoints,
    WeightRef,
    WorkItem,
    payload_format,
)
from seqgc.wire import (
    MAX_FRAME_BYTES,
    SCHEMA_VERSION,
    CancelMessage,
    ResultMessage,
    TaskMessage,
    decode,
    encode,
)
from seqgc.wire import _codec as codec_module
from seqgc.wire import _frame as frame_module
from tests.wire.messages import RUN, content, messages, results

REF = WeightRef(model="cnn", version=7, digest="ab" * 32, dtype="float32", size=3)


def result_of(*vectors: FloatArray) -> ResultMessage:
    return ResultMessage(round=2, worker=1, attempt=0, results=dict(enumerate(vectors)))


def task_of(points: list[int], coefficients: list[float]) -> TaskMessage:
    part = WeightedPoints(
        model="cnn",
        weights=REF,
        points=np.array(points, dtype=np.intp),
        coefficients=np.array(coefficients),
    )
    item = WorkItem(slot=0, parts=(part,))
    return TaskMessage(task=Task(round=2, worker=1, attempt=0, items=(item,)))


def tampered(message: Any, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return a frame whose digest is right and whose header is not."""
    frame = encode(message, run_id=RUN)
    _, _, _, header_bytes, body_bytes = struct.unpack_from("<4sHHIQ", frame)
    header = json.loads(frame[52 : 52 + header_bytes])
    change(header)
    text = json.dumps(header).encode()
    prefix = struct.pack("<4sHHIQ", b"SGCF", SCHEMA_VERSION, 0, len(text), body_bytes)
    body = frame[52 + header_bytes :]
    return prefix + frame_module._digest(prefix, text, body) + text + body


@given(message=messages)
def test_a_message_comes_back_as_it_was_sent(message: Any) -> None:
    assert content(decode(encode(message, run_id=RUN), run_id=RUN)) == content(message)


@given(message=messages, data=st.data())
def test_a_changed_byte_is_noticed(message: Any, data: st.DataObject) -> None:
    frame = bytearray(encode(message, run_id=RUN))
    place = data.draw(st.integers(0, len(frame) - 1))
    frame[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(WireError):
        decode(frame, run_id=RUN)


@given(message=messages, data=st.data())
def test_a_frame_cut_short_or_too_long_is_noticed(message: Any, data: st.DataObject) -> None:
    frame = encode(message, run_id=RUN)
    length = data.draw(st.integers(0, len(frame) + 20))
    assume(length != len(frame))
    with pytest.raises(WireError):
        decode((frame + bytes(20))[:length], run_id=RUN)


@given(noise=st.binary(max_size=300))
def test_noise_is_not_a_message(noise: bytes) -> None:
    with pytest.raises(WireError):
        decode(noise, run_id=RUN)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(message=messages, value=json_values, data=st.data())
def test_a_header_that_says_nonsense_is_refused_or_means_something(
    message: Any, value: object, data: st.DataObject
) -> None:
    def change(header: dict[str, Any]) -> None:
        inside = data.draw(st.sampled_from([header, header["fields"]])) or header
        inside[data.draw(st.sampled_from(sorted(inside)))] = value

    frame = tampered(message, change)
    try:
        decoded = decode(frame, run_id=RUN)
    except WireError as error:
        refusal = str(error)
    else:
        refusal = ""
        again = encode(decoded, run_id=RUN)
        assert content(decode(again, run_id=RUN)) == content(decoded)
    assert "\n" not in refusal


def test_a_frame_of_another_run_is_refused_by_name() -> None:
    frame = encode(CancelMessage(round=0, worker=0), run_id="other")
    with pytest.raises(WireError, match="belongs to run 'other', not 'run-1'"):
        decode(frame, run_id=RUN)


def test_a_frame_of_another_version_says_so() -> None:
    frame = bytearray(encode(CancelMessage(round=0, worker=0), run_id=RUN))
    frame[4] = 9
    with pytest.raises(WireError, match=r"schema version 9.* run one seqgc version"):
        decode(frame, run_id=RUN)


@pytest.mark.parametrize(("offset", "form"), [(8, "<I"), (12, "<Q")])
def test_a_huge_announced_length_is_refused_before_anything_is_allocated(
    offset: int, form: str
) -> None:
    frame = bytearray(encode(result_of(np.ones(3)), run_id=RUN))
    struct.pack_into(form, frame, offset, 2**32 - 1)
    with pytest.raises(WireError, match="too large"):
        decode(frame, run_id=RUN)


def test_a_frame_above_the_receivers_limit_is_refused() -> None:
    frame = encode(result_of(np.ones(100)), run_id=RUN)
    assert isinstance(decode(frame, run_id=RUN, max_bytes=len(frame)), ResultMessage)
    with pytest.raises(WireError, match="too large"):
        decode(frame, run_id=RUN, max_bytes=len(frame) - 1)


def test_a_frame_above_the_limit_is_not_sent() -> None:
    zeros = np.broadcast_to(np.float64(0), (MAX_FRAME_BYTES // 8,))
    with pytest.raises(WireError, match="too large"):
        encode(result_of(zeros[: 2**10], *[zeros[: 2**20]] * 32), run_id=RUN)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_result_that_is_not_finite_is_neither_sent_nor_taken(wrong: float, dtype: type) -> None:
    vector: FloatArray = np.array([0.0, wrong], dtype=dtype)
    with pytest.raises(WireError, match="not finite"):
        encode(result_of(vector), run_id=RUN)
    with pytest.raises(WireError, match="`values` must be finite"):
        decode(raw_result((vector,)), run_id=RUN)


@pytest.mark.parametrize("payload", ["float16", "bfloat16"])
def test_a_16_bit_result_that_is_not_finite_is_not_taken(payload: Payload) -> None:
    values = np.array([0, 0x7C00 if payload == "float16" else 0x7F80], np.uint16)
    if payload == "float16":
        values = values.view(np.float16)
    frame = raw_result((values,), payload=payload)
    with pytest.raises(WireError, match="result frame: `values` must be finite"):
        decode(frame, run_id=RUN)


def raw_result(
    arrays: tuple[npt.NDArray[Any], ...], *, exponents: object = None, payload: object = None
) -> bytes:
    """Return the frame of results that nobody has checked."""
    fields = {
        "slots": list(range(len(arrays))),
        "pieces": [[int(array.size)] for array in arrays],
        "exponents": [[0]] * len(arrays) if exponents is None else exponents,
        "single": all(array.dtype == np.float32 for array in arrays),
        "payload": payload,
        "rounding_seed": None,
    }
    frame = frame_module.Frame(
        kind="result", run_id=RUN, round=2, worker=1, attempt=0, fields=fields, arrays=arrays
    )
    return frame_module.pack(frame)


SHORTS = np.ones(2, np.uint16)


@pytest.mark.parametrize(
    ("arrays", "exponents", "payload", "rule"),
    [
        ((np.ones(2, np.float16),), [[0]], None, "dtype float32 or float64; got float16"),
        ((SHORTS,), [[0]], None, "dtype float32 or float64; got uint16"),
        (
            (SHORTS,),
            [[0]],
            "float16",
            "`values` must be a vector of float16 (float16); got 'uint16",
        ),
        ((np.ones(2, np.float16),), [[0]], "bfloat16", "must be a vector of uint16 (bfloat16)"),
        (
            (SHORTS.reshape(2, 1),),
            [[0]],
            "bfloat16",
            "values of shape (2, 1), 1 exponents for pieces",
        ),
        ((SHORTS,), [[0, 0]], "bfloat16", "values of shape (2,), 2 exponents for pieces of [2]"),
        ((np.ones(2, np.float32), np.ones(2)), [[0], [0]], None, "must be a vector of float32"),
        ((SHORTS,), [[1009]], "bfloat16", "integer from -1088 to 1008; got 1009"),
        ((SHORTS,), [[-1089]], "bfloat16", "integer from -1088 to 1008; got -1089"),
        ((SHORTS,), [[True]], "bfloat16", "`exponents` must be a list of lists of integers"),
        ((SHORTS,), [[0.0]], "bfloat16", "`exponents` must be a list of lists of integers"),
        ((SHORTS,), [0], "bfloat16", "`exponents` must be a list of lists of integers"),
        ((SHORTS,), 0, "bfloat16", "`exponents` must be a list; got 0"),
        (
            (SHORTS,),
            [[0], [0]],
            "bfloat16",
            "1 arrays, 1 lists of pieces, 2 of exponents for slots",
        ),
        (
            (SHORTS,),
            [[0]],
            "float8",
            "`payload` must be one of float64, float32, float16, bfloat16",
        ),
        ((SHORTS,), [[0]], ["bfloat16"], "`payload` must be one of"),
        ((np.full(2, 1e300),), [[900]], "float64", "must be finite, also times 2**exponent"),
    ],
)
def test_results_that_contradict_their_format_are_refused(
    arrays: tuple[npt.NDArray[Any], ...], exponents: object, payload: object, rule: str
) -> None:
    frame = raw_result(arrays, exponents=exponents, payload=payload)
    with pytest.raises(WireError) as caught:
        decode(frame, run_id=RUN)
    assert rule in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([], id="none"),
        pytest.param([2, -1, 1], id="negative"),
        pytest.param([2] + [-2, 2] * 400, id="negative, many"),
        pytest.param([2] + [0] * 4096, id="too many"),
        pytest.param([1], id="too short"),
        pytest.param([2, 1], id="too long"),
        pytest.param([2**64, 2], id="beyond any integer of an array"),
    ],
)
@pytest.mark.parametrize("size", [0, 2])
def test_pieces_that_do_not_make_up_their_result_are_neither_sent_nor_taken(
    pieces: list[int], size: int
) -> None:
    message = result_of(np.ones(size))

    def change(header: dict[str, Any]) -> None:
        header["fields"].update(pieces=[pieces], exponents=[[0] * len(pieces)])

    rule = f"a result of {size} numbers must be 1 to 4096 pieces"
    with pytest.raises(WireError, match=rule):
        decode(tampered(message, change), run_id=RUN)
    with pytest.raises(WireError, match=rule):
        encode(replace(message, pieces={0: tuple(pieces)}), run_id=RUN)


@pytest.mark.parametrize(("parts", "pieces"), [(0, 1), (2048, 4096), (2049, 2049), (5000, 1)])
def test_a_result_of_more_parts_than_pieces_may_be_travels_whole(parts: int, pieces: int) -> None:
    part = WeightedPoints(
        model="cnn", weights=REF, points=np.zeros(0, np.intp), coefficients=np.zeros(0)
    )
    item = WorkItem(slot=0, parts=(part,) * parts)
    asked = TaskMessage(task=Task(round=2, worker=1, attempt=0, items=(item,)))
    each = REF.size if pieces == parts else REF.size + 1
    answer = asked.answered({0: np.arange(1.0 * each * parts)})
    assert answer.pieces is not None
    assert len(answer.pieces[0]) == pieces
    assert np.array_equal(received(answer)[0], answer.results[0])


def test_a_reader_that_stumbles_refuses_the_frame_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stumble(*_: object) -> None:
        raise ValueError("need at least\none array\x1b")

    monkeypatch.setitem(codec_module._READERS, "cancel", stumble)  # type: ignore[arg-type]
    frame = encode(CancelMessage(round=0, worker=0), run_id=RUN)
    with pytest.raises(WireError) as caught:
        decode(frame, run_id=RUN)
    why = "ValueError: need at least one array\ufffd"
    assert str(caught.value) == f"cancel frame cannot be read; drop it: {why}"


def received(message: ResultMessage) -> dict[int, FloatArray]:
    decoded = decode(encode(message, run_id=RUN), run_id=RUN)
    assert isinstance(decoded, ResultMessage)
    return dict(decoded.results)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("payload", ["float32", "float16", "bfloat16"])
def test_each_slot_is_rounded_to_the_format_at_its_own_scale(payload: Payload, dtype: type) -> None:
    rng = np.random.default_rng(1)
    vectors = [(rng.standard_normal(500) * scale).astype(dtype) for scale in (1e-20, 1.0, 1e20)]
    results = received(replace(result_of(*vectors), payload=payload))
    unit = payload_format(payload).unit_roundoff
    for slot, vector in enumerate(vectors):
        assert results[slot].dtype == dtype
        assert not results[slot].flags.writeable
        error = np.abs(results[slot] - vector.astype(np.float64))
        assert (error <= unit * np.abs(vector)).all()
        exact = payload == "float32" and dtype == np.float32
        assert (error.max() == 0) == exact


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_results_arrive_in_the_dtype_that_they_had_whatever_their_magnitude(dtype: type) -> None:
    small = 1e-300 if dtype == np.float64 else 1e-44
    message = replace(result_of(*np.array([[small], [1.0]], dtype)), payload="float16")
    results = received(message)
    assert [results[slot].dtype for slot in (0, 1)] == [dtype, dtype]
    assert results[0][0] == pytest.approx(small, rel=2**-11 if dtype == np.float64 else 0.2)
    assert results[1][0] == 1.0


def test_a_large_loss_takes_no_bits_from_small_gradients() -> None:
    ref = WeightRef(model="m", version=0, digest="0" * 64, dtype="float32", size=3)
    part = WeightedPoints(
        model="m", weights=ref, points=np.array([0]), coefficients=np.array([1.0])
    )
    asked = TaskMessage(
        task=Task(round=0, worker=0, attempt=0, items=(WorkItem(slot=0, parts=(part, part)),)),
        payload="float16",
    )
    result = np.array([1e-6, 2e-6, 5e-7, 1e6, 3.0, 2.0, 1.0, 1e-9], np.float32)
    (arrived,) = received(asked.answered({0: result})).values()
    np.testing.assert_allclose(arrived, result, rtol=2**-11)
    (in_one_piece,) = received(replace(asked.answered({0: result}), pieces=None)).values()
    assert in_one_piece[2] == 0.0


def test_stochastic_rounding_depends_on_seed_and_address_alone() -> None:
    vector = np.random.default_rng(2).standard_normal(200).astype(np.float32)
    message = replace(result_of(vector, vector), payload="bfloat16", rounding_seed=3)
    first = received(message)
    assert np.array_equal(first[0], received(message)[0])
    others = [
        received(replace(message, rounding_seed=None))[0],
        received(replace(message, rounding_seed=4))[0],
        received(replace(message, round=9))[0],
        received(replace(message, worker=9))[0],
        received(replace(message, attempt=9))[0],
        first[1],
    ]
    for other in others:
        assert not np.array_equal(first[0], other)
        assert np.abs(first[0] - other).max() <= 2**-6 * np.abs(vector).max()


def test_16_bit_formats_halve_the_frame() -> None:
    message = result_of(np.random.default_rng(3).standard_normal(100_000).astype(np.float32))
    lengths = {p: len(encode(replace(message, payload=p), run_id=RUN)) for p in (None, *PAYLOADS)}
    overhead = lengths[None] - 400_000
    assert 0 < overhead < 400
    for payload, per_number in (("float64", 8), ("float32", 4), ("float16", 2), ("bfloat16", 2)):
        assert lengths[payload] == pytest.approx(100_000 * per_number + overhead, abs=64)


def test_a_result_too_large_to_be_rounded_is_not_sent() -> None:
    message = replace(result_of(np.array([1.5e308])), payload="float16")
    with pytest.raises(WireError, match=r"a result cannot be sent: `vector` must be less than 2"):
        encode(message, run_id=RUN)


@pytest.mark.parametrize(
    "vectors",
    [
        pytest.param((np.ones((2, 2)),), id="matrix"),
        pytest.param((np.float64(1),), id="scalar"),
        pytest.param((np.ones(2), np.ones(2, np.float32)), id="mixed dtypes"),
        pytest.param((np.ones(2, np.float16),), id="half precision"),
        pytest.param((np.array([object()]),), id="objects"),
    ],
)
def test_results_of_a_wrong_shape_or_dtype_are_not_sent(vectors: tuple[Any, ...]) -> None:
    with pytest.raises(WireError, match="vectors of one dtype"):
        encode(result_of(*vectors), run_id=RUN)


@pytest.mark.parametrize(
    ("message", "rule"),
    [
        (task_of([0, -1], [1.0, 1.0]), "points must be integers >= 0"),
        (task_of([0, 1], [1.0, np.nan]), "coefficients must be finite"),
        (task_of([0, 1], [1.0]), "do not pair up"),
    ],
)
def test_a_task_that_makes_no_sense_is_not_sent(message: TaskMessage, rule: str) -> None:
    with pytest.raises(WireError, match=rule):
        encode(message, run_id=RUN)


def _set(*path: str | int, value: object) -> Callable[[dict[str, Any]], None]:
    def change(header: Any) -> None:
        for step in path[:-1]:
            header = header[step]
        header[path[-1]] = value

    return change


PART = ("fields", "items", 0, "parts", 0)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (_set(*PART, "count", value=3), "parts of 3 points, 2 sent"),
        (_set(*PART, "count", value=1), "parts of 1 points, 2 sent"),
        (_set(*PART, "weights", "digest", value="AB" * 32), "digest"),
        (_set(*PART, "weights", "dtype", value="object"), "dtype 'object'"),
        (_set("fields", "delay_s", value=-1), "finite number >= 0"),
        (_set("fields", "payload", value="float8"), "`payload` must be one of float64"),
        (_set("fields", "payload", value=16), "`payload` must be one of float64"),
        (_set("fields", "rounding_seed", value=-1), "`rounding_seed` must be an integer >= 0"),
        (_set("arrays", 0, "shape", value=[2**40]), "up to byte"),
        (_set("arrays", 0, "dtype", value="|O"), "dtype '|O'"),
        (_set("arrays", value=[]), "32 body bytes, its arrays only 0"),
        (_set("round", value=-1), "`round` must be an integer >= 0; got -1"),
        (_set("worker", value=True), "`worker` must be an integer"),
        (_set("kind", value="pickle"), "unknown kind 'pickle'"),
    ],
)
def test_a_task_header_that_does_not_add_up_is_refused(
    change: Callable[[dict[str, Any]], None], rule: str
) -> None:
    frame = tampered(task_of([4, 5], [0.5, 2.0]), change)
    with pytest.raises(WireError) as caught:
        decode(frame, run_id=RUN)
    assert rule in str(caught.value)
    assert "\n" not in str(caught.value)


@given(message=results(), wrong=st.lists(st.integers(0, 3), max_size=5))
def test_a_result_names_each_of_its_slots_once(message: ResultMessage, wrong: list[int]) -> None:
    assume(len(wrong) != len(message.results) or len(set(wrong)) != len(wrong))
    with pytest.raises(WireError):
        decode(tampered(message, _set("fields", "slots", value=wrong)), run_id=RUN)


def test_decoded_arrays_are_read_only_views_of_the_frame() -> None:
    frame = bytearray(encode(result_of(np.arange(1000.0)), run_id=RUN))
    decoded = decode(frame, run_id=RUN)
    assert isinstance(decoded, ResultMessage)
    vector = decoded.results[0]
    assert not vector.flags.writeable
    assert vector.flags.aligned
    assert np.shares_memory(vector, np.frombuffer(frame, np.uint8))


def test_a_header_nested_too_deeply_is_refused() -> None:
    text = b"[" * 100_000
    prefix = struct.pack("<4sHHIQ", b"SGCF", SCHEMA_VERSION, 0, len(text), 0)
    with pytest.raises(WireError, match="not JSON"):
        decode(prefix + frame_module._digest(prefix, text) + text, run_id=RUN)
