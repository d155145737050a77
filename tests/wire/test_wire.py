"""Frames come back as they were sent, or not at all."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
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
    InvokeMessage,
    ResultMessage,
    StoreRef,
    Subject,
    TaskMessage,
    WorkloadRef,
    decode,
    encode,
)
from tests.wire.frames import RUN, framed, setting, taken_apart, tampered
from tests.wire.messages import content, messages, results

INVOCATION = InvokeMessage(
    request=TaskMessage(task=Task(round=2, worker=1, attempt=0, items=())),
    workload=WorkloadRef(name="models", settings={"lr": 12345}),
    store=StoreRef(kind="inline"),
    inline_limit_bytes=1000,
)
SUBJECT = Subject(round=2, worker=1, attempt=0)
REF = WeightRef(model="cnn", version=7, digest="ab" * 32, dtype="float32", size=3)


def result_of(*vectors: FloatArray) -> ResultMessage:
    return ResultMessage(subject=SUBJECT, results=dict(enumerate(vectors)))


def task_of(points: list[int], coefficients: list[float]) -> TaskMessage:
    part = WeightedPoints(
        model="cnn",
        weights=REF,
        points=np.array(points, dtype=np.intp),
        coefficients=np.array(coefficients),
    )
    item = WorkItem(slot=0, parts=(part,))
    return TaskMessage(task=Task(round=2, worker=1, attempt=0, items=(item,)))


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
        inside = data.draw(st.sampled_from([header, header["message"]]))
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
    frame[4] = other = SCHEMA_VERSION + 1
    with pytest.raises(WireError, match=rf"schema version {other}"):
        decode(frame, run_id=RUN)


@pytest.mark.parametrize(("offset", "form"), [(24, "<I"), (28, "<Q")])
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
    with pytest.raises(WireError, match="must be finite"):
        encode(result_of(vector), run_id=RUN)
    with pytest.raises(WireError, match="`values` must be finite"):
        decode(raw_result(vector), run_id=RUN)


@pytest.mark.parametrize("payload", ["float16", "bfloat16"])
def test_a_16_bit_result_that_is_not_finite_is_not_taken(payload: Payload) -> None:
    values = np.array([0, 0x7C00 if payload == "float16" else 0x7F80], np.uint16)
    if payload == "float16":
        values = values.view(np.float16)
    frame = raw_result(values, payload=payload, dtype="float32")
    with pytest.raises(WireError, match="result frame: `values` must be finite"):
        decode(frame, run_id=RUN)


def raw_result(
    *vectors: npt.NDArray[Any],
    payload: object = None,
    dtype: object = None,
    pieces: object = None,
) -> bytes:
    """Return the frame of results that nobody has checked."""
    message = {
        "type": "result",
        "subject": {"round": 2, "worker": 1, "attempt": 0},
        "payload": payload,
        "rounding_seed": None,
        "dtype": dtype or vectors[0].dtype.name,
        "results": [
            {"slot": slot, "pieces": [[vector.size, 0]] if pieces is None else pieces}
            for slot, vector in enumerate(vectors)
        ],
    }
    text = json.dumps({"run": RUN, "message": message}).encode()
    return framed(text, b"".join(vector.tobytes() for vector in vectors))


SHORTS = np.ones(2, np.uint16)


@pytest.mark.parametrize(
    ("vector", "changes", "rule"),
    [
        (SHORTS, {"dtype": "float16"}, "Invalid enum value 'float16' - at `$.message.dtype`"),
        (SHORTS, {"dtype": "uint16"}, "Invalid enum value 'uint16'"),
        (np.ones(2), {"dtype": "float32"}, "frame has 16 body bytes, its header describes 8"),
        (np.ones(2, "f4"), {"dtype": "float64"}, "8 body bytes, its header describes 16 or more"),
        (SHORTS, {"payload": "float64"}, "4 body bytes, its header describes 16 or more"),
        (
            np.ones(2),
            {"payload": "float64", "dtype": "float32"},
            "must be float64 for the format float64",
        ),
        (SHORTS, {"pieces": [[2, 1009]]}, "integer from -1088 to 1008; got 1009"),
        (SHORTS, {"pieces": [[2, -1089]]}, "integer from -1088 to 1008; got -1089"),
        (SHORTS, {"pieces": [[2, 10**40]]}, "integer from -1088 to 1008; got 1000"),
        (
            SHORTS,
            {"pieces": [[2, True]]},
            "got `bool` - at `$.message.results[0].pieces[0][1]`",
        ),
        (SHORTS, {"pieces": [[2, 0.5]]}, "Expected `int`, got `float`"),
        (SHORTS, {"pieces": [[2]]}, "Expected `array` of length 2"),
        (SHORTS, {"pieces": [[2, 0, 0]]}, "Expected `array` of length 2"),
        (SHORTS, {"pieces": [0]}, "Expected `array`, got `int`"),
        (SHORTS, {"pieces": 0}, "Expected `array`, got `int`"),
        (SHORTS, {"payload": "float8"}, "Invalid enum value 'float8' - at `$.message.payload`"),
        (SHORTS, {"payload": ["bfloat16"]}, "Expected `str | null`, got `array`"),
        (
            np.full(2, 1e300),
            {"payload": "float64", "pieces": [[2, 900]]},
            "must be finite, also after multiplication by 2**exponent",
        ),
    ],
)
def test_results_that_contradict_their_format_are_refused(
    vector: npt.NDArray[Any], changes: dict[str, Any], rule: str
) -> None:
    given = {"payload": "bfloat16", "dtype": "float32"} if vector is SHORTS else {}
    frame = raw_result(vector, **given | changes)
    with pytest.raises(WireError) as caught:
        decode(frame, run_id=RUN)
    assert rule in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "lengths",
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
    lengths: list[int], size: int
) -> None:
    vector = np.ones(size)
    with pytest.raises(
        WireError, match=r"Expected `(array|int)` |body bytes, its header describes"
    ):
        decode(raw_result(vector, pieces=[[each, 0] for each in lengths]), run_id=RUN)
    with pytest.raises(WireError, match=f"a result of {size} numbers must be 1 to 4096 pieces"):
        encode(replace(result_of(vector), pieces={0: tuple(lengths)}), run_id=RUN)


@pytest.mark.parametrize(("parts", "pieces"), [(0, 1), (2048, 4096), (2049, 2049), (5000, 1)])
def test_a_result_of_more_parts_than_pieces_may_be_travels_whole(parts: int, pieces: int) -> None:
    part = WeightedPoints(
        model="cnn",
        weights=REF,
        points=np.zeros(0, np.intp),
        coefficients=np.zeros(0),
        pieces=() if pieces == parts else (REF.size, 1),
    )
    item = WorkItem(slot=0, parts=(part,) * parts)
    asked = TaskMessage(task=Task(round=2, worker=1, attempt=0, items=(item,)))
    each = REF.size if pieces == parts else REF.size + 1
    answer = asked.result({0: np.arange(1.0 * each * parts)})
    assert answer.pieces is not None
    assert len(answer.pieces[0]) == pieces
    assert np.array_equal(received(answer)[0], answer.results[0])


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
        model="m", weights=ref, points=np.array([0]), coefficients=np.array([1.0]), pieces=(3, 1)
    )
    asked = TaskMessage(
        task=Task(round=0, worker=0, attempt=0, items=(WorkItem(slot=0, parts=(part, part)),)),
        payload="float16",
    )
    result = np.array([1e-6, 2e-6, 5e-7, 1e6, 3.0, 2.0, 1.0, 1e-9], np.float32)
    (arrived,) = received(asked.result({0: result})).values()
    np.testing.assert_allclose(arrived, result, rtol=2**-11)
    (in_one_piece,) = received(replace(asked.result({0: result}), pieces=None)).values()
    assert in_one_piece[2] == 0.0


def asked_of(
    *models: str, payload: Payload | None = None, pieces: tuple[int, ...] = ()
) -> TaskMessage:
    """Ask for one result of parts of these models, with three parameters each."""
    ref = WeightRef(model="m", version=0, digest="0" * 64, dtype="float32", size=3)
    points, coefficients = np.array([0]), np.array([1.0])
    parts = tuple(
        WeightedPoints(
            model=name, weights=ref, points=points, coefficients=coefficients, pieces=pieces
        )
        for name in models
    )
    task = Task(round=0, worker=0, attempt=0, items=(WorkItem(slot=0, parts=parts),))
    seed = None if payload is None else 9
    return TaskMessage(task=task, payload=payload, rounding_seed=seed)


@pytest.mark.parametrize("payload", [None, "float16", "bfloat16"])
@pytest.mark.parametrize("pieces", [(3,), (3, 1), (3, 1, 2)], ids=["", "a loss", "weights"])
@pytest.mark.parametrize("wrong", [np.nan, -np.inf])
def test_a_part_that_is_not_finite_names_its_model_and_leaves_the_others_bits(
    wrong: float, pieces: tuple[int, ...], payload: Payload | None
) -> None:
    asked, size = asked_of("a", "b", "c", payload=payload, pieces=pieces), sum(pieces)
    fine = np.random.default_rng(0).standard_normal(3 * size).astype(np.float32)
    bad = fine.copy()
    bad[2 * size - 1] = wrong
    answer = decode(encode(asked.result({0: bad}), run_id=RUN), run_id=RUN)
    assert isinstance(answer, ResultMessage)
    asked.check(answer)
    assert list(answer.flaws) == ["b"]
    expected = received(asked.result({0: fine}))[0].copy()
    expected[size : 2 * size] = 0
    assert np.array_equal(answer.results[0], expected)
    assert np.isnan(bad[2 * size - 1]) == np.isnan(wrong), "the worker's own array is as it was"


def test_a_result_of_unknown_parts_names_all_models_and_a_strange_model_is_refused() -> None:
    asked = asked_of("a", "b")
    answer = asked.result({0: np.array([1.0, np.nan])})
    assert (list(answer.flaws), answer.results[0].tolist()) == (["a", "b"], [0.0, 0.0])
    asked.check(answer)
    with pytest.raises(WireError, match="model 'z'"):
        asked.check(replace(answer, flaws=answer.flaws | {"z": answer.flaws["a"]}))


def readdressed(message: ResultMessage, **address: int) -> ResultMessage:
    return replace(message, subject=msgspec.structs.replace(message.subject, **address))


def test_stochastic_rounding_depends_on_seed_and_address_alone() -> None:
    vector = np.random.default_rng(2).standard_normal(200).astype(np.float32)
    message = replace(result_of(vector, vector), payload="bfloat16", rounding_seed=3)
    first = received(message)
    assert np.array_equal(first[0], received(message)[0])
    others = [
        received(replace(message, rounding_seed=None))[0],
        received(replace(message, rounding_seed=4))[0],
        received(readdressed(message, round=9))[0],
        received(readdressed(message, worker=9))[0],
        received(readdressed(message, attempt=9))[0],
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
        (task_of([0, 1], [1.0]), r"got shapes \(2,\) and \(1,\)"),
    ],
)
def test_a_task_that_makes_no_sense_is_not_sent(message: TaskMessage, rule: str) -> None:
    with pytest.raises(WireError, match=rule):
        encode(message, run_id=RUN)


PART = ("items", 0, "parts", 0)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (setting(*PART, "count", value=3), "32 body bytes, its header describes 48 or more"),
        (setting(*PART, "count", value=1), "32 body bytes, its header describes 16"),
        (setting(*PART, "count", value=2**40), "its header describes 8796093022208 or more"),
        (setting(*PART, "count", value=2**53 + 1), "Expected `int` <= 9007199254740992"),
        (
            setting(*PART, "weights", "digest", value="AB" * 32),
            "at `$.message.items[0].parts[0].w",
        ),
        (setting(*PART, "weights", "digest", value="ab" * 32 + "\n"), "weights.digest`"),
        (setting(*PART, "weights", "dtype", value="object"), "Invalid enum value 'object'"),
        (setting(*PART, "weights", "pickle", value="x"), "unknown field `pickle`"),
        (setting("delay_s", value=-1), "Expected `float` >= 0.0 - at `$.message.delay_s`"),
        (
            setting("payload", value="float8"),
            "Invalid enum value 'float8' - at `$.message.payload`",
        ),
        (setting("payload", value=16), "Expected `str | null`, got `int` - at `$.message.payload`"),
        (setting("rounding_seed", value=-1), "Expected `int` >= 0 - at `$.message.rounding_seed`"),
        (setting("items", value=[]), "weights 'abababababab'…, its task uses ''…"),
        (setting("subject", "round", value=-1), "`int` >= 0 - at `$.message.subject.round`"),
        (setting("subject", "round", value=10**400), "Expected `int` <= 9007199254740992"),
        (setting("subject", "worker", value=True), "got `bool` - at `$.message.subject.worker`"),
        (setting("type", value="pickle"), "Invalid value 'pickle' - at `$.message.type`"),
        (setting("bad\nkey", value=1), "unknown field `bad key` - at `$.message`"),
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


@given(message=results(), slots=st.lists(st.integers(0, 3), min_size=2, max_size=5))
def test_a_result_names_each_of_its_slots_once(message: ResultMessage, slots: list[int]) -> None:
    assume(message.results and len(set(slots)) < len(slots))

    def change(header: dict[str, Any]) -> None:
        first, *_ = header["message"]["results"]
        header["message"]["results"] = [{**first, "slot": slot} for slot in slots]

    with pytest.raises(WireError, match="repeats a slot"):
        decode(tampered(message, change), run_id=RUN)


def test_decoded_arrays_are_read_only_views_of_the_frame() -> None:
    frame = bytearray(encode(result_of(np.arange(1000.0)), run_id=RUN))
    decoded = decode(frame, run_id=RUN)
    assert isinstance(decoded, ResultMessage)
    vector = decoded.results[0]
    assert not vector.flags.writeable
    assert vector.flags.aligned
    assert np.shares_memory(vector, np.frombuffer(frame, np.uint8))


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"run":' * 100_000, b'{"run":"r"', b"", b"{}x"])
def test_a_header_that_is_no_json_object_is_refused(text: bytes) -> None:
    with pytest.raises(WireError) as caught:
        decode(framed(text), run_id=RUN)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("depth", [10, 300, 600, 800, 900, 940, 960, 980, 1000, 3000, 1_000_000])
def test_a_header_nested_too_deeply_is_refused_in_one_line(opening: str, depth: int) -> None:
    settings = opening * depth + "1" + ("]" if opening == "[" else "}") * depth
    text = taken_apart(encode(INVOCATION, run_id=RUN))[0].decode()
    assert '"lr":12345' in text
    try:
        decode(framed(text.replace('"lr":12345', f'"lr":{settings}').encode()), run_id=RUN)
    except WireError as error:
        assert "\n" not in str(error)  # noqa: PT017  where the limit lies is the interpreter's
    else:
        assert depth < 1000


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 400 + ".0", "9" * 100_000, "NaN"])
def test_a_number_that_no_float_or_integer_is_is_refused(number: str) -> None:
    text = taken_apart(encode(INVOCATION, run_id=RUN))[0].decode()
    with pytest.raises(WireError, match=r"out of range|malformed"):
        decode(framed(text.replace("12345", number).encode()), run_id=RUN)


@pytest.mark.parametrize("version", [*range(SCHEMA_VERSION), SCHEMA_VERSION + 1])
def test_a_whole_frame_of_another_version_is_refused_with_a_remedy(version: int) -> None:
    text, body = taken_apart(encode(result_of(np.ones(3)), run_id=RUN))
    with pytest.raises(WireError, match=f"schema version {version},"):
        decode(framed(text, body, version=version), run_id=RUN)


@given(message=messages)
def test_a_frame_without_a_digest_comes_back_where_none_is_due(message: Any) -> None:
    frame = encode(message, run_id=RUN, sealed=False)
    assert content(decode(frame, run_id=RUN, sealed=False)) == content(message)


@given(message=messages, data=st.data())
def test_a_changed_byte_without_a_digest_is_a_message_or_a_wire_error(
    message: Any, data: st.DataObject
) -> None:
    frame = bytearray(encode(message, run_id=RUN, sealed=False))
    frame[data.draw(st.integers(0, len(frame) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        decode(frame, run_id=RUN, sealed=False)
    except WireError as error:
        line = str(error)
        assert "\n" not in line


@pytest.mark.parametrize("sealed", [True, False])
def test_a_digest_is_neither_left_out_nor_ignored(sealed: bool) -> None:
    frame = encode(CancelMessage(round=0, worker=0), run_id=RUN, sealed=sealed)
    with pytest.raises(WireError, match=rf"flags must be {int(sealed)} .*, got {int(not sealed)}"):
        decode(frame, run_id=RUN, sealed=not sealed)


def test_the_digest_is_xxh3_128_of_all_that_follows_it() -> None:
    frame = encode(result_of(np.arange(5.0)), run_id=RUN)
    assert frame == framed(*taken_apart(frame))
    assert (len(frame) - 40) % 16 == 0  # the arrays are aligned
