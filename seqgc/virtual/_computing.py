"""The answers of virtual workers, which compute their results when an answer is due."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TypeAlias

from seqgc.ports import (
    Arrival,
    Flaw,
    FlawedResult,
    FloatArray,
    PartialArrival,
    Task,
    WeightedPoints,
)

__all__ = ["Compute", "answer", "partial_answer"]

Compute: TypeAlias = Callable[[tuple[WeightedPoints, ...]], FloatArray]
"""A function that computes the result of a mini-task from its data points.

It raises `FlawedResult` if parts of the result cannot be used.
"""


def answer(task: Task, *, at: float, compute: Compute | None, but: Collection[int] = ()) -> Arrival:
    """Return the answer to a task, without the results of the items ``but``.

    It has no results if ``compute`` is None.

    Examples
    --------
    >>> answer(Task(round=3, worker=1, attempt=0, items=()), at=2.5, compute=None).round
    3
    """
    results: dict[int, FloatArray] = {}
    flaws: dict[str, Flaw] = {}
    if compute is not None:
        for number, item in enumerate(task.items):
            if number in but:
                continue
            try:
                results[item.slot] = compute(item.parts)
            except FlawedResult as flawed:
                results[item.slot] = flawed.result
                flaws |= flawed.flaws
    round, worker, attempt = task.round, task.worker, task.attempt
    return Arrival(round=round, worker=worker, attempt=attempt, at=at, results=results, flaws=flaws)


def partial_answer(
    task: Task, item: int, *, at: float, compute: Compute | None
) -> PartialArrival | None:
    """Return the answer to one item of a task, or None if the item's result has flaws.

    It has no result if ``compute`` is None.

    Examples
    --------
    >>> from seqgc.ports import WorkItem
    >>> task = Task(round=3, worker=1, attempt=0, items=(WorkItem(slot=7, parts=()),))
    >>> partial_answer(task, 0, at=2.5, compute=None).slot
    7
    """
    slot, parts = task.items[item].slot, task.items[item].parts
    try:
        results = {} if compute is None else {slot: compute(parts)}
    except FlawedResult:
        return None
    round, worker, attempt = task.round, task.worker, task.attempt
    return PartialArrival(
        round=round, worker=worker, attempt=attempt, at=at, slot=slot, results=results
    )
