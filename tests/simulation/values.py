"""Answers whose numbers are wrong: not finite, said so by the wire; or finite, and lies."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from seqgc.backends import event_of
from seqgc.ports import Arrival, FloatArray, Task
from seqgc.wire import TaskMessage, decode, encode

_STRANGE = (np.nan, np.inf, -np.inf)


def answer(task: Task, results: Mapping[int, FloatArray], *, at: float) -> Arrival:
    """Return the answer with these results; what is not finite is named, as by any worker."""
    if all(np.isfinite(vector).all() for vector in results.values()):
        return Arrival(
            round=task.round, worker=task.worker, attempt=task.attempt, at=at, results=results
        )
    request = TaskMessage(task=task)
    received = decode(encode(request.result(results), run_id="run"), run_id="run")
    event = event_of(received, at=at)
    assert isinstance(event, Arrival)
    return event


def not_finite(results: Mapping[int, FloatArray], amount: float) -> Mapping[int, FloatArray]:
    """Return results of which one has a number that is none."""
    return _changed(results, amount, lambda _: _STRANGE[int(300 * amount) % 3])


def lie(results: Mapping[int, FloatArray], amount: float) -> Mapping[int, FloatArray]:
    """Return results of which one is off, by little or by much, each time by something else."""
    return _changed(results, amount, lambda number: number + 0.05 + 30 * amount**3)


def _changed(results, amount, change):  # type: ignore[no-untyped-def]
    if not results:
        return results
    slot = sorted(results)[int(1000 * amount) % len(results)]
    vector = results[slot].copy()
    place = int(100 * amount) % (len(vector) - 1)  # the last is the loss
    vector[place] = change(vector[place])
    return {**results, slot: vector}
