"""`Assignment`: who does what in a round, made when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from seqgc.ports import BoolArray, MiniTask

MiniTasks = tuple[MiniTask, ...]


class Assignment:
    """Each worker's mini-tasks of a round, in order of slot; () for one that has nothing to do.

    Decisions do not depend on a single mini-task: a replay reads none. So ``tasks_of`` makes those
    of a ``busy`` (n,) worker when they are asked for, once each; what the closing of the round
    changes must not change them. Making those of 256 workers takes longer than to decide the round,
    and the first coded one designs its code's coefficients.

    Examples
    --------
    >>> import numpy as np
    >>> task = MiniTask(job=0, slot=0, chunks=np.array([0]), coefficients=np.ones(1))
    >>> assignment = Assignment(np.array([True, False]), lambda worker: (task,))
    >>> assignment.idle, [len(tasks) for tasks in assignment]
    (False, [1, 0])
    """

    def __init__(self, busy: BoolArray, tasks_of: Callable[[int], MiniTasks]) -> None:
        self.busy, self.idle = busy, not np.count_nonzero(busy)
        self._tasks_of = tasks_of
        self._tasks: dict[int, MiniTasks] = {}

    def __len__(self) -> int:
        return len(self.busy)

    def __iter__(self) -> Iterator[MiniTasks]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, worker: int) -> MiniTasks:
        worker = range(len(self))[worker]
        if worker not in self._tasks:
            self._tasks[worker] = self._tasks_of(worker) if self.busy[worker] else ()
        return self._tasks[worker]
