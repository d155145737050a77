"""`VirtualWorkers`: workers that take what they are dealt, on a virtual clock.

Theory
------
A recorded time says how long one invocation took to answer, and nothing of what happens when its
worker is sent one task after the other. So a recording has to be *read*, and every figure says in
which way (`Reading`). With ``c`` the recorded seconds at load 0 (docs/mathematics.md, section 8):

- *per round*: each round invokes everybody anew. A share f of ``c[round, i]`` passes before worker
  i is there; the rest goes by after its work, before its answer is here. Which share, one recording
  does not tell: try f = 1 (``after = 0``) and f = 1/2.
- *resident*: the workers stay. Worker i takes ``c[0, i]`` to come, once.

In both, what is sent to a worker that is there reaches it after ``rtt / 2``, is begun when what it
was sent before is done, takes ``alpha`` seconds per batch, and its answer another ``rtt / 2``.
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
"""Seconds of a message to a running worker and back, where nobody has measured them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How recorded times of invocations are read where work is dealt.

    ``rtt_s`` >= 0 are the seconds of a message to a running worker and back; None: as the profile
    says, or else `USUAL_RTT_S`. ``after``, from 0 to 1, is the share of an invocation's time that
    follows its work. ``resident``: the workers stay from one round to the next, and what they take
    to come is all that counts of an invocation.

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
        """The reading in a few words, for people."""
        if self.resident:
            return "resident"
        return f"per round, {self.after:.0%} after" if self.after else "per round"

    def split(self, times: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Split times at load 0, (rounds, n) s, into those before a worker's work and after it.

        Both are (rounds, n); of resident workers, who come once, (1, n).
        """
        if self.resident:
            return times[:1], np.zeros_like(times[:1])
        return (1 - self.after) * times, self.after * times


@dataclass(slots=True, eq=False)
class _Errand:
    """A task under way: when it reaches its worker, is begun, is done and is answered."""

    task: Task
    work_s: float
    reaches_at: float
    begins_at: float = math.inf
    ends_at: float = math.inf
    answers_at: float = math.inf  # inf: never, or not any more


@dataclass(slots=True, eq=False)
class _Invocation:
    """A worker that was invoked: it comes, and then does one errand after the other."""

    row: int
    invoked_at: float
    comes_at: float
    silent_at: float
    busy_until: float  # with what has been left out of the queue since it was begun
    free_at: float
    queue: list[_Errand] = field(default_factory=list)  # as they were sent


class VirtualWorkers:
    """A backend of workers that do one task after the other; see this module's head.

    ``before_s`` and ``after_s`` (rounds, n) are the seconds from when worker i is first sent a task
    of a round until it is there, and those that an answer takes beside ``rtt_s``. Rows after the
    last are the last: of a single one, workers come once and for all. ``work_s`` (slots,) are the
    seconds of work of a mini-task, by its slot. ``silent_s`` (rounds, n): so long after it was
    invoked a worker stops for good, and nobody is told.

    A task that is cancelled is not answered. Its worker leaves it out, unless it has begun.

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
        self._invocations: dict[int, _Invocation] = {}  # by worker, its latest
        self._answers: list[tuple[float, int, _Errand]] = []  # a heap; some have been put off
        self._serial = itertools.count()
        self._now = 0.0
        self._billed_s = self._worked_s = 0.0  # of what is over

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return self._now

    @property
    def billed_s(self) -> float:
        """Worker-seconds so far: of each invocation until it has no work, and is not needed."""
        return self._billed_s + sum(self._bill_s(each) for each in self._invocations.values())

    @property
    def worked_s(self) -> float:
        """Seconds of work that has been begun, of all workers together."""
        return self._worked_s + sum(
            errand.work_s
            for invocation in self._invocations.values()
            for errand in invocation.queue
            if errand.begins_at <= self._now
        )

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        row = min(round, len(self._before_s) - 1)
        for task in tasks:
            invocation = self._invocations.get(task.worker)
            if invocation is None or invocation.row < row:
                invocation = self._invoke(task.worker, row)
            work_s = sum([self._work_s[item.slot] for item in task.items])
            errand = _Errand(task, work_s, self._now + self._half_s)
            invocation.queue.append(errand)
            self._time(errand, invocation)
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
                raise ScheduleError("the policy waits for ever: nothing is left to arrive")
            self._now = max(self._now, until)
            return None
        self._now, _, errand = heapq.heappop(answers)
        task, errand.answers_at = errand.task, math.inf
        self._worked_s += errand.work_s
        self._invocations[task.worker].queue.remove(errand)
        return Arrival(
            round=task.round, worker=task.worker, attempt=task.attempt, at=self._now, results={}
        )

    def close(self) -> None:
        """Nothing is held."""

    def _invoke(self, worker: int, row: int) -> _Invocation:
        now = self._now
        if (earlier := self._invocations.get(worker)) is not None:
            self._billed_s += self._bill_s(earlier)
            for errand in earlier.queue:  # a new one knows nothing of these
                errand.answers_at = math.inf
                self._worked_s += errand.work_s if errand.begins_at <= now else 0.0
        # That it is there is known half a round trip after it is.
        comes_at = now + self._before_s[row][worker] - self._half_s
        self._invocations[worker] = invocation = _Invocation(
            row=row,
            invoked_at=now,
            comes_at=comes_at,
            silent_at=now + self._silent_s[row][worker],
            busy_until=comes_at,
            free_at=comes_at,
        )
        return invocation

    def _time(self, errand: _Errand, invocation: _Invocation) -> None:
        """Have an errand begun as soon as its worker has it, and is free."""
        errand.begins_at = max(errand.reaches_at, invocation.free_at)
        errand.ends_at = invocation.free_at = errand.begins_at + errand.work_s
        if errand.ends_at >= invocation.silent_at:
            return
        errand.answers_at = errand.ends_at + self._half_s
        if errand.task.items:  # else it says that it is there
            errand.answers_at += self._after_s[invocation.row][errand.task.worker]
        heapq.heappush(self._answers, (errand.answers_at, next(self._serial), errand))

    def _leave_out(self, round: int, invocation: _Invocation) -> None:
        """Do without a round's errands; those that were to be begun later are, the sooner."""
        heard_at = self._now + self._half_s
        begun = [errand for errand in invocation.queue if errand.begins_at <= heard_at]
        waiting = invocation.queue[len(begun) :]
        for errand in invocation.queue:
            if errand.task.round == round:
                errand.answers_at = math.inf
        if begun:
            invocation.busy_until = begun[-1].ends_at
        self._worked_s += sum(e.work_s for e in begun if e.task.round == round)
        invocation.queue = [e for e in (*begun, *waiting) if e.task.round != round]
        invocation.free_at = invocation.busy_until
        for errand in waiting:
            if errand.task.round != round:
                self._time(errand, invocation)

    def _bill_s(self, invocation: _Invocation) -> float:
        return max(self._now, invocation.free_at) - invocation.invoked_at
