"""Assignments and decodings that are computed only when they are read: replays read few of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from seqgc.ports import BoolArray, Decoding, IntArray
from seqgc.schemes import Assignment, MiniTasks

__all__ = ["ByWorker", "Once", "numbered", "renumbered", "replicas"]


class ByWorker(Mapping[int, MiniTasks]):
    """The mini-tasks of some of the workers of an assignment, created when they are read."""

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
    """Return a schedule's assignment with the run's numbers of jobs.

    ``own`` has the schedule's numbers. ``first_job`` is the run's number of the schedule's first
    job.
    """
    if first_job == 0:
        return own
    return Assignment(
        own.busy,
        lambda worker: tuple(replace(task, job=first_job + task.job) for task in own[worker]),
    )


def renumbered(own: Decoding, first_job: int, first_round: int) -> Decoding:
    """Return a schedule's decoding with the run's numbers of jobs and rounds.

    ``own`` has the schedule's numbers. ``first_job`` and ``first_round`` are the run's numbers of
    the schedule's first job and round.
    """
    terms = own.terms
    if first_round > 0:
        terms = tuple(replace(term, round=first_round + term.round) for term in terms)
    return replace(own, job=first_job + own.job, terms=terms)


def replicas(assignment: Assignment, excused: BoolArray) -> list[IntArray]:
    """Return the groups of two or more workers that compute the same mini-task.

    The workers marked in ``excused`` (n,) are left out.
    """
    groups: defaultdict[object, list[int]] = defaultdict(list)
    for worker, tasks in enumerate(assignment):
        for task in tasks if not excused[worker] else ():
            if task.cover is not None:
                groups[task.job, task.cover, task.place].append(worker)
    return [np.array(workers) for workers in groups.values() if len(workers) > 1]
