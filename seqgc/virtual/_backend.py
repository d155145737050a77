"""`VirtualBackend`: workers with a pace, on a virtual clock that runs from 0 to the end of a run.

Theory
------
No worker computes or sleeps. The times of a task follow from the worker's earlier tasks, so they
are known when the task is sent, and change only if an earlier task is cancelled or the worker is
replaced. The answers wait in a heap, and the clock jumps from one to the next. A policy therefore
gets the answers that real workers of this pace would give, at the times at which they would.

There are two kinds of workers:

- *function*: each task is a separate invocation and begins when it arrives. The tasks of a worker
  do not wait for each other. A cancelled task is not answered, but runs, and is paid for, to its
  end. Only the part that was done before the cancellation counts as work of its worker (`Pace`).
- *resident*: a worker does one task at a time, in the order in which the tasks arrive. A task that
  has begun is finished, even if it is cancelled. A cancelled task that has not begun is left out.

Answers of the same time arrive in the order of the workers' numbers. A task that would begin at the
moment at which its cancellation arrives does not begin, unless the policy has let that moment pass.

If a task asks for an answer to each mini-task (`seqgc.ports.Task.item_loads`), the k-th answer
comes when a task of the first k mini-tasks alone would end (docs/mathematics.md, section 7). If the
task is cut short by a fault or a restart, the mini-tasks that were done before are answered.

With a `seqgc.profiles.ByInvocation`, workers have to start, once or in every round, and answers
take some time on their way back.

`seqgc.search.ReplayBackend` is for rounds, and starts its clock again in each round. Here, the
duration of a round is a difference of two times: both agree to about the 16th digit of these times.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

import numpy as np

from seqgc.errors import ParameterError, ScheduleError, WorkerError, require_int, require_number
from seqgc.ports import Arrival, Failure, FloatArray, PartialArrival, Task
from seqgc.profiles import ByInvocation, Pace, RestartablePace, load_within, task_seconds
from seqgc.virtual._computing import Compute, answer, partial_answer
from seqgc.virtual._faults import Fault, Faults

__all__ = ["VirtualBackend", "WorkerKind"]

WorkerKind: TypeAlias = Literal["resident", "function"]


@dataclass(slots=True, eq=False)
class _QueuedTask:
    """A task in flight, and the times that follow from the tasks before it."""

    task: Task
    load: float
    reaches_at: float
    fault: Fault | None
    begins_at: float = field(init=False)
    ends_at: float = field(init=False)
    answers_at: float = field(init=False)  # inf: it is not answered
    free_before: float = field(init=False)  # the worker's state before this task
    busy_before: float = field(init=False)
    done_before: float = field(init=False)
    silent_before: float = field(init=False)
    cancelled: bool = False
    lost: str = ""  # the reason, if its worker was replaced before the end
    # The items whose partial answers are to come, each with its end and the time of its answer.
    parts: tuple[tuple[int, float, float], ...] = ()
    answered: tuple[int, ...] = ()  # items


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker's tasks in flight, in the order in which they begin, and the state after the last.

    A resident worker finishes a cancelled task that has begun; the task stays in the queue.
    """

    queue: list[_QueuedTask] = field(default_factory=list)
    free_at: float = 0.0
    busy_s: float = 0.0
    done: float = 0.0
    silent_at: float = math.inf  # no task that ends at this time or later is answered
    invocation: int = -1
    invoked_at: float = 0.0
    way_back_s: float = 0.0

    def go_back(self, queued: _QueuedTask) -> None:
        """Return to the state before a task."""
        self.free_at, self.busy_s = queued.free_before, queued.busy_before
        self.done, self.silent_at = queued.done_before, queued.silent_before

    def at(self, now: float) -> tuple[float, float, float]:
        """Return `free_at`, `busy_s` and `done` without the tasks that begin after ``now``."""
        for queued in self.queue:
            if queued.begins_at > now:
                return queued.free_before, queued.busy_before, queued.done_before
        return self.free_at, self.busy_s, self.done


_CLOSED: Final = "the backend is closed"

_Event: TypeAlias = tuple[float, int, int, _QueuedTask]
"""A time, a place among the events of this time, a serial number, and a task.

The place is the worker if the worker dies of the task, and n + worker for an answer: all deaths
come before all answers. The serial number prevents that tasks are compared.
"""


