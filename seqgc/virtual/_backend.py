"""`VirtualBackend`: workers with a pace, on a virtual clock that runs from 0 to the end of a run.

Theory
------
Nobody computes and nobody sleeps: what happens next is the earliest thing on a heap, and the clock
jumps there. Times of day, windows of a minute, sleeps and latencies therefore mean what they say,
and what a policy was told is what workers of this pace would have told it.

Two kinds of workers differ in what a second task does to a first:

- *function*: every task is an invocation of its own and begins as soon as it gets there. Tasks of
  one worker do not wait for each other, and none can be stopped: a task that is cancelled is no
  longer answered, and is paid for to its end. Of a cancelled task only the part that was done
  before the cancellation counts as work of its worker (`Pace`).
- *resident*: a worker does one task at a time; of those that wait, the one of the least round comes
  first, and of those of a round the one that came first. What has begun is finished, cancelled or
  not; what has not, and is cancelled, is left out.

At one instant everything that happens then is known before anyone begins anything new: a worker
that is free at 3 s chooses among all that it has been sent by 3 s, in whatever order that was.

`seqgc.search.ReplayBackend` is for rounds, and starts its clock anew with each of them. Here a
round's times are differences of times of day: the same to about the 16th digit of those.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from seqgc.errors import ParameterError, ScheduleError, WorkerError, require_int, require_number
from seqgc.ports import Arrival, Failure, FloatArray, Task
from seqgc.profiles import Pace, RestartablePace, load_within, task_seconds
from seqgc.virtual._computing import Compute, answer
from seqgc.virtual._faults import Faults

__all__ = ["VirtualBackend", "WorkerKind"]

WorkerKind: TypeAlias = Literal["resident", "function"]

# What happens at one time happens in this order, and answers by worker.
_REACHES, _IS_FREE, _ANSWERS = range(3)


@dataclass(slots=True, eq=False)
class _Errand:
    """A task on its way, waiting, under way, or over and its answer on the way back."""

    task: Task
    off_at: float = math.inf  # its worker hears then that it is cancelled
    begins_at: float = math.inf
    ends_at: float = math.inf  # finite once it has begun
    done_before: float = 0.0  # load that its worker had done when it began
    counted: float = 0.0  # the part of its own load that counts as done
    over: bool = False
    dies: bool = False
    reason: str = ""  # why it fails, if it does
    final: bool = False


_Event: TypeAlias = tuple[float, int, int, int, _Errand | None]
"""When, what, of which worker; a serial number, so that heaps do not compare errands; of which."""


class VirtualBackend:
    """A backend of n workers in virtual time; see this module's head.

    Task and answer take ``message_s`` seconds each, beside what the ``pace`` says. ``compute``
    makes results, for runs that decode; without it answers are empty. ``faults`` says which tasks
    fail; a worker that has died, or is restarted, is back after ``restart_s`` seconds, and a
    `RestartablePace` is told.

    Raises
    ------
    ParameterError
        If an argument breaks its rule, or the pace is of another number of workers.

    Examples
    --------
    Worker 1 takes four times as long as worker 0, whatever it does:

    >>> from seqgc.profiles import ByRound
    >>> pace = ByRound(latencies_s=[[0.5, 0.5]], rates=[[2.0, 8.0]])
    >>> for kind in ("resident", "function"):
    ...     backend = VirtualBackend(2, pace, workers=kind)
    ...     for k in range(2):
    ...         tasks = [Task(round=k, worker=i, attempt=0, items=(), load=0.25) for i in range(2)]
    ...         left_at = backend.dispatch(k, tasks)
    ...     [backend.receive(math.inf).at for _ in range(4)], backend.busy_s.tolist()
    ([1.0, 2.0, 2.5, 5.0], [2.0, 5.0])
    ([1.0, 1.0, 2.5, 2.5], [2.0, 5.0])
    """

    def __init__(
        self,
        n: int,
        pace: Pace,
        *,
        workers: WorkerKind = "resident",
        message_s: float = 0.0,
        compute: Compute | None = None,
        faults: Faults | None = None,
        restart_s: float = 0.0,
    ) -> None:
        if pace.n != require_int("n", n, least=1):
            raise ParameterError("pace", f"must be of {n} workers", pace.n)
        if workers not in get_args(WorkerKind):
            raise ParameterError(
                "workers", f"must be one of {', '.join(get_args(WorkerKind))}", workers
            )
        self._pace, self._compute, self._faults = pace, compute, faults
        self._is_resident = workers == "resident"
        if self._is_resident:  # of a function every task has an invocation of its own
            self.restart: Callable[[int], None] = self._restart
        self._message_s = require_number("message_s", message_s, least=0)
        self._restart_s = require_number("restart_s", restart_s, least=0)
        self._now, self._closed = 0.0, False
        self._serial = itertools.count()
        self._events: list[_Event] = []  # a heap
        self._owed: list[list[_Errand]] = [[] for _ in range(n)]  # by worker, as they were sent
        self._waiting: list[list[tuple[int, int, _Errand]]] = [[] for _ in range(n)]  # heaps
        self._under_way: list[list[_Errand]] = [[] for _ in range(n)]
        self._to_look_at: set[int] = set()  # workers that may have something to begin now
        self._busy_s, self._done, self._free_at = [0.0] * n, [0.0] * n, [0.0] * n

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return self._now

    @property
    def busy_s(self) -> FloatArray:
        """(n,) seconds of all tasks that each worker has begun, each to its end."""
        return np.array(self._busy_s)

    @property
    def free_at(self) -> FloatArray:
        """(n,) when each worker is, or was, done with all that it has begun, seconds."""
        return np.array(self._free_at)

    @property
    def done(self) -> FloatArray:
        """(n,) load that counts as done by each worker: all tasks begun, less what was cut off."""
        return np.array(self._done)

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        """Send the tasks; all leave now."""
        self._check_open()
        tasks = list(tasks)
        for task in tasks:
            if task.round != round:
                raise ParameterError("tasks", f"must all be of round {round}", task.round)
            self._require_worker(task.worker)
        for task in tasks:
            self._owed[task.worker].append(errand := _Errand(task))
            self._plan(_REACHES, self._now + self._message_s, task.worker, errand)
        return [self._now] * len(tasks)

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        """Do without what these workers owe of a round: it is not answered any more."""
        self._check_open()
        for worker in workers:
            for errand in self._owed[worker]:
                if errand.task.round == round:
                    self._call_off(errand)
            self._owed[worker] = [each for each in self._owed[worker] if each.task.round != round]

    def receive(self, until: float) -> Arrival | Failure | None:
        """Return the next answer or failure by ``until``, or None, and let that much time pass."""
        self._check_open()
        while (at := self._next_at()) <= until and at < math.inf:
            self._now = max(self._now, at)
            if (event := self._happen(heapq.heappop(self._events))) is not None:
                return event
        if until == math.inf:
            raise ScheduleError("the policy waits for ever: nothing is left to arrive")
        self._now = max(self._now, until)
        return None

    def _call_off(self, errand: _Errand) -> None:
        errand.off_at = self._now + self._message_s
        if not self._is_resident and errand.begins_at < math.inf:
            self._cut(errand, at=errand.off_at)

    def _cut(self, errand: _Errand, *, at: float) -> None:
        """Count only the load that a task has done by the time ``at``; it must have begun."""
        if at >= errand.ends_at:
            return
        task, worker, pace = errand.task, errand.task.worker, self._pace
        from_s = errand.begins_at
        from_s += pace.latency_s(worker, round=task.round, at=errand.begins_at)
        part = load_within(
            pace,
            worker,
            round=task.round,
            at=from_s,
            done=errand.done_before,
            load=errand.counted,
            within_s=at - from_s,
        )
        self._done[worker] -= errand.counted - part
        errand.counted = part

    def _restart(self, worker: int) -> None:
        """Replace a worker by a fresh one: what it owes fails now, and it is back later."""
        self._check_open()
        self._require_worker(worker)
        self._replace(worker, "the virtual worker was restarted", known_at=self._now)

    def close(self) -> None:
        """Do nothing from now on; nothing is held."""
        self._closed = True

    # ---- what happens ---------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise WorkerError("the backend is closed")

    def _require_worker(self, worker: int) -> None:
        if not 0 <= worker < len(self._owed):
            raise ParameterError("worker", f"must satisfy 0 <= worker < {len(self._owed)}", worker)

    def _plan(self, kind: int, at: float, worker: int, errand: _Errand | None) -> None:
        heapq.heappush(self._events, (at, kind, worker, next(self._serial), errand))

    def _next_at(self) -> float:
        """Return when the next thing happens, with all begun that can be before time goes on."""
        if not (self._events and self._events[0][0] <= self._now):
            for worker in sorted(self._to_look_at):
                self._begin_what_waits(worker)
            self._to_look_at.clear()
        return self._events[0][0] if self._events else math.inf

    def _happen(self, event: _Event) -> Arrival | Failure | None:
        _, kind, worker, serial, errand = event
        if kind == _ANSWERS and errand is not None:
            return self._answer(errand)
        if errand is not None and errand.over:
            return None
        self._to_look_at.add(worker)
        if errand is not None and kind == _REACHES:
            heapq.heappush(self._waiting[worker], (errand.task.round, serial, errand))
        elif errand is not None:
            self._end(errand)
        return None

    def _begin_what_waits(self, worker: int) -> None:
        waiting = self._waiting[worker]
        while waiting and not (self._is_resident and self._free_at[worker] > self._now):
            _, _, errand = heapq.heappop(waiting)
            if errand.off_at > self._now:
                self._begin(errand)

    def _begin(self, errand: _Errand) -> None:
        task, worker, now = errand.task, errand.task.worker, self._now
        seconds = task_seconds(
            self._pace, worker, round=task.round, at=now, done=self._done[worker], load=task.load
        )
        errand.begins_at, errand.done_before = now, self._done[worker]
        share = 1.0
        if self._faults is not None and (fault := self._faults(task)) is not None:
            share, errand.dies, errand.reason = fault.share, fault.dies, fault.reason
            errand.final = fault.final
        errand.ends_at = now + share * seconds
        self._busy_s[worker] += share * seconds
        errand.counted = share * task.load
        self._done[worker] += errand.counted
        if not self._is_resident and errand.off_at < math.inf:  # by then it has begun
            self._cut(errand, at=errand.off_at)
        self._free_at[worker] = max(self._free_at[worker], errand.ends_at)
        self._under_way[worker].append(errand)
        self._plan(_IS_FREE, errand.ends_at, worker, errand)

    def _end(self, errand: _Errand) -> None:
        worker, errand.over = errand.task.worker, True
        self._under_way[worker].remove(errand)
        known_at = self._now + self._message_s
        self._plan(_ANSWERS, known_at, worker, errand)
        if errand.dies and self._is_resident:
            self._replace(worker, errand.reason, known_at=known_at)

    def _replace(self, worker: int, reason: str, *, known_at: float) -> None:
        """Have all that a worker has not done fail; a fresh one is there a little later."""
        for errand in self._owed[worker]:
            if not errand.over:  # else its answer is on the way
                errand.reason = reason
                self._plan(_ANSWERS, known_at, worker, errand)
        for errand in (*self._owed[worker], *self._under_way[worker]):
            errand.over = True
        for errand in self._under_way[worker]:
            self._busy_s[worker] -= errand.ends_at - self._now
            self._cut(errand, at=self._now)
        self._under_way[worker], self._waiting[worker] = [], []
        self._free_at[worker] = self._now + self._restart_s
        self._plan(_IS_FREE, self._free_at[worker], worker, None)
        if isinstance(self._pace, RestartablePace):
            self._pace = self._pace.restarted(worker, at=self._now)

    def _answer(self, errand: _Errand) -> Arrival | Failure | None:
        task, owed = errand.task, self._owed[errand.task.worker]
        if errand not in owed:
            return None
        owed.remove(errand)
        if not errand.reason:
            return answer(task, at=self._now, compute=self._compute)
        return Failure(
            round=task.round,
            worker=task.worker,
            attempt=task.attempt,
            at=self._now,
            reason=errand.reason,
            final=errand.final,
        )
