"""`VirtualWorkers`, a backend of workers on a virtual clock, for schemes that deal work.

Theory
------
A recorded time is the time that one invocation took to answer. It does not determine the times of a
worker that gets one task after another. Therefore a recording must be interpreted, and every figure
names its interpretation (`Reading`). Let ``c`` be the recorded seconds at load 0
(docs/mathematics.md, section 8):

- *per round*: each round invokes every worker again. A fraction f of ``c[round, i]`` passes before
  worker i is ready, and the rest passes between the end of its work and its answer. One recording
  does not determine f: try f = 1 (``after = 0``) and f = 1/2.
- *resident*: the workers stay between rounds. Worker i takes ``c[0, i]`` to start, once.

In both interpretations, a task reaches a running worker after ``rtt / 2``, begins when the worker's
earlier tasks are done, takes ``alpha`` seconds per batch, and its answer takes another ``rtt / 2``.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from seqgc.errors import ParameterError, ScheduleError, require_number
from seqgc.ports import Arrival, FloatArray, Task
from seqgc.profiles import MOST_S

__all__ = ["USUAL_RTT_S", "Reading", "VirtualWorkers"]

USUAL_RTT_S: Final = 0.02
"""The assumed round-trip time of a message to a running worker, in seconds, if not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The interpretation of recorded invocation times for schemes that deal work.

    ``rtt_s`` >= 0 is the round-trip time, in seconds, of a message to a running worker. If it is
    None, the profile's value is used, or `USUAL_RTT_S` if the profile has none. ``after``, from 0
    to 1, is the fraction of an invocation's time that passes after its work. If ``resident`` is
    True, workers stay between rounds, and their start is the only cost of an invocation.

    Raises
    ------
    ParameterError
        If an argument breaks its rule.

    Examples
    --------
    >>> Reading(after=0.5).label, Reading(resident=True).label
    ('per round, 50% after', 'resident')
    """

    rtt_s: float | None = None
    after: float = 0.0
    resident: bool = False

    def __post_init__(self) -> None:
        if self.rtt_s is not None:
            require_number("rtt", self.rtt_s, least=0, most=MOST_S)
        if not 0 <= self.after <= 1:
            rule = "must satisfy 0 <= after <= 1 (share of an invocation's time after its work)"
            raise ParameterError("after", rule, self.after)

    @property
    def label(self) -> str:
        """A short description for messages."""
        if self.resident:
            return "resident"
        return f"per round, {self.after:.0%} after" if self.after else "per round"

    def split(self, times: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Split the times at load 0 into the parts before and after a worker's work.

        ``times`` (rounds, n) are in seconds. Both parts are (rounds, n), or (1, n) for resident
        workers, which start once.
        """
        if self.resident:
            return times[:1], np.zeros_like(times[:1])
        return (1 - self.after) * times, self.after * times


@dataclass(slots=True, eq=False)
class _QueuedTask:
    """A task in flight, with the times of its arrival at the worker, begin, end and answer."""

    task: Task
    work_s: float
    reaches_at: float
    begins_at: float = math.inf
    ends_at: float = math.inf
    answers_at: float = math.inf  # inf: it is not answered


@dataclass(slots=True, eq=False)
class _Invocation:
    """An invocation of a worker, which starts, and then executes its tasks one after another."""

    row: int
    invoked_at: float
    silent_at: float
    busy_until: float  # includes tasks that were cancelled after they began
    free_at: float
    queue: list[_QueuedTask] = field(default_factory=list)  # in the order of dispatch


