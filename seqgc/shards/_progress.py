"""`Progress`: how far the clocks of data have come, of which each is a job's parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from seqgc.ports import Close
from seqgc.rounds import Records

__all__ = ["Progress"]


class Progress:
    """Which jobs' ``n`` parts are in for good; a job's clock closes when those of all before have.

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
        self._parts: dict[int, int] = {}  # that are settled, by job that is not closed
        self._records = Records(n, "dealt")

    @property
    def closed(self) -> int:
        """How many jobs' clocks are closed: the first so many."""
        return self._closed

    def leave(self, job: int, at: float) -> None:
        """Take note of when a task of a job left."""
        self._records.leave(job, at)

    def answer(self, job: int, worker: int, at: float) -> None:
        """Take note that a part of a job is in, and from whom."""
        self._records.answer(job, worker, at)

    def settle(self, jobs: Iterable[int], at: float) -> list[Close]:
        """Take note that a part of each of these is settled; return the clocks that close."""
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
        """Return who has given parts of each job that is not closed."""
        return [(job, self._records.givers(job)) for job in sorted(self._parts)]

    def recall(
        self, closed: int, left: Mapping[int, int], givers: Iterable[tuple[int, Iterable[int]]]
    ) -> None:
        """Go on where another was: clocks closed, parts left by job, and what `givers` said."""
        self._closed = closed
        for job, workers in givers:
            self._parts[job] = self._n - left.get(job, 0)
            self._records.recall(job, workers)
