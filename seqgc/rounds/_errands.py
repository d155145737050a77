"""`Errands`: who has been sent what and not answered, and when that should be over."""

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

_PATIENCE: Final = 1.5  # a piece is overdue, or a copy worth its while, after so many times its due
_PROBES: Final = 5  # answers that the round trip is learned from
_SPARE: Final = 64  # entries of a heap that may be of errands that are over, beside as many again
_LOOK: Final = 0.25  # round trips from one look at who would be too late to the next


@dataclass(slots=True, kw_only=True, eq=False)
class Errand:
    """A task that has been sent and not been answered: a piece of a job, or none (a greeting)."""

    job: int
    worker: int
    attempt: int
    piece: int | None = None
    share: float = 0.0  # of a batch
    is_probe: bool = False  # a greeting of a worker that is there: its answer takes a round trip
    is_behind: bool = False  # sent while the worker had another piece
    left_at: float = math.nan
    # As an answer that takes no more than the round trip would tell, the worker should
    ends_at: float = math.inf  # have done it;
    answers_at: float = math.inf  # its answer, with the way that it usually takes, should be here;
    due_at: float = math.inf  # and is overdue.
    copied: bool = False  # somebody else has been asked for the piece since
    is_copy: bool = False  # somebody else had been asked for the piece before
    is_over: bool = False  # it has been answered, or nobody waits for it any more
    judged: int = -1  # the number of the judgement that these are of

    @property
    def address(self) -> Address:
        """Its task's address."""
        return self.job, self.worker, self.attempt


_Entry: TypeAlias = tuple[float, int, Errand]  # when, which judgement, of what

Sent: TypeAlias = tuple[Errand, tuple[MiniTask, ...]]
"""What is sent: an errand, and its mini-tasks."""


