"""Views of assignments and decodings that are computed on demand, because replays read few."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from seqgc.ports import BoolArray, Decoding, IntArray
from seqgc.schemes import Assignment, MiniTasks

__all__ = ["ByWorker", "Once", "numbered", "renumbered", "replicas"]


class ByWorker(Mapping[int, MiniTasks]):
    """The mini-tasks of some workers of an assignment, made when they are read."""

    def __init__(self, assignment: Assignment, workers: Sequence[int]) -> None:
        self._assignment = assignment
        self._workers: Collection[int] = (
            workers if isinstance(workers, range) else dict.fromkeys(workers)
        )

    def __getitem__(self, worker: int) -> MiniTasks:
        if worker not in self._workers:
            raise KeyError(worker)
        return self._assignment[worker]

    def __iter__(self) -> Iterator[int]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)


class Once:
    """A decoding that is computed at the first call, and stored."""

    __slots__ = ("_decoding", "_make")

    def __init__(self, make: Callable[[], Decoding]) -> None:
        self._make = make
        self._decoding: Decoding | None = None

    def __call__(self) -> Decoding:
        if self._decoding is None:
            self._decoding = self._make()
        return self._decoding


def numbered(own: Assignment, first_job: int) -> Assignment:
    """Return an assignment with the run's job numbers, in which the schedule begins at a job."""
    if first_job == 0:
        return own
    return Assignment(
        own.busy,
        lambda worker: tuple(replace(task, job=first_job + task.job) for task in own[worker]),
    )


def renumbered(own: Decoding, first_job: int, first_round: int) -> Decoding:
    """Return a decoding with the run's numbers, in which the schedule begins at a job and round."""
    terms = own.terms
    if first_round > 0:
        terms = tuple(replace(term, round=first_round + term.round) for term in terms)
    return replace(own, job=first_job + own.job, terms=terms)


def replicas(assignment: Assignment, excused: BoolArray) -> list[IntArray]:
    """Return the groups of two or more workers that compute the same mini-task."""
    groups: defaultdict[object, list[int]] = defaultdict(list)
    for worker, tasks in enumerate(assignment):
        for task in tasks if not excused[worker] else ():
            if task.cover is not None:
                groups[task.job, task.cover, task.place].append(worker)
    return [np.array(workers) for workers in groups.values() if len(workers) > 1]
