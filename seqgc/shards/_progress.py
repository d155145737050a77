from __future__ import annotations

from collections.abc import Iterable, Mapping

from seqgc.ports import Close
from seqgc.rounds import Records

__all__ = ["Progress"]


class Progress:
    """A record of the settled parts of each job, which closes jobs in their order.

    A part is settled when it has arrived and will not be computed again. The clock of a job closes
    when all ``n`` parts of this job, and of all earlier jobs, are settled.

    Examples
    --------
    >>> progress = Progress(2)
    >>> for job in range(2):
    ...     progress.leave(job, 0.0)
    >>> for job, worker, at in ((0, 0, 1.0), (1, 0, 2.0), (1, 0, 3.0), (0, 1, 4.0)):
    ...     progress.answer(job, worker, at)
    ...     closed = progress.settle([job], at)
    >>> [(close.jobs, close.record.duration_s) for close in closed], progress.closed
    ([((0,), 4.0), ((1,), 0.0)], 2)
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._closed = 0
        self._parts: dict[int, int] = {}  # by job that is not closed: the number of settled parts
        self._records = Records(n, "dealt")

    @property
    def closed(self) -> int:
        """The number of jobs whose clocks are closed; jobs close in order."""
        return self._closed

    def leave(self, job: int, at: float) -> None:
        """Record that a task of a job was sent, at a time in seconds."""
        self._records.leave(job, at)

    def answer(self, job: int, worker: int, at: float) -> None:
        """Record that a part of a job has arrived from a worker, at a time in seconds."""
        self._records.answer(job, worker, at)

    def settle(self, jobs: Iterable[int], at: float) -> list[Close]:
        """Record one more settled part for each entry of ``jobs``; return the clocks that close.

        A job may be listed several times. ``at`` is the time in seconds.
        """
        for job in jobs:
            self._parts[job] = self._parts.get(job, 0) + 1
        closed = []
        while self._parts.get(self._closed) == self._n:
            del self._parts[self._closed]
            record = self._records.close(self._closed, at)
            closed.append(Close(record=record, jobs=(self._closed,)))
            self._closed += 1
        return closed

    def givers(self) -> list[tuple[int, list[int]]]:
        """Return the workers that sent parts, for each open job with settled parts.

        A snapshot stores them for `recall`.
        """
        return [(job, self._records.givers(job)) for job in sorted(self._parts)]

    def recall(
        self, closed: int, left: Mapping[int, int], givers: Iterable[tuple[int, Iterable[int]]]
    ) -> None:
        """Continue from a snapshot. Call this method before any other.

        ``closed`` is the number of closed clocks, ``left`` maps each job to the number of its parts
        that are not settled, and ``givers`` is the return value of `givers`.
        """
        self._closed = closed
        for job, workers in givers:
            self._parts[job] = self._n - left.get(job, 0)
            self._records.recall(job, workers)
