"""Messages to encode, and what it means that two of them are the same."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from seqgc.ports import PAYLOADS, Flaw, Task, WeightedPoints, WeightRef, WorkItem
from seqgc.wire import (
    MAX_FRAME_BYTES,
    STORE_KINDS,
    CancelMessage,
    FailureMessage,
    InvokeMessage,
    LeaveMessage,
    Message,
    ReadyMessage,
    ReceiptMessage,
    ResultMessage,
    StayMessage,
    StoreRef,
    Subject,
    TaskMessage,
    WorkloadRef,
)
from tests.wire.frames import RUN

counts = st.integers(0, 2**40)
names = st.text(min_size=1, max_size=20)
lines = st.text(st.characters(categories=("L", "N", "P")), max_size=40)
flaws = st.builds(Flaw, kind=st.sampled_from(["diverged", "raised"]), why=lines)
finite = st.floats(allow_nan=False, allow_infinity=False)
payloads = st.none() | st.sampled_from(PAYLOADS)
codes = st.text(max_size=100)
digests = st.text("0123456789abcdef", min_size=64, max_size=64)
subjects = st.builds(
    Subject,
    round=counts,
    worker=counts,
    attempt=counts,
    code=codes,
    weights_digest=st.just("") | digests,
)
settings = st.dictionaries(
    names,
    st.recursive(
        st.none() | st.booleans() | counts | finite | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
        max_leaves=5,
    ),
    max_size=3,
)


@st.composite
def weighted_points(draw: st.DrawFn) -> WeightedPoints:
    size = draw(st.integers(0, 6))
    model = draw(names)
    weights = WeightRef(
        model=model,
        version=draw(counts),
        digest=draw(digests),
        dtype=draw(st.sampled_from(["float16", "float32", "float64"])),
        size=draw(counts),
    )
    points = draw(hnp.arrays(np.intp, size, elements=st.integers(0, 2**62)))
    coefficients = draw(hnp.arrays(np.float64, size, elements=finite))
    return WeightedPoints(model=model, weights=weights, points=points, coefficients=coefficients)


@st.composite
def tasks(draw: st.DrawFn) -> TaskMessage:
    slots = draw(st.lists(st.integers(0, 50), max_size=4, unique=True))
    items = tuple(
        WorkItem(slot=slot, parts=tuple(draw(st.lists(weighted_points(), max_size=3))))
        for slot in slots
    )
    task = Task(round=draw(counts), worker=draw(counts), attempt=draw(counts), items=items)
    return TaskMessage(
        task=task,
        delay_s=draw(st.floats(0, 1e6)),
        payload=draw(payloads),
        rounding_seed=draw(st.none() | counts),
        code=draw(codes),
    )


@st.composite
def brought_weights(draw: st.DrawFn) -> tuple[WeightRef, npt.NDArray[np.floating]]:
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    params = draw(hnp.arrays(dtype, st.integers(0, 5)))
    ref = WeightRef(
        model=draw(names),
        version=draw(counts),
        digest=hashlib.sha256(params.tobytes()).hexdigest(),
        dtype=params.dtype.name,
        size=params.size,
    )
    return ref, params


workloads = st.builds(WorkloadRef, name=names, settings=settings)
stores = st.builds(
    StoreRef,
    kind=st.sampled_from(STORE_KINDS),
    location=names.map(lambda name: f"{name}/{RUN}"),
)


@st.composite
def invocations(draw: st.DrawFn) -> InvokeMessage:
    return InvokeMessage(
        request=draw(tasks()),
        workload=draw(workloads),
        store=draw(stores),
        inline_limit_bytes=draw(counts),
        weights=tuple(draw(st.lists(brought_weights(), max_size=3))),
    )


@st.composite
def results(draw: st.DrawFn) -> ResultMessage:
    """Draw results that their format holds exactly."""
    payload = draw(payloads)
    dtype = draw(st.sampled_from([np.float32, np.float64])) if payload is None else np.float32
    if payload == "float64":
        dtype = np.float64
    # Of 8 significant bits, as bfloat16, and of a range that float16 has whatever the scale.
    coarse = st.builds(lambda m, e: m * 2.0**e, st.integers(-255, 255), st.integers(-14, 0))
    width = np.finfo(dtype).bits
    fine = st.floats(allow_nan=False, allow_infinity=False, width=width)
    elements = coarse if payload in ("float16", "bfloat16") else fine
    vectors = hnp.arrays(dtype, st.integers(0, 9), elements=elements)
    return ResultMessage(
        payload=payload,
        rounding_seed=draw(st.none() | counts),
        subject=draw(subjects),
        results=draw(st.dictionaries(st.integers(0, 50), vectors, max_size=4)),
        flaws=draw(st.dictionaries(names, flaws, max_size=2)),
    )


messages: st.SearchStrategy[Message] = st.one_of(
    tasks(),
    invocations(),
    results(),
    st.builds(
        FailureMessage,
        subject=subjects,
        reason=lines,
    ),
    st.builds(
        ReceiptMessage,
        subject=subjects,
        key=names,
        digest=digests,
        size_bytes=st.integers(0, MAX_FRAME_BYTES),
    ),
    st.builds(CancelMessage, round=counts, worker=counts),
    st.builds(ReadyMessage, worker=counts, problem=lines),
    st.builds(
        StayMessage,
        worker=counts,
        workload=workloads,
        store=stores,
        host=names,
        port=st.integers(1, 65535),
        certificate=st.text(max_size=20),
        call=st.text("0123456789abcdef", min_size=32, max_size=32),
        token=digests,
        beat_s=st.floats(0.01, 60.0),
        leave_s=st.floats(0.01, 900.0),
        end_s=st.floats(0.01, 900.0),
        start_s=st.floats(0.0, 900.0),
    ),
    st.builds(
        LeaveMessage,
        worker=counts,
        reason=lines,
        keeps=st.none() | st.lists(st.tuples(counts, counts), max_size=3),
    ),
)


def content(message: Message) -> object:
    """Return a message as nested tuples of plain values and raw bytes, which `==` compares."""
    match message:
        case TaskMessage(task=task, delay_s=delay_s):
            items = tuple((item.slot, tuple(map(_part, item.parts))) for item in task.items)
            address = (task.round, task.worker, task.attempt)
            rounding = (message.payload, message.rounding_seed)
            return "task", *address, delay_s, items, *rounding, message.subject
        case InvokeMessage():
            brought = tuple((ref, _vector(params)) for ref, params in message.weights)
            where = (message.workload.canonical, message.store, message.inline_limit_bytes)
            return "invoke", content(message.request), *where, brought
        case ResultMessage(results=vectors):
            pairs = tuple((slot, _vector(vector)) for slot, vector in vectors.items())
            return (
                "result",
                pairs,
                message.payload,
                message.rounding_seed,
                message.subject,
                tuple(message.flaws.items()),
            )
        case StayMessage():
            fields = {name: getattr(message, name) for name in message.__struct_fields__}
            return "stay", tuple((fields | {"workload": message.workload.canonical}).items())
        case other:
            return other


def _part(part: WeightedPoints) -> object:
    return part.model, part.weights, part.span, _vector(part.points), _vector(part.coefficients)


def _vector(vector: npt.NDArray[np.generic]) -> object:
    return vector.dtype, vector.shape, vector.tobytes()
