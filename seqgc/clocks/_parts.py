from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from seqgc.errors import ParameterError, require_int
from seqgc.ports import FloatArray, MiniTask, Update
from seqgc.rounds import part_task, part_update

__all__ = ["Parts"]


class Parts:
    """The owners of the ``n`` parts of each job, with ``wpc`` >= 1 jobs in a clock.

    At first, worker p owns part p, and this stays its *own* part while another worker has it.
    ``shares`` (n,) are the loads of the parts in one job, as shares of a batch; by default they are
    equal. If a worker has several parts, its own part comes first. The slot of a result (its number
    within the task's answer) depends on the worker, the part and the job, but not on the other
    parts that the worker has.

    Raises
    ------
    ParameterError
        If an argument breaks its rule.

    Examples
    --------
    >>> parts = Parts(3, wpc=2)
    >>> parts.hand_over(2, [0, 1])
    [0]
    >>> parts.owners, parts.of(0), [task.slot for task in parts.mini_tasks(0, (2,), range(4, 6))]
    ((0, 1, 0), (0, 2), [4, 5])
    >>> parts.bring_home(2)
    >>> parts.owners
    (0, 1, 2)
    """

    def __init__(self, n: int, *, wpc: int = 1, shares: FloatArray | None = None) -> None:
        self.n: Final = require_int("n", n, least=1)
        self._wpc = require_int("wpc", wpc, least=1)
        self._shares = np.full(n, 1 / n) if shares is None else np.asarray(shares, dtype=float)
        if self._shares.shape != (n,):
            raise ParameterError(
                "shares", f"must have shape ({n},), one load per part", self._shares.shape
            )
        self._of: list[tuple[int, ...]] = []  # by worker, its parts
        self._loads: dict[int, FloatArray] = {}  # by number of jobs, the loads (n,) of the workers
        self.give(range(n))

    @property
    def owners(self) -> tuple[int, ...]:
        """The worker that computes each part, (n,)."""
        by_part = {part: worker for worker, parts in enumerate(self._of) for part in parts}
        return tuple(by_part[part] for part in range(self.n))

    def of(self, worker: int) -> tuple[int, ...]:
        """Return the parts that a worker owns, its own part first."""
        return self._of[worker]

    def others(self, worker: int, *, but: Container[int]) -> list[int]:
        """Return the other workers that have parts, except the workers in ``but``.

        The order begins with the worker after ``worker``, and wraps around after worker n - 1.
        """
        following = ((worker + step) % self.n for step in range(1, self.n))
        return [each for each in following if self._of[each] and each not in but]

    def give(self, owners: Sequence[int]) -> None:
        """Set the owner of each part: ``owners`` (n,) are workers."""
        of: list[list[int]] = [[] for _ in range(self.n)]
        for part, worker in enumerate(owners):
            of[worker].append(part)
        self._own([sorted(parts, key=lambda p: p != worker) for worker, parts in enumerate(of)])

    def hand_over(self, worker: int, others: Sequence[int]) -> list[int]:
        """Give each part of a worker to the worker of ``others`` that has the fewest parts.

        Return the new owners, one for each part.
        """
        of = [list(parts) for parts in self._of]
        parts, of[worker] = of[worker], []
        owners: list[int] = []
        for part in parts:
            owners.append(min(others, key=lambda other: len(of[other])))
            of[owners[-1]].append(part)
        self._own(of)
        return owners

    def bring_home(self, worker: int) -> None:
        """Give a worker its own part back."""
        of = [[part for part in parts if part != worker] for parts in self._of]
        of[worker].insert(0, worker)
        self._own(of)

    def _own(self, of: Iterable[Sequence[int]]) -> None:
        self._of = [tuple(parts) for parts in of]
        self._loads.clear()

    def loads(self, sent: Mapping[int, Sequence[int]], *, jobs: int) -> FloatArray:
        """Return the loads (n,) of all workers in a clock of ``jobs`` jobs, as shares of a batch.

        The load of a worker counts all parts that it owns. If a worker is ``sent`` only some of its
        parts, only these parts count.
        """
        if (usual := self._loads.get(jobs)) is None:
            usual = jobs * np.array([self._shares[list(parts)].sum() for parts in self._of])
            usual.flags.writeable = False
            self._loads[jobs] = usual
        some = {who: parts for who, parts in sent.items() if len(parts) < len(self._of[who])}
        if not some:
            return usual
        loads = usual.copy()
        for worker, parts in some.items():
            loads[worker] = jobs * self._shares[list(parts)].sum()
        loads.flags.writeable = False
        return loads

    def mini_tasks(self, worker: int, parts: Sequence[int], jobs: range) -> tuple[MiniTask, ...]:
        """Return a worker's mini-tasks for some of its parts in all jobs of a clock, job by job."""
        return tuple(
            part_task(job, part, slot=(part - worker) % self.n * self._wpc + job - jobs.start)
            for job in jobs
            for part in parts
        )

    def updates(
        self, worker: int, parts: Sequence[int], jobs: range, *, clock: int
    ) -> list[Update]:
        """Return the updates that apply the results of `mini_tasks` with the same arguments."""
        return [
            part_update(task, of=self.n, worker=worker, round=clock)
            for task in self.mini_tasks(worker, parts, jobs)
        ]
