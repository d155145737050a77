"""`Errands`: the tasks that workers have not answered, and when their answers should arrive."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final, TypeAlias

import numpy as np

from seqgc.ports import Dispatch, FloatArray, MiniTask
from seqgc.rounds._pace import AnswerPace

__all__ = ["Errand", "Errands", "Sent", "dispatches"]

Address: TypeAlias = tuple[int, int, int]  # job, worker, attempt

_PATIENCE: Final = 1.5  # a piece is overdue after this many times its expected time
_PROBES: Final = 5  # number of answers from which the round trip is learned
_SPARE: Final = 64  # entries of a heap beyond twice the number of open errands
_LOOK: Final = 0.25  # round trips between two estimates of which workers are too late


@dataclass(slots=True, kw_only=True, eq=False)
class Errand:
    """A task that has been sent: a piece of a job, or a greeting, which has no piece."""

    job: int
    worker: int
    attempt: int
    piece: int | None = None
    share: float = 0.0  # of a batch, 0 for a greeting
    is_probe: bool = False  # a greeting whose answer takes one round trip: the worker is up
    is_behind: bool = False  # it left while the worker had another piece
    left_at: float = math.nan
    # Estimates, infinite until the pace of work is known:
    ends_at: float = math.inf  # the work is done, and a round trip after sending has passed
    answers_at: float = math.inf  # the answer arrives, after the usual way back
    due_at: float = math.inf  # the answer is overdue
    copied: bool = False  # the piece has been given to another worker since
    is_copy: bool = False  # another worker had the piece when this errand was made
    is_over: bool = False  # it has been answered, or its answer is no longer awaited
    judged: int = -1  # serial number of the estimates

    @property
    def address(self) -> Address:
        """The address of the task: job, worker and attempt."""
        return self.job, self.worker, self.attempt


_Entry: TypeAlias = tuple[float, int, Errand]  # time, serial number of the estimate, errand

Sent: TypeAlias = tuple[Errand, tuple[MiniTask, ...]]
"""An errand and the mini-tasks that are sent with it."""


class Errands:
    """The errands of ``n`` workers that have not been answered, in one queue for each worker.

    A worker does its errands one after the other. The round trip, which is the time of a message to
    a worker and back, is learned from the first probes. The pace of work is learned from the
    answers to pieces (`AnswerPace`), and nothing is overdue before it is known. With ``by_coming``,
    each worker has its own way back: if it took long to start, its answers may take long as well.

    All times are in seconds, on the clock of the backend.
    """

    def __init__(self, n: int, *, by_coming: bool = False) -> None:
        self._by_coming = by_coming
        self._round_trips: list[float] = []  # s, one for each answered probe
        self._rtt_s = 0.0  # their median
        self._pace = AnswerPace(by_gaps=by_coming)
        self._open: dict[Address, Errand] = {}
        self.queues: Final[list[list[Errand]]] = [[] for _ in range(n)]  # by worker, oldest first
        self._pieces = [0] * n  # in each queue, the number of pieces
        self._without = n  # workers without a piece
        self._came_s = [0.0] * n  # by worker, the time of its latest greeting until the answer
        self._answered_at = [-math.inf] * n  # by worker, its latest answer to a piece
        self._none_due_before = [math.inf] * n  # by worker, a lower bound of `due_at`
        self._there: set[int] = set()  # workers that have answered their latest greeting
        # Time of the latest estimate of when all work could be done, its result, and the workers
        # whose next answer would come after that.
        self._looked_at, self._end_at = -math.inf, math.inf
        self.too_late: Final[set[int]] = set()
        # Heaps: by `due_at`, the earliest first, and by `answers_at`, the latest first. An entry is
        # invalid if its errand is over, is copied or has a newer estimate.
        self._dues: list[_Entry] = []
        self._latest: list[_Entry] = []
        self._serial = itertools.count()
        self.spared: Errand | None = None  # no copy would be faster; reset when workers become free

    def get(self, address: Address) -> Errand | None:
        """Return the errand with this address, or None if there is no open one."""
        return self._open.get(address)

    def of_job(self, worker: int, job: int) -> list[Errand]:
        """Return the open errands of a worker that belong to a job."""
        return [errand for errand in self.queues[worker] if errand.job == job]

    def add(self, errand: Errand) -> None:
        """Record an errand that is sent."""
        self._open[errand.address] = errand
        self.queues[errand.worker].append(errand)
        if errand.piece is not None:
            self._without -= self._pieces[errand.worker] == 0
            self._pieces[errand.worker] += 1
        elif not errand.is_probe:
            self._there.discard(errand.worker)

    @property
    def wants_probe(self) -> bool:
        """True if more probes are needed to learn the round trip."""
        return len(self._round_trips) < _PROBES

    def remove(self, errand: Errand) -> None:
        """Remove an errand, whose answer is no longer awaited."""
        del self._open[errand.address]
        errand.is_over = True
        self.queues[errand.worker].remove(errand)
        if errand.piece is not None:
            self._pieces[errand.worker] -= 1
            self._without += self._pieces[errand.worker] == 0

    def leave(self, errand: Errand, at: float) -> None:
        """Record the time at which an errand left the master."""
        errand.left_at = at
        queue = self.queues[errand.worker]
        place = queue.index(errand)
        errand.is_behind = place > 0 and queue[place - 1].piece is not None
        self._expect(errand, queue[place - 1].ends_at if errand.is_behind else -math.inf)

    def answer(self, errand: Errand, at: float) -> None:
        """Record an answer at time ``at``; the worker continues with its next errand."""
        self.remove(errand)
        worker, rtt_s = errand.worker, self._rtt_s
        if errand.is_probe:
            self._round_trips.append(at - errand.left_at)
            self._rtt_s = median(self._round_trips)
        elif errand.piece is None:
            self._came_s[worker] = at - errand.left_at
            self._there.add(worker)
        else:
            was_known, before = self._pace.known, self._answered_at[worker]
            if not errand.is_behind:
                seconds = max(0.0, at - errand.left_at - rtt_s)
                self._pace.learn(errand.share, seconds, came_s=self._came_s[worker])
            elif errand.left_at + rtt_s + self._way_back_s(worker) <= before:
                self._pace.learn_gap(errand.share, at - before)
            self._answered_at[worker] = at
            if self._pace.known and not was_known:
                for queue in self.queues:
                    self._expect_all(queue, -math.inf)
        if queue := self.queues[worker]:
            free_at = at - self._way_back_s(worker)
            if abs(queue[0].ends_at - free_at - self._work_s(queue[0])) > 0.1 * rtt_s:
                self._expect_all(queue, free_at)

    def ask_at(self, worker: int) -> float | None:
        """Return the time at which a worker must be sent its next piece so that it need not wait.

        Return None if the last errand in its queue is not a piece, or if the pace is not known.
        With ``by_coming``, each worker gets two pieces at once until the pace is known, because the
        pace is learned from the time between two answers.
        """
        queue = self.queues[worker]
        if not queue or queue[-1].piece is None:
            return None
        if not self._pace.known:
            return -math.inf if self._by_coming and self._pieces[worker] < 2 else None
        return queue[-1].ends_at - self._rtt_s

    def is_kept(self, worker: int, pieces: int) -> bool:
        """Return True if this many ``pieces`` are reserved for the workers that have no piece.

        This holds only if ``worker`` has a piece itself, and only until the pace is known, because
        until then it is unknown when the other workers will be free.
        """
        if self._pace.known or not self._pieces[worker]:
            return False
        return pieces <= self._without

    def is_late(self, worker: int, now: float) -> bool:
        """Return True if a worker has an overdue errand. It should then get no more work."""
        if self._none_due_before[worker] <= now:
            dues = [errand.due_at for errand in self.queues[worker]]
            self._none_due_before[worker] = min(dues, default=math.inf)
        return self._none_due_before[worker] <= now

    def at_work(self, now: float) -> list[int]:
        """Return the workers that have a piece, and no errand that is overdue or copied."""
        return [
            worker
            for worker, queue in enumerate(self.queues)
            if any(errand.piece is not None for errand in queue)
            and not any(errand.copied or errand.due_at <= now for errand in queue)
        ]

    def look_at(self, now: float) -> float:
        """Return the next time at which a free worker may get work although no answer has arrived.

        The time is infinite if work depends only on answers.
        """
        times = [self._looked_at + _LOOK * self._rtt_s] if self.too_late else []
        if (due := self.first_due) is not None:
            times.append(due.due_at)
        return min((at for at in times if at > now), default=math.inf)

    def forget_too_late(self, now: float) -> None:
        """Clear the set of workers that are too late, if the estimate behind it is old."""
        if self._is_old(now):
            self.too_late.clear()

    def is_too_late(self, worker: int, left: Iterable[float], now: float) -> bool:
        """Return True if all remaining work could be done before a worker's next answer arrives.

        ``left`` are the remaining pieces as shares of a batch. The estimate assumes that the
        available workers divide this work so that their last answers arrive at the same time. No
        worker is too late without ``by_coming``, or as long as the pace is not sure.
        """
        if not self._by_coming or not self._pace.sure or self._way_back_s(worker) <= self._rtt_s:
            return False
        if self._is_old(now):
            self._looked_at, self._end_at = now, self._could_end_at(math.fsum(left), now)
        if self._ready_at(worker, now) <= self._end_at:
            return False
        self.too_late.add(worker)
        return True

    def _is_old(self, now: float) -> bool:
        return now >= self._looked_at + _LOOK * self._rtt_s

    def _could_end_at(self, left: float, now: float) -> float:
        """Return the earliest time at which the available workers could finish ``left`` batches.

        Like water, the work fills up the workers that are ready first to a common level. The time
        is infinite if no worker is available.
        """
        able = [each for each in self._there if not self.is_late(each, now)]
        ready_at = np.sort([self._ready_at(each, now) for each in able])
        work_s = self._pace.per_batch_s * left
        levels = (work_s + ready_at.cumsum()) / np.arange(1, len(able) + 1)
        return float(levels.min(initial=math.inf))

    def _ready_at(self, worker: int, now: float) -> float:
        """Return the time at which a worker, after its present work, could answer an empty task."""
        free_at, queue = now + self._rtt_s, self.queues[worker]
        if queue and math.isfinite(ends_at := queue[-1].ends_at):
            free_at = max(free_at, ends_at)
        return free_at + self._way_back_s(worker)

    @property
    def first_due(self) -> Errand | None:
        """The errand with the earliest `due_at`, of the open errands that have not been copied."""
        return self._first(self._dues)

    def to_copy(self, workers: Collection[int], now: float) -> tuple[int, Errand] | None:
        """Choose an errand to copy, and the free worker that computes the copy; mark it as copied.

        The errand is the most overdue one. If no errand is overdue, it is the one whose answer is
        expected last, if a copy would surely arrive earlier because the way back of its worker is
        long. The copy goes to the free worker with the shortest way back. Return None if there is
        nothing to copy.
        """
        errand = self._first(self._latest)
        if (due := self.first_due) is not None and due.due_at <= now:
            errand = due
        elif errand is None or errand is self.spared or not self._gains(errand, now, 0.0):
            return None
        worker = self._soonest(workers, errand.worker, now)
        if worker is None:
            return None
        if errand is not due and not self._gains(errand, now, self._way_back_s(worker)):
            self.spared = errand
            return None
        errand.copied = True
        return worker, errand

    def _soonest(self, workers: Collection[int], but: int, now: float) -> int | None:
        """Return the worker with the shortest way back, or None.

        Worker ``but`` and workers with an overdue errand are left out.
        """
        worker = min(workers, key=self._way_back_s, default=None)
        if worker is None or (worker != but and not self.is_late(worker, now)):
            return worker  # the usual case, which needs no second search
        able = [each for each in workers if each != but and not self.is_late(each, now)]
        return min(able, key=self._way_back_s, default=None)

    def _first(self, heap: list[_Entry]) -> Errand | None:
        while heap and not self._is_valid(heap[0]):
            heapq.heappop(heap)
        return heap[0][2] if heap else None

    def _is_valid(self, entry: _Entry) -> bool:
        _, judged, errand = entry
        return judged == errand.judged and not errand.copied and not errand.is_over

    def _gains(self, errand: Errand, now: float, way_back_s: float) -> bool:
        copied_at = now + _PATIENCE * (self._rtt_s + self._work_s(errand)) + way_back_s
        return not errand.is_copy and errand.answers_at > copied_at

    def _expect_all(self, queue: list[Errand], free_at: float) -> None:
        for errand in queue:
            if errand.piece is not None and not math.isnan(errand.left_at):
                self._expect(errand, free_at)
                free_at = errand.ends_at

    def _expect(self, errand: Errand, free_at: float) -> None:
        """Estimate when a piece ends, if its worker is free for it from ``free_at`` on."""
        if errand.piece is None or not self._pace.known:
            return
        pace, worker, rtt_s, work_s = self._pace, errand.worker, self._rtt_s, self._work_s(errand)
        way_back_s = usual_s = self._way_back_s(worker)
        if not self._by_coming:
            usual_s = max(usual_s, pace.usual_s)
        errand.ends_at = max(errand.left_at + rtt_s, free_at) + work_s
        errand.answers_at = errand.ends_at + way_back_s
        more_s = (_PATIENCE - 1) * (work_s + rtt_s + (way_back_s if self._by_coming else 0.0))
        errand.due_at = errand.ends_at + usual_s + more_s
        self._none_due_before[worker] = min(self._none_due_before[worker], errand.due_at)
        errand.judged = next(self._serial)
        for heap, at in ((self._dues, errand.due_at), (self._latest, -errand.answers_at)):
            heapq.heappush(heap, (at, errand.judged, errand))
            if len(heap) > 2 * len(self._open) + _SPARE:  # most entries are invalid
                heap[:] = filter(self._is_valid, heap)
                heapq.heapify(heap)

    def _work_s(self, errand: Errand) -> float:
        return self._pace.per_batch_s * errand.share

    def _way_back_s(self, worker: int) -> float:
        """Return the seconds that an answer takes beyond its work and the round trip."""
        if self._by_coming:
            return self._pace.per_coming * self._came_s[worker]
        return self._pace.way_back_s


def dispatches(tasks: Iterable[Sent], *, n: int) -> list[Dispatch]:
    """Return the dispatches of these tasks to ``n`` workers, one for each job and attempt."""
    together: defaultdict[tuple[int, int], dict[int, tuple[MiniTask, ...]]] = defaultdict(dict)
    loads: defaultdict[tuple[int, int], FloatArray] = defaultdict(partial(np.zeros, n))
    for errand, mini_tasks in tasks:
        together[errand.job, errand.attempt][errand.worker] = mini_tasks
        loads[errand.job, errand.attempt][errand.worker] = errand.share
    return [
        Dispatch(round=job, attempt=attempt, assignment=assignment, loads=loads[job, attempt])
        for (job, attempt), assignment in together.items()
    ]
