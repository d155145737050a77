"""`answer`: the answer of a virtual worker, which computes its results when the answer is due."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from seqgc.ports import Arrival, Flaw, FlawedResult, FloatArray, Task, WeightedPoints

__all__ = ["Compute", "answer"]

Compute: TypeAlias = Callable[[tuple[WeightedPoints, ...]], FloatArray]
"""A function that computes the result of a mini-task from its data points.

It raises `FlawedResult` if parts of the result cannot be used.
"""


def answer(task: Task, *, at: float, compute: Compute | None) -> Arrival:
    """Return the answer to a task; it has no results if ``compute`` is None.

    Examples
    --------
    >>> answer(Task(round=3, worker=1, attempt=0, items=()), at=2.5, compute=None).round
    3
    """
    results: dict[int, FloatArray] = {}
    flaws: dict[str, Flaw] = {}
    if compute is not None:
        for item in task.items:
            try:
                results[item.slot] = compute(item.parts)
            except FlawedResult as flawed:
                results[item.slot] = flawed.result
                flaws |= flawed.flaws
    round, worker, attempt = task.round, task.worker, task.attempt
    return Arrival(round=round, worker=worker, attempt=attempt, at=at, results=results, flaws=flaws)