class VirtualBackend:
    """A backend of n workers in virtual time, as the module docstring describes.

    A task and its answer take ``message_s`` seconds each, in addition to the time of the ``pace``.
    ``compute`` computes the results, for runs that decode; if it is None, answers are empty.
    ``faults`` decides which tasks fail. A worker that has died, or is restarted, is ready again
    after ``restart_s`` seconds (see `RestartablePace`). ``load_of`` returns the load of a task; by
    default, it is the load that the policy states (`seqgc.ports.Task.load`).

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
        load_of: Callable[[Task], float] | None = None,
    ) -> None:
        if pace.n != require_int("n", n, least=1):
            raise ParameterError("pace", f"must be of {n} workers", pace.n)
        if workers not in get_args(WorkerKind):
            raise ParameterError(
                "workers", f"must be one of {', '.join(get_args(WorkerKind))}", workers
            )
        self._pace, self._compute, self._faults, self._load_of = pace, compute, faults, load_of
        self._last_invocation = len(pace.before_s) - 1 if isinstance(pace, ByInvocation) else -1
        self._is_resident = workers == "resident"
        if self._is_resident:  # a function has a separate invocation for each task
            self.restart: Callable[[int], None] = self._restart
        self._message_s = require_number("message_s", message_s, least=0)
        self._restart_s = require_number("restart_s", restart_s, least=0)
        self._now, self._closed = 0.0, False
        self.sends_parts: Final = True
        self._serial = itertools.count()
        self._events: list[_Event] = []  # a heap; outdated entries are skipped
        self._n, self._workers = n, [_Worker() for _ in range(n)]
        self._settled_at = -math.inf  # all tasks that begin at this time or earlier have begun
        self._billed_s = 0.0  # of earlier invocations

    @property
    def now(self) -> float:
        """The time in seconds since the beginning of the run."""
        return self._now

    @property
    def busy_s(self) -> FloatArray:
        """(n,) seconds of all tasks that each worker has begun, to the end of each task."""
        return self._states()[:, 1]

    @property
    def free_at(self) -> FloatArray:
        """(n,) the times, in seconds, at which each worker has done all tasks that it has begun."""
        return self._states()[:, 0]

    @property
    def done(self) -> FloatArray:
        """(n,) load that each worker has done: all tasks begun, without the parts cut off."""
        return self._states()[:, 2]

    @property
    def billed_s(self) -> float:
        """The worker-seconds of all invocations; each ends when it has no more work."""
        return self._billed_s + sum(self._bill_s(worker) for worker in self._workers)

    def _states(self) -> FloatArray:
        return np.array([worker.at(self._now) for worker in self._workers])

    def dispatch(self, round: int, tasks: Sequence[Task]) -> Sequence[float]:
        """Send the tasks, all at this moment."""
        if self._closed:
            raise WorkerError(_CLOSED)
        tasks, n = list(tasks), self._n
        for task in tasks:
            if task.round != round:
                raise ParameterError("tasks", f"must all be of round {round}", task.round)
            if not 0 <= task.worker < n:
                self._require_worker(task.worker)
        reaches_at, load_of, faults = self._now + self._message_s, self._load_of, self._faults
        invocation = min(round, self._last_invocation)
        for task in tasks:
            worker = self._workers[task.worker]
            if worker.invocation < invocation:
                self._invoke(task.worker, invocation)
            load = task.load if load_of is None else load_of(task)
            queued = _QueuedTask(task, load, reaches_at, faults(task) if faults else None)
            worker.queue.append(queued)
            self._time(queued, worker)
        return [self._now] * len(tasks)

    def cancel(self, round: int, workers: Sequence[int]) -> None:
        """Cancel all tasks of these workers in a round, which are then not answered."""
        if self._closed:
            raise WorkerError(_CLOSED)
        for number in workers:
            worker = self._workers[number]
            if any(each.task.round == round for each in worker.queue):
                self._leave_out(round, worker)

    def receive(self, until: float) -> Arrival | PartialArrival | Failure | None:
        """Return the next answer or failure by ``until``, or None, and let that much time pass."""
        if self._closed:
            raise WorkerError(_CLOSED)
        events = self._events
        while events and events[0][0] <= until:
            at, place, _, queued = heapq.heappop(events)
            if place < self._n:
                if self._workers[place].silent_at == at and queued.fault is not None:
                    self._now = at
                    self._replace(place, queued.fault.reason, known_at=at + self._message_s)
            elif queued.parts and queued.parts[0][2] == at:
                if (part := self._next_part(queued)) is not None:
                    return part
            elif queued.answers_at == at:
                self._now, queued.answers_at = at, math.inf
                self._workers[queued.task.worker].queue.remove(queued)
                if queued.fault is None and not queued.lost:
                    done = queued.answered
                    return answer(queued.task, at=at, compute=self._compute, but=done)
                return self._failure(queued)
        if until == math.inf:
            raise ScheduleError("the policy waits for ever: nothing is left to arrive")
        self._now = self._settled_at = max(self._now, until)
        return None

    def _restart(self, worker: int) -> None:
        """Replace a worker by a new one: its tasks fail at this moment."""
        if self._closed:
            raise WorkerError(_CLOSED)
        self._require_worker(worker)
        self._replace(worker, "the virtual worker was restarted", known_at=self._now)

    def close(self) -> None:
        """Refuse all calls from now on; there is nothing to release."""
        self._closed = True

    def _require_worker(self, worker: int) -> None:
        if not 0 <= worker < self._n:
            rule = f"must satisfy 0 <= worker < {self._n}"
            raise ParameterError("worker", rule, worker)

    # ---- times ----------------------------------------------------------------------------------

    def _time(self, queued: _QueuedTask, worker: _Worker) -> None:
        """Set the times of the last task of a queue, and add it to the worker's state."""
        task, load, fault = queued.task, queued.load, queued.fault
        free_at, done, silent_at = worker.free_at, worker.done, worker.silent_at
        begins_at = queued.reaches_at
        if free_at > begins_at and self._is_resident:
            begins_at = free_at
        queued.free_before, queued.busy_before = free_at, worker.busy_s
        queued.done_before, queued.silent_before = done, silent_at
        seconds = task_seconds(
            self._pace, task.worker, round=task.round, at=begins_at, done=done, load=load
        )
        if fault is not None:
            seconds, load = fault.share * seconds, fault.share * load
        queued.begins_at = begins_at
        queued.ends_at = ends_at = begins_at + seconds
        if task.item_loads:
            self._time_parts(queued, worker)
        worker.busy_s += seconds
        worker.done = done + load
        if ends_at > free_at:
            worker.free_at = ends_at
        if ends_at >= silent_at:
            queued.answers_at = math.inf
            return
        answers_at = ends_at + self._message_s
        if worker.way_back_s and task.items:  # a task without items only asks: is the worker ready?
            answers_at += worker.way_back_s
        queued.answers_at = answers_at
        event = answers_at, self._n + task.worker, next(self._serial), queued
        heapq.heappush(self._events, event)
        if fault is not None and fault.dies and self._is_resident:
            worker.silent_at = ends_at
            heapq.heappush(self._events, (ends_at, task.worker, next(self._serial), queued))

    def _time_parts(self, queued: _QueuedTask, worker: _Worker) -> None:
        """Set the times of a task's partial answers; its own times are known."""
        task, parts, load = queued.task, list[tuple[int, float, float]](), 0.0
        for item, item_load in enumerate(task.item_loads[:-1]):
            load += item_load
            seconds = task_seconds(
                self._pace,
                task.worker,
                round=task.round,
                at=queued.begins_at,
                done=worker.done,
                load=load,
            )
            ends_at = queued.begins_at + max(0.0, seconds)
            if ends_at > queued.ends_at and queued.fault is not None:
                break
            ends_at = min(ends_at, queued.ends_at)  # sums of loads are rounded
            if ends_at >= worker.silent_at:
                break
            parts.append((item, ends_at, ends_at + self._message_s + worker.way_back_s))
        queued.parts = tuple(parts)
        self._expect_part(queued)

    def _expect_part(self, queued: _QueuedTask) -> None:
        if queued.parts:
            place = self._n + queued.task.worker
            heapq.heappush(self._events, (queued.parts[0][2], place, next(self._serial), queued))

    def _next_part(self, queued: _QueuedTask) -> PartialArrival | None:
        """Return the next partial answer, or None if its result has flaws and waits for the end."""
        (item, _, self._now), *later = queued.parts
        queued.parts = tuple(later)
        self._expect_part(queued)
        part = partial_answer(queued.task, item, at=self._now, compute=self._compute)
        if part is not None:
            queued.answered += (item,)
        return part

    def _leave_out(self, round: int, worker: _Worker) -> None:
        """Cancel the tasks of a round, so that the tasks that wait for them begin earlier."""
        heard_at = self._now + self._message_s
        begun = [
            each
            for each in worker.queue
            if each.begins_at < heard_at or each.begins_at <= self._settled_at
        ]
        waiting = worker.queue[len(begun) :]
        if waiting:
            worker.go_back(waiting[0])
        for queued in (each for each in worker.queue if each.task.round == round):
            queued.answers_at, queued.cancelled, queued.parts = math.inf, True, ()
        for queued in begun:
            if queued.cancelled and not self._is_resident:
                self._cut(queued, worker, at=heard_at)
        worker.queue = [
            each
            for each in begun
            if not each.cancelled or (self._is_resident and each.ends_at > self._now)
        ]
        for queued in (each for each in waiting if not each.cancelled):
            worker.queue.append(queued)
            self._time(queued, worker)

    def _cut(self, queued: _QueuedTask, worker: _Worker, *, at: float) -> None:
        """Count only the load that a task has done by the time ``at``; it must have begun."""
        if at >= queued.ends_at:
            return
        task, pace, begins_at = queued.task, self._pace, queued.begins_at
        load = queued.load if queued.fault is None else queued.fault.share * queued.load
        from_s = begins_at + pace.latency_s(task.worker, round=task.round, at=begins_at)
        part = load_within(
            pace,
            task.worker,
            round=task.round,
            at=from_s,
            done=queued.done_before,
            load=load,
            within_s=at - from_s,
        )
        worker.done -= load - part

    def _replace(self, number: int, reason: str, *, known_at: float) -> None:
        """Let all tasks fail that a worker has not done; a new worker is ready a little later."""
        worker, now = self._workers[number], self._now
        unfinished = [each for each in worker.queue if each.ends_at > now]
        if waiting := [each for each in unfinished if each.begins_at >= now]:
            worker.go_back(waiting[0])
        for queued in unfinished:
            if queued.begins_at < now:
                worker.busy_s -= queued.ends_at - now
                self._cut(queued, worker, at=now)
            queued.begins_at, queued.ends_at = -math.inf, now
            queued.parts = tuple(part for part in queued.parts if part[1] <= now)
            if not queued.cancelled:
                queued.lost, queued.answers_at = reason, known_at
                event = known_at, self._n + number, next(self._serial), queued
                heapq.heappush(self._events, event)
        worker.queue = [each for each in worker.queue if not each.cancelled]
        worker.free_at, worker.silent_at = now + self._restart_s, math.inf
        if isinstance(self._pace, RestartablePace):
            self._pace = self._pace.restarted(number, at=now)

    def _failure(self, queued: _QueuedTask) -> Failure:
        task, fault = queued.task, queued.fault
        return Failure(
            round=task.round,
            worker=task.worker,
            attempt=task.attempt,
            at=self._now,
            reason=queued.lost or (fault.reason if fault else ""),
            final=fault is not None and fault.final,
        )

    # ---- invocations ----------------------------------------------------------------------------

    def _invoke(self, number: int, invocation: int) -> None:
        """Start a worker again, without the tasks of its earlier invocation."""
        worker, now, pace, at = self._workers[number], self._now, self._pace, (invocation, number)
        assert isinstance(pace, ByInvocation)
        self._billed_s += self._bill_s(worker)
        for queued in worker.queue:
            queued.answers_at, queued.parts = math.inf, ()
        _, worker.busy_s, worker.done = worker.at(now)
        worker.queue = []
        # The worker is ready half a round trip before the master is told.
        worker.free_at = now + float(pace.before_s[at]) - self._message_s
        worker.silent_at = now + float(pace.silent_s[at])
        worker.way_back_s = float(pace.after_s[at])
        worker.invocation, worker.invoked_at = invocation, now

    def _bill_s(self, worker: _Worker) -> float:
        return max(self._now, worker.free_at) - worker.invoked_at if worker.invocation >= 0 else 0.0
