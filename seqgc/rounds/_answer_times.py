"""`AnswerTimes`: estimates of when answers arrive, and the choice of pieces to copy."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, TypeAlias

import numpy as np

from seqgc.rounds._engine import EngineTask
from seqgc.rounds._pace import AnswerPace

__all__ = ["AnswerTimes", "SentPiece"]

_PATIENCE: Final = 1.5  # a piece is overdue after this many times its expected time
_PROBES: Final = 5  # workers are probed until this number of probes has been answered
_SPARE: Final = 64  # a heap is cleaned if it exceeds twice the number of pieces out by this many
_LOOK: Final = 0.25  # round trips between two estimates of which workers are too late


@dataclass(slots=True, kw_only=True, eq=False)
class SentPiece:
    """The work of a task: a piece of a job, and the estimates of when its answer arrives."""

    piece: int
    share: float  # of a batch
    is_copy: bool  # True if another worker had the piece when it was sent
    copied: bool = False  # True if it has been given to another worker since, or has arrived
    is_behind: bool = False  # True if it left while the worker had another piece
    # Estimates in seconds on the backend's clock, infinite until the pace of work is known:
    ends_at: float = math.inf  # end of the work, as seen by the master: includes a round trip
    answers_at: float = math.inf  # arrival of the answer, after the median way back
    due_at: float = math.inf  # time from which the answer is overdue
    judged: int = -1  # serial number of these estimates


_Task: TypeAlias = EngineTask[SentPiece]  # a task without a piece is a greeting
_Entry: TypeAlias = tuple[float, int, _Task, SentPiece]  # time, and serial number of the estimate


class AnswerTimes:
    """Estimates of when ``n`` workers answer the tasks that they hold.

    ``queues`` are these tasks by worker, the oldest first (`Engine`). A worker does its tasks one
    after the other. The *round trip* is the time of a message to a worker and back. It is the
    median time of the first *probes*, which are greetings of workers that are known to be up. The
    *pace* of work is learned from the answers to pieces (`AnswerPace`). No piece is overdue before
    the pace is known. The *way back* is the time that an answer takes in addition to its work and a
    round trip. With ``by_coming``, each worker has its own way back, in proportion to the time that
    the worker took to start.

    All times are in seconds on the clock of the backend.
    """

    def __init__(
        self, n: int, queues: Mapping[int, Sequence[_Task]], *, by_coming: bool = False
    ) -> None:
        self._queues, self._by_coming = queues, by_coming
        self._probes: set[_Task] = set()  # the probes that are out
        self._round_trips: list[float] = []  # in seconds, of each answered probe
        self._rtt_s = 0.0  # their median
        self._pace = AnswerPace(by_gaps=by_coming)
        self._pieces = [0] * n  # by worker, the number of pieces that it holds
        self._without, self._out = n, 0  # workers without a piece; pieces of all workers
        self._came_s = [0.0] * n  # by worker, the time of its latest greeting until the answer
        self._answered_at = [-math.inf] * n  # by worker, its latest answer to a piece
        self._none_due_before = [math.inf] * n  # by worker, a lower bound of `due_at`
        self._there: set[int] = set()  # workers that have answered their latest greeting
        # The time of the latest estimate of when all work could be done, the result of this
        # estimate, and the workers whose next answer would come after that time.
        self._looked_at, self._end_at = -math.inf, math.inf
        self.too_late: Final[set[int]] = set()
        # Heaps: by `due_at`, the earliest first, and by `answers_at`, the latest first. An entry is
        # invalid if its task is not out, is copied or has a newer estimate.
        self._dues: list[_Entry] = []
        self._latest: list[_Entry] = []
        self._serial = itertools.count()
        # A piece of which no copy would arrive sooner; None again when a worker becomes free.
        self.spared: SentPiece | None = None

    @property
    def wants_probe(self) -> bool:
        """True if more probes are needed to learn the round trip."""
        return len(self._round_trips) < _PROBES

    def greet(self, worker: int) -> None:
        """Record that a worker that may not be up is greeted."""
        self._there.discard(worker)

    def probe(self, task: _Task) -> None:
        """Record a greeting of a worker that is known to be up."""
        self._probes.add(task)

    def begin(self, worker: int) -> None:
        """Record that a worker is given a piece."""
        self._without -= self._pieces[worker] == 0
        self._pieces[worker] += 1
        self._out += 1

    def leave(self, task: _Task) -> None:
        """Record that a task has left the master."""
        if task.work is None:
            return
        queue = self._queues[task.worker]
        place = queue.index(task)
        before = queue[place - 1].work if place else None
        task.work.is_behind = before is not None
        self._expect(task, -math.inf if before is None else before.ends_at)

    def end(self, task: _Task) -> None:
        """Record a task that its worker does not hold any more."""
        if task.work is not None:
            self._pieces[task.worker] -= 1
            self._without += self._pieces[task.worker] == 0
            self._out -= 1
        else:
            self._probes.discard(task)

    def answer(self, task: _Task, at: float) -> None:
        """Record the answer to a task. Its worker now computes its next task."""
        worker, rtt_s, is_probe = task.worker, self._rtt_s, task in self._probes
        self.end(task)
        if is_probe:
            self._round_trips.append(at - task.left_at)
            self._rtt_s = median(self._round_trips)
        elif (sent := task.work) is None:
            self._came_s[worker] = at - task.left_at
            self._there.add(worker)
        else:
            was_known, before = self._pace.known, self._answered_at[worker]
            if not sent.is_behind:
                seconds = max(0.0, at - task.left_at - rtt_s)
                self._pace.learn(sent.share, seconds, came_s=self._came_s[worker])
            elif task.left_at + rtt_s + self._way_back_s(worker) <= before:
                self._pace.learn_gap(sent.share, at - before)
            self._answered_at[worker] = at
            if self._pace.known and not was_known:
                for each in sorted(self._queues):
                    self._expect_all(self._queues[each], -math.inf)
        if queue := self._queues.get(worker):
            free_at, first = at - self._way_back_s(worker), queue[0].work
            ends_at, work_s = (first.ends_at, self._work_s(first)) if first else (math.inf, 0.0)
            if abs(ends_at - free_at - work_s) > 0.1 * rtt_s:
                self._expect_all(queue, free_at)

    def ask_at(self, worker: int) -> float | None:
        """Return the time at which to send a worker its next piece, so that it is never idle.

        The result is None if the worker has to answer first: if it holds no task, if its last task
        is a greeting, or if the pace is not known. The result is minus infinity, for at once, if
        the pace is not known, ``by_coming`` is set, and the worker holds only one piece. With
        ``by_coming``, the pace is learned from the time between two answers of a worker, so that
        each worker needs a second piece.
        """
        queue = self._queues.get(worker)
        if not queue or (last := queue[-1].work) is None:
            return None
        if not self._pace.known:
            return -math.inf if self._by_coming and self._pieces[worker] < 2 else None
        return last.ends_at - self._rtt_s

    def is_kept(self, worker: int, pieces: int) -> bool:
        """Return True if a worker may get none of the last ``pieces``, because others need them.

        Until the pace is known, it is unknown when workers will be free. Therefore a worker that
        has a piece gets no other one if at least ``pieces`` workers have no piece.
        """
        if self._pace.known or not self._pieces[worker]:
            return False
        return pieces <= self._without

    def is_late(self, worker: int, now: float) -> bool:
        """Return True if a worker has an overdue piece, and should therefore get no more work."""
        if self._none_due_before[worker] <= now:
            works = [task.work for task in self._queues.get(worker, ())]
            dues = [sent.due_at for sent in works if sent is not None]
            self._none_due_before[worker] = min(dues, default=math.inf)
        return self._none_due_before[worker] <= now

    def at_work(self, now: float) -> list[int]:
        """Return the workers that have pieces of which none is overdue or copied."""
        held = {
            worker: [task.work for task in queue if task.work is not None]
            for worker, queue in self._queues.items()
        }
        return [
            worker
            for worker, pieces in held.items()
            if pieces and not any(sent.copied or sent.due_at <= now for sent in pieces)
        ]

    def look_at(self, now: float) -> float:
        """Return the next time at which a free worker may get work even if no answer arrives.

        The time is infinite if free workers get work only when an answer arrives.
        """
        times = [self._looked_at + _LOOK * self._rtt_s] if self.too_late else []
        if (due := self._first(self._dues)) is not None:
            times.append(due[0])
        return min((at for at in times if at > now), default=math.inf)

    def forget_too_late(self, now: float) -> None:
        """Clear `too_late` if the estimate of when all work could be done is old."""
        if self._is_old(now):
            self.too_late.clear()

    def is_too_late(self, worker: int, left: Iterable[float], now: float) -> bool:
        """Return True if all remaining work could be done before a worker's next answer arrives.

        ``left`` are the remaining pieces as shares of a batch. The estimate assumes that the
        available workers divide this work so that their last answers arrive at the same time. A
        worker can be too late only with ``by_coming``, and only if the pace is known from 64
        samples (`AnswerPace.sure`). It is then added to the set `too_late`.
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

        A worker is available if it has answered its greeting and has no overdue piece. The work is
        given to the workers that are ready first, so that all of them finish at the same time, as
        water fills vessels to a common level. The time is infinite if no worker is available.
        """
        able = [each for each in self._there if not self.is_late(each, now)]
        ready_at = np.sort([self._ready_at(each, now) for each in able])
        work_s = self._pace.per_batch_s * left
        levels = (work_s + ready_at.cumsum()) / np.arange(1, len(able) + 1)
        return float(levels.min(initial=math.inf))

    def _ready_at(self, worker: int, now: float) -> float:
        """Return the time at which a worker could answer an empty task after its present work."""
        free_at, queue = now + self._rtt_s, self._queues.get(worker)
        if queue and (last := queue[-1].work) is not None and math.isfinite(last.ends_at):
            free_at = max(free_at, last.ends_at)
        return free_at + self._way_back_s(worker)

    def to_copy(self, workers: Collection[int], now: float) -> tuple[int, int, int] | None:
        """Choose a piece to copy and the free worker that computes the copy.

        The choice is the most overdue piece. If no piece is overdue, it is the piece whose answer
        is expected last, if a copy would surely arrive earlier. (If this piece is also the next one
        to be overdue, the way back of the copy is not counted.) The copy goes to the free worker of
        ``workers`` with the shortest way back. The piece is marked as copied. Return the worker,
        the job and the piece, or None if there is nothing to copy.
        """
        if (due := self._first(self._dues)) is None:
            return None
        is_due = due[0] <= now
        entry = due if is_due else self._first(self._latest)
        assert entry is not None  # because both heaps have the same valid entries
        _, _, task, sent = entry
        if not is_due and (sent is self.spared or not self._gains(sent, now, 0.0)):
            return None
        worker = self._soonest(workers, task.worker, now)
        if worker is None:
            return None
        if sent is not due[3] and not self._gains(sent, now, self._way_back_s(worker)):
            self.spared = sent
            return None
        sent.copied = True
        return worker, task.round, sent.piece

    def _soonest(self, workers: Collection[int], but: int, now: float) -> int | None:
        """Return the worker with the shortest way back, or None if no worker is left.

        Worker ``but`` and workers with an overdue piece are left out.
        """
        worker = min(workers, key=self._way_back_s, default=None)
        if worker is None or (worker != but and not self.is_late(worker, now)):
            return worker  # the usual case, which needs no second search
        able = [each for each in workers if each != but and not self.is_late(each, now)]
        return min(able, key=self._way_back_s, default=None)

    def _first(self, heap: list[_Entry]) -> _Entry | None:
        while heap and not _is_valid(heap[0]):
            heapq.heappop(heap)
        return heap[0] if heap else None

    def _gains(self, sent: SentPiece, now: float, way_back_s: float) -> bool:
        copied_at = now + _PATIENCE * (self._rtt_s + self._work_s(sent)) + way_back_s
        return not sent.is_copy and sent.answers_at > copied_at

    def _expect_all(self, queue: Sequence[_Task], free_at: float) -> None:
        for task in queue:
            if task.work is not None and not math.isnan(task.left_at):
                self._expect(task, free_at)
                free_at = task.work.ends_at

    def _expect(self, task: _Task, free_at: float) -> None:
        """Estimate the times of a piece whose worker can begin it at ``free_at`` or later."""
        sent, pace = task.work, self._pace
        if sent is None or not pace.known:
            return
        worker, rtt_s, work_s = task.worker, self._rtt_s, self._work_s(sent)
        way_back_s = usual_s = self._way_back_s(worker)
        if not self._by_coming:
            usual_s = max(usual_s, pace.usual_s)
        sent.ends_at = max(task.left_at + rtt_s, free_at) + work_s
        sent.answers_at = sent.ends_at + way_back_s
        more_s = (_PATIENCE - 1) * (work_s + rtt_s + (way_back_s if self._by_coming else 0.0))
        sent.due_at = sent.ends_at + usual_s + more_s
        self._none_due_before[worker] = min(self._none_due_before[worker], sent.due_at)
        sent.judged = next(self._serial)
        for heap, at in ((self._dues, sent.due_at), (self._latest, -sent.answers_at)):
            heapq.heappush(heap, (at, sent.judged, task, sent))
            if len(heap) > 2 * self._out + _SPARE:  # most entries are invalid
                heap[:] = filter(_is_valid, heap)
                heapq.heapify(heap)

    def _work_s(self, sent: SentPiece) -> float:
        return self._pace.per_batch_s * sent.share

    def _way_back_s(self, worker: int) -> float:
        """Return the way back of a worker's answers, in seconds."""
        if self._by_coming:
            return self._pace.per_coming * self._came_s[worker]
        return self._pace.way_back_s


def _is_valid(entry: _Entry) -> bool:
    _, judged, task, sent = entry
    return judged == sent.judged and not sent.copied and task.is_out