class Errands:
    """What ``n`` workers have been sent and not answered; each does one thing after the other.

    How long a message to a worker and back takes, its round trip, is learned from the first probes,
    and how long work takes from the answers; until then nothing is overdue. ``by_coming``: an
    invocation that is long in coming may be long in answering (see `AnswerPace`).
    """

    def __init__(self, n: int, *, by_coming: bool = False) -> None:
        self._by_coming = by_coming
        self._round_trips: list[float] = []  # s, of the probes
        self._rtt_s = 0.0  # their median
        self._pace = AnswerPace(by_gaps=by_coming)
        self._open: dict[Address, Errand] = {}
        self.queues: Final[list[list[Errand]]] = [[] for _ in range(n)]  # by worker, as sent
        self._pieces = [0] * n  # in each queue
        self._without = n  # workers without a piece
        self._came_s = [0.0] * n  # what the latest greeting took
        self._answered_at = [-math.inf] * n  # the latest piece
        self._none_due_before = [math.inf] * n  # a bound on when anything in each queue is overdue
        self._there: set[int] = set()  # who has answered a greeting, and had no other since
        # When it was last judged when all could be here, the result, and who is too late for that.
        self._looked_at, self._end_at = -math.inf, math.inf
        self.too_late: Final[set[int]] = set()
        # Heaps, by when they are overdue and by when they should answer, the last first; some
        # errands in them are over, or have been judged anew.
        self._dues: list[_Entry] = []
        self._latest: list[_Entry] = []
        self._serial = itertools.count()
        self.spared: Errand | None = None  # what no free worker would be sooner to do; to be reset

    def get(self, address: Address) -> Errand | None:
        """Return an errand, if it is not over."""
        return self._open.get(address)

    def of_job(self, worker: int, job: int) -> list[Errand]:
        """Return what a worker has to do of a job."""
        return [errand for errand in self.queues[worker] if errand.job == job]

    def add(self, errand: Errand) -> None:
        """Take note of what is sent."""
        self._open[errand.address] = errand
        self.queues[errand.worker].append(errand)
        if errand.piece is not None:
            self._without -= self._pieces[errand.worker] == 0
            self._pieces[errand.worker] += 1
        elif not errand.is_probe:
            self._there.discard(errand.worker)

    @property
    def wants_probe(self) -> bool:
        """Whether another probe would tell something new of the round trip."""
        return len(self._round_trips) < _PROBES

    def remove(self, errand: Errand) -> None:
        """Wait for it no more."""
        del self._open[errand.address]
        errand.is_over = True
        self.queues[errand.worker].remove(errand)
        if errand.piece is not None:
            self._pieces[errand.worker] -= 1
            self._without += self._pieces[errand.worker] == 0

    def leave(self, errand: Errand, at: float) -> None:
        """Take note of when it left."""
        errand.left_at = at
        queue = self.queues[errand.worker]
        place = queue.index(errand)
        errand.is_behind = place > 0 and queue[place - 1].piece is not None
        self._expect(errand, queue[place - 1].ends_at if errand.is_behind else -math.inf)

    def answer(self, errand: Errand, at: float) -> None:
        """Take note of an answer; the worker goes on with what it has besides."""
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
        """Return when a worker should be sent another piece, so as not to wait for it.

        Where answers may be long on their way, everybody has two as long as nobody knows the pace:
        the time from the first answer to the second will tell.
        """
        queue = self.queues[worker]
        if not queue or queue[-1].piece is None:
            return None
        if not self._pace.known:
            return -math.inf if self._by_coming and self._pieces[worker] < 2 else None
        return queue[-1].ends_at - self._rtt_s

    def is_kept(self, worker: int, pieces: int) -> bool:
        """Whether so many pieces are kept for those who have none, of whom this worker is not one.

        That is so as long as nobody knows the pace: then nobody knows when the others come.
        """
        if self._pace.known or not self._pieces[worker]:
            return False
        return pieces <= self._without

    def is_late(self, worker: int, now: float) -> bool:
        """Whether something that a worker has is overdue: it had better have no more."""
        if self._none_due_before[worker] <= now:
            dues = [errand.due_at for errand in self.queues[worker]]
            self._none_due_before[worker] = min(dues, default=math.inf)
        return self._none_due_before[worker] <= now

    def at_work(self, now: float) -> list[int]:
        """Return whose next answer to a piece is expected: none of its own is overdue or copied."""
        return [
            worker
            for worker, queue in enumerate(self.queues)
            if any(errand.piece is not None for errand in queue)
            and not any(errand.copied or errand.due_at <= now for errand in queue)
        ]

    def look_at(self, now: float) -> float:
        """Return when a free worker may be given something next, if no answer comes before."""
        times = [self._looked_at + _LOOK * self._rtt_s] if self.too_late else []
        if (due := self.first_due) is not None:
            times.append(due.due_at)
        return min((at for at in times if at > now), default=math.inf)

    def forget_too_late(self, now: float) -> None:
        """Judge the workers that are too late again, if that was last done long ago."""
        if self._is_old(now):
            self.too_late.clear()

    def is_too_late(self, worker: int, left: Iterable[float], now: float) -> bool:
        """Whether all that is ``left`` (batches) could be here before a worker's next answer.

        It could, if those who are there shared it so that all their answers come at one time.
        Where answers take as long from everybody, or nobody can tell how long, nobody is too late.
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
        """Return the level to which so much work fills up those who are there."""
        able = [each for each in self._there if not self.is_late(each, now)]
        ready_at = np.sort([self._ready_at(each, now) for each in able])
        work_s = self._pace.per_batch_s * left
        levels = (work_s + ready_at.cumsum()) / np.arange(1, len(able) + 1)
        return float(levels.min(initial=math.inf))

    def _ready_at(self, worker: int, now: float) -> float:
        """Return when an answer without work would come, after what the worker has."""
        free_at, queue = now + self._rtt_s, self.queues[worker]
        if queue and math.isfinite(ends_at := queue[-1].ends_at):
            free_at = max(free_at, ends_at)
        return free_at + self._way_back_s(worker)

    @property
    def first_due(self) -> Errand | None:
        """What is or will be overdue first, of what nobody else has been asked for since."""
        return self._first(self._dues)

    def to_copy(self, workers: Collection[int], now: float) -> tuple[int, Errand] | None:
        """Choose what one of these free workers should do a second time, and take note of it.

        That is what is overdue, or what should come last, if a copy would surely come before it:
        its worker's way back is long. It is done by who has the shortest way back.
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
        """Return who has the shortest way back of those with nothing overdue, ``but`` one."""
        worker = min(workers, key=self._way_back_s, default=None)
        if worker is None or (worker != but and not self.is_late(worker, now)):
            return worker  # as a rule: nobody else need be asked
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
        """Judge when an errand will be over, whose worker is free from a moment on."""
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
            if len(heap) > 2 * len(self._open) + _SPARE:  # most of it is over
                heap[:] = filter(self._is_valid, heap)
                heapq.heapify(heap)

    def _work_s(self, errand: Errand) -> float:
        return self._pace.per_batch_s * errand.share

    def _way_back_s(self, worker: int) -> float:
        """Return the seconds that an answer should take beside its work and the round trip."""
        if self._by_coming:
            return self._pace.per_coming * self._came_s[worker]
        return self._pace.way_back_s


def dispatches(tasks: Iterable[Sent], *, n: int) -> list[Dispatch]:
    """Return dispatches of these tasks to ``n`` workers, one for each job and attempt."""
    together: defaultdict[tuple[int, int], dict[int, tuple[MiniTask, ...]]] = defaultdict(dict)
    loads: defaultdict[tuple[int, int], FloatArray] = defaultdict(partial(np.zeros, n))
    for errand, mini_tasks in tasks:
        together[errand.job, errand.attempt][errand.worker] = mini_tasks
        loads[errand.job, errand.attempt][errand.worker] = errand.share
    return [
        Dispatch(round=job, attempt=attempt, assignment=assignment, loads=loads[job, attempt])
        for (job, attempt), assignment in together.items()
    ]
