"""Messages to encode, and what it means that two of them are the same."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from seqgc.ports import Task, WeightedPoints, WeightRef, WorkItem
from seqgc.wire import (
    CancelMessage,
    FailureMessage,
    Message,
    ReadyMessage,
    ResultMessage,
    TaskMessage,
)

RUN = "run-1"

counts = st.integers(0, 2**40)
names = st.text(min_size=1, max_size=20)
lines = st.text(st.characters(categories=("L", "N", "P")), max_size=40)
finite = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def weighted_points(draw: st.DrawFn) -> WeightedPoints:
    size = draw(st.integers(0, 6))
    model = draw(names)
    weights = WeightRef(
        model=model,
        version=draw(counts),
        digest=draw(st.text("0123456789abcdef", min_size=64, max_size=64)),
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
    return TaskMessage(task=task, delay_s=draw(st.floats(0, 1e6)))


@st.composite
def results(draw: st.DrawFn) -> ResultMessage:
    narrow = st.floats(allow_nan=False, allow_infinity=False, width=32)
    dtype, values = draw(st.sampled_from([(np.float32, narrow), (np.float64, finite)]))
    vectors = hnp.arrays(dtype, st.integers(0, 9), elements=values)
    return ResultMessage(
        round=draw(counts),
        worker=draw(counts),
        attempt=draw(counts),
        results=draw(st.dictionaries(st.integers(0, 50), vectors, max_size=4)),
    )


messages: st.SearchStrategy[Message] = st.one_of(
    tasks(),
    results(),
    st.builds(FailureMessage, round=counts, worker=counts, attempt=counts, reason=lines),
    st.builds(CancelMessage, round=counts, worker=counts),
    st.builds(ReadyMessage, worker=counts, problem=lines),
)


def content(message: Message) -> object:
    """Return a message as nested tuples of plain values and raw bytes, which `==` compares."""
    match message:
        case TaskMessage(task=task, delay_s=delay_s):
            items = tuple((item.slot, tuple(map(_part, item.parts))) for item in task.items)
            return "task", task.round, task.worker, task.attempt, delay_s, items
        case ResultMessage(results=vectors):
            pairs = tuple((slot, _vector(vector)) for slot, vector in vectors.items())
            return "result", message.round, message.worker, message.attempt, pairs
        case other:
            return other


def _part(part: WeightedPoints) -> object:
    return part.model, part.weights, _vector(part.points), _vector(part.coefficients)


def _vector(vector: npt.NDArray[np.generic]) -> object:
    return vector.dtype, vector.shape, vector.tobytes()
