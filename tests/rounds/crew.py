"""A backend of virtual workers whose every answer a test decides; time passes by itself."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import TypeAlias

from seqgc.ports import Arrival, Failure, Task

What: TypeAlias = Callable[[Task], float]
"""The seconds that a task takes to its answer or, if they are negative, to its failure."""


class Crew:
    """Workers that do all their tasks side by side, each as ``what`` says; a `ports.Backend`.

    Infinitely many seconds: nothing is heard of it. Who is cancelled is not heard of again.
    """

    def __init__(self, what: What) -> None:
        self._what, self._now, self._count = what, 0.0, itertools.count()
        self._out: list[tuple[float, int, Task, bool]] = []

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:  # noqa: ARG002
        for task in tasks:
            seconds = self._what(task)
            at = self._now + abs(seconds)
            heapq.heappush(self._out, (at, next(self._count), task, seconds < 0))
        return [self._now] * len(tasks)

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        self._out = [
            each for each in self._out if each[2].round != round or each[2].worker not in workers
        ]
        heapq.heapify(self._out)

    def receive(self, until: float) -> Arrival | Failure | None:
        if not self._out or self._out[0][0] > until:
            self._now = max(self._now, until)
            return None
        self._now, _, task, fails = heapq.heappop(self._out)
        round, worker, attempt = task.round, task.worker, task.attempt
        if fails:
            return Failure(round=round, worker=worker, attempt=attempt, at=self._now, reason="gone")
        return Arrival(round=round, worker=worker, attempt=attempt, at=self._now, results={})

    def close(self) -> None:
        self._out.clear()
