"""`Errands`: who has been sent what and not answered, and when that should be over."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from seqgc.ports import Dispatch, MiniTask
from seqgc.rounds._pace import Pace

__all__ = ["Errand", "Errands", "dispatches"]

Address: TypeAlias = tuple[int, int, int]  # job, worker, attempt

_PATIENCE: Final = 1.5  # a piece is overdue after so many times what it should take


@dataclass(slots=True, kw_only=True, eq=False)
class Errand:
    """A task that has been sent and not been answered: a piece of a job, or none (a greeting)."""

    job: int
    worker: int
    attempt: int
    piece: int | None = None
    share: float = 0.0  # of a batch
    begins_at: float = math.nan  # when the worker should begin it, or rather its answer's way
    due_at: float = math.inf  # when it is overdue
    copied: bool = False  # somebody else has been asked for the piece since

    @property
    def address(self) -> Address:
        """Its task's address."""
        return self.job, self.worker, self.attempt


class Errands:
    """What ``n`` workers have been sent and not answered; each does one thing after the other.

    ``rtt_s`` are the seconds that a message to a worker and back takes. How long work takes is
    learned from the answers; until then nothing is overdue.
    """

    def __init__(self, n: int, *, rtt_s: float) -> None:
        self._rtt_s, self._pace = rtt_s, Pace()
        self._open: dict[Address, Errand] = {}
        self.queues: Final[list[list[Errand]]] = [[] for _ in range(n)]  # by worker, as sent
        self._dues: list[tuple[float, int, Errand]] = []  # a heap; some are over, or due otherwise
        self._unpaced: list[Errand] = []  # sent before anybody knew how long they should take
        self._serial = itertools.count()

    def get(self, address: Address) -> Errand | None:
        """Return an errand, if it is not over."""
        return self._open.get(address)

    def is_open(self, errand: Errand) -> bool:
        """Whether it is not over."""
        return self._open.get(errand.address) is errand

    def of_job(self, worker: int, job: int) -> list[Errand]:
        """Return what a worker has to do of a job."""
        return [errand for errand in self.queues[worker] if errand.job == job]

    def add(self, errand: Errand) -> None:
        """Take note of what is sent."""
        self._open[errand.address] = errand
        self.queues[errand.worker].append(errand)

    def remove(self, errand: Errand) -> None:
        """Wait for it no more."""
        del self._open[errand.address]
        self.queues[errand.worker].remove(errand)

    def leave(self, errand: Errand, at: float) -> None:
        """Take note of when it left."""
        errand.begins_at = at + self._rtt_s
        queue = self.queues[errand.worker]
        place = queue.index(errand)
        self._expect(errand, self._end_of(queue[place - 1]) if place else -math.inf)

    def answer(self, errand: Errand, at: float) -> None:
        """Take note of an answer; the worker goes on with what it has besides."""
        self.remove(errand)
        if errand.piece is not None:
            was_known = self._pace.known
            self._pace.learn(errand.share, max(0.0, at - errand.begins_at))
            if self._pace.known and not was_known:
                for each in filter(self.is_open, self._unpaced):
                    self._expect(each, each.begins_at)
                self._unpaced.clear()
        if queue := self.queues[errand.worker]:
            self._expect(queue[0], at)

    def ask_at(self, worker: int) -> float | None:
        """Return when a worker with one piece should be sent another, so as not to wait for it."""
        queue = self.queues[worker]
        if self._rtt_s == 0 or len(queue) != 1 or not math.isfinite(queue[0].due_at):
            return None
        return self._end_of(queue[0]) - 2 * self._rtt_s

    @property
    def first_due(self) -> Errand | None:
        """What is or will be overdue first, of what nobody else has been asked for since."""
        while self._dues:
            due_at, _, errand = self._dues[0]
            if due_at == errand.due_at and not errand.copied and self.is_open(errand):
                return errand
            heapq.heappop(self._dues)
        return None

    def _expect(self, errand: Errand, free_at: float) -> None:
        """Judge when an errand will be over, whose worker is free from a moment on."""
        errand.begins_at = max(errand.begins_at, free_at)
        if errand.piece is None:
            return
        if not self._pace.known:
            self._unpaced.append(errand)
            return
        work_s = self._pace.per_batch_s * errand.share
        errand.due_at = errand.begins_at + _PATIENCE * work_s + self._pace.usual_s
        heapq.heappush(self._dues, (errand.due_at, next(self._serial), errand))

    def _end_of(self, errand: Errand) -> float:
        return errand.begins_at + self._pace.per_batch_s * errand.share


def dispatches(tasks: Iterable[tuple[Errand, tuple[MiniTask, ...]]]) -> list[Dispatch]:
    """Return what sends these tasks, those of one job and attempt together."""
    together: defaultdict[tuple[int, int], dict[int, tuple[MiniTask, ...]]] = defaultdict(dict)
    for errand, mini_tasks in tasks:
        together[errand.job, errand.attempt][errand.worker] = mini_tasks
    return [
        Dispatch(round=job, attempt=attempt, assignment=assignment)
        for (job, attempt), assignment in together.items()
    ]
