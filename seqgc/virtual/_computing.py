"""What a worker answers, where its results are computed when its answer is due."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from seqgc.ports import Arrival, Flaw, FlawedResult, FloatArray, Task, WeightedPoints

__all__ = ["Compute", "answer"]

Compute: TypeAlias = Callable[[tuple[WeightedPoints, ...]], FloatArray]
"""Makes a mini-task's result of its data points; raises `FlawedResult` where parts are no use."""


def answer(task: Task, *, at: float, compute: Compute | None) -> Arrival:
    """Return the answer to a task, with its results or, if nothing computes them, without any.

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