class VirtualWorkers:
    """A backend of virtual workers, each of which executes one task after another.

    The docstring of this module describes the times.

    ``before_s`` (rounds, n) are the seconds from the first task of a worker in a round until the
    worker is ready, and ``after_s`` (rounds, n) are the seconds of an answer in addition to
    ``rtt_s``. Later rounds use the last row; if there is a single row, workers start only once.
    ``work_s`` (slots,) are the seconds of work of the mini-task in each slot. ``silent_s``
    (rounds, n) are the seconds after its invocation at which a worker stops permanently, without a
    message.

    A cancelled task is not answered. If it has not begun, its worker skips it.

    Examples
    --------
    >>> from seqgc.ports import WorkItem
    >>> here = np.array([[0.5, 0.75]])
    >>> workers = VirtualWorkers(here, after_s=0 * here, work_s=np.array([2.0]), rtt_s=0.25)
    >>> left_at = workers.dispatch(0, [Task(round=0, worker=1, attempt=0, items=())])
    >>> workers.receive(math.inf).at
    0.75
    >>> piece = WorkItem(slot=0, parts=())
    >>> left_at = workers.dispatch(0, [Task(round=0, worker=1, attempt=1, items=(piece,))])
    >>> workers.receive(math.inf).at
    3.0
    """

    def __init__(
        self,
        before_s: FloatArray,
        *,
        after_s: FloatArray,
        work_s: FloatArray,
        rtt_s: float,
        silent_s: FloatArray | None = None,
    ) -> None:
        if before_s.ndim != 2:
            rule = "must be a matrix (rounds, workers)"
            raise ParameterError("before_s", rule, before_s.shape)
        never = np.full_like(before_s, np.inf) if silent_s is None else silent_s
        self._before_s, self._after_s = before_s.tolist(), after_s.tolist()
        self._silent_s, self._work_s = never.tolist(), work_s.tolist()
        self._half_s = rtt_s / 2
        self._invocations: dict[int, _Invocation] = {}  # by worker
        self._answers: list[
            tuple[float, int, _QueuedTask]
        ] = []  # a heap; outdated entries are skipped
        self._serial = itertools.count()
        self._now = 0.0
        self._billed_s = self._worked_s = 0.0  # of earlier invocations and finished tasks

    @property
    def now(self) -> float:
        """The time in seconds since the beginning of the run."""
        return self._now

    @property
    def billed_s(self) -> float:
        """The worker-seconds so far; an invocation ends when it has no more work."""
        return self._billed_s + sum(self._bill_s(each) for each in self._invocations.values())

    @property
    def worked_s(self) -> float:
        """The total seconds of all work that has begun."""
        return self._worked_s + sum(
            queued.work_s
            for invocation in self._invocations.values()
            for queued in invocation.queue
            if queued.begins_at <= self._now
        )

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        row = min(round, len(self._before_s) - 1)
        for task in tasks:
            invocation = self._invocations.get(task.worker)
            if invocation is None or invocation.row < row:
                invocation = self._invoke(task.worker, row)
            work_s = sum([self._work_s[item.slot] for item in task.items])
            queued = _QueuedTask(task, work_s, self._now + self._half_s)
            invocation.queue.append(queued)
            self._time(queued, invocation)
        return [self._now] * len(tasks)

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        for worker in workers:
            if (invocation := self._invocations.get(worker)) is not None:
                self._leave_out(round, invocation)

    def receive(self, until: float) -> Arrival | None:
        answers = self._answers
        while answers and answers[0][0] != answers[0][2].answers_at:
            heapq.heappop(answers)
        if not answers or answers[0][0] > until:
            if math.isinf(until):
                raise ScheduleError("the policy waits for ever: no answer is in flight")
            self._now = max(self._now, until)
            return None
        self._now, _, queued = heapq.heappop(answers)
        task, queued.answers_at = queued.task, math.inf
        self._worked_s += queued.work_s
        self._invocations[task.worker].queue.remove(queued)
        return Arrival(
            round=task.round, worker=task.worker, attempt=task.attempt, at=self._now, results={}
        )

    def close(self) -> None:
        """There is nothing to release."""

    def _invoke(self, worker: int, row: int) -> _Invocation:
        now = self._now
        if (earlier := self._invocations.get(worker)) is not None:
            self._billed_s += self._bill_s(earlier)
            for queued in earlier.queue:  # the new invocation does not have these tasks
                queued.answers_at = math.inf
                self._worked_s += queued.work_s if queued.begins_at <= now else 0.0
        # The worker is ready half a round trip before the master is told.
        ready_at = now + self._before_s[row][worker] - self._half_s
        self._invocations[worker] = invocation = _Invocation(
            row=row,
            invoked_at=now,
            silent_at=now + self._silent_s[row][worker],
            busy_until=ready_at,
            free_at=ready_at,
        )
        return invocation

    def _time(self, queued: _QueuedTask, invocation: _Invocation) -> None:
        """Set the times of a task, which begins when its worker has received it and is free."""
        queued.begins_at = max(queued.reaches_at, invocation.free_at)
        queued.ends_at = invocation.free_at = queued.begins_at + queued.work_s
        if queued.ends_at >= invocation.silent_at:
            return
        queued.answers_at = queued.ends_at + self._half_s
        if queued.task.items:  # a task without items only asks whether the worker is ready
            queued.answers_at += self._after_s[invocation.row][queued.task.worker]
        heapq.heappush(self._answers, (queued.answers_at, next(self._serial), queued))

    def _leave_out(self, round: int, invocation: _Invocation) -> None:
        """Remove the tasks of a round from the queue, so that later tasks begin earlier."""
        heard_at = self._now + self._half_s
        begun = [queued for queued in invocation.queue if queued.begins_at <= heard_at]
        waiting = invocation.queue[len(begun) :]
        for queued in invocation.queue:
            if queued.task.round == round:
                queued.answers_at = math.inf
        if begun:
            invocation.busy_until = begun[-1].ends_at
        self._worked_s += sum(e.work_s for e in begun if e.task.round == round)
        invocation.queue = [e for e in (*begun, *waiting) if e.task.round != round]
        invocation.free_at = invocation.busy_until
        for queued in waiting:
            if queued.task.round != round:
                self._time(queued, invocation)

    def _bill_s(self, invocation: _Invocation) -> float:
        return max(self._now, invocation.free_at) - invocation.invoked_at
