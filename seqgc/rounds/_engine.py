"""`Engine`: the life of a task, for every policy that gives its workers task after task.

Theory of operation
-------------------
A subclass is a *strategy*: it decides which worker does what. The engine knows the tasks of all
workers, their addresses and time limits, and when a run has become hopeless. Each worker has a
queue of the tasks that it holds, at most `Engine.ahead` at a time. It computes them in this order.
A task in a queue is in one of two states:

========  ======================================================================================
``out``   it has been sent, and its answer is awaited
``wait``  it has failed, and will be sent again
========  ======================================================================================

A worker may also *rest*: it gets no new task until a certain time, or until it has answered. A
worker for which the strategy had no work is *idle*. A worker has *room* for a task if it does not
rest, holds fewer than ``ahead`` tasks, and none of its tasks waits. After a failure it holds one
task at a time, until an answer (`Engine.is_wary`).

========  ===============================  =======  ================================================
from      what happens                     to       the engine
========  ===============================  =======  ================================================
          a worker has room, and the       ``out``  sends the new task: `Dispatch`
          strategy has work (`_next`)
``out``   its answer arrives               ended    tells the strategy (`_done`), and then asks it
                                                    for more work for the worker
``out``   the answer to one of its         ``out``  tells the strategy (`_part_done`); the time
          mini-tasks arrives                        limit begins again
``out``   it fails                         ``wait`` tells the strategy (`_lost`), which calls
                                           or       `_retry`, or gives the work to others and calls
                                           ended    `_release`: then the worker rests
``out``   its time limit has passed        ``wait`` replaces the worker (`Restart`); all tasks of
                                           or       the worker that are ``out`` count as failed. If
                                           ended    `Engine.awaits_late`, they stay ``out``
``wait``  its time has come                ``out``  sends the task as a new attempt
``wait``  `_release`                       ended    sends `Cancel`; the worker rests
either    `_call_off`                      ended    sends `Cancel`, and asks the strategy for work
========  ===============================  =======  ================================================

An answer or failure that belongs to no task in the state ``out`` is dropped, and changes nothing. A
strategy that asks for a transition that is not in the table gets a `ScheduleError`.

*Cancel.* A `Cancel` ends all tasks of a worker in a round. Therefore the engine does not send it
before the worker holds no other task of this round.

*Waits.* After the first failure a task is sent again at once. The waits after further failures are
random, and longer on average after each failure (`Retries`). Failures in a row are counted for each
worker. If a worker held several tasks when one of them failed, and `Engine.is_wary`, the failures
of its other tasks are not counted. A strategy may also count the failures of each piece of its
work.

*Silence.* The engine counts for each worker how many time limits have passed. An answer or a
failure of any task that is ``out`` resets the counts of all workers. If the count of every worker
that could do the work (`_able`) reaches `TIME_LIMITS`, the run ends. It also ends if every worker
has failed 20 times in a row (or ``max_attempts`` times, if this is more), and no task with work is
``out``.

*Alarms.* An event is handled in three steps. First the state changes (`_settle`), then the alarms
that are due are called, and then new tasks are sent (`_proceed`). Alarms are set to times of the
backend. If an alarm was due before an event, the master was busy or stopped, and other events that
happened before the alarm may not have been read yet. The alarm then waits for its own `Tick`, which
the loop sends after all these events.

*Order.* All other actions of an event come before the actions that send tasks because of it. Tasks
of the same round and attempt leave together. If workers have room for several tasks, every worker
is given a first task before any worker is given a second one.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

from seqgc import ports
from seqgc.errors import ScheduleError, WorkerError, require_int
from seqgc.ports import Action, Arrival, Dispatch, Event, Failure, PartialArrival
from seqgc.rounds._alarms import Alarms
from seqgc.rounds._foreign import require_worker
from seqgc.rounds._retries import Retries
from seqgc.rounds._rule import TIME_LIMITS, ClosingRule

__all__ = ["Engine", "EngineTask", "Loss"]

Work = TypeVar("Work")

_Call: TypeAlias = Callable[[list[Action]], None]


@dataclass(slots=True, kw_only=True, eq=False)
class EngineTask(Generic[Work]):
    """A task in a worker's queue: its ``work``, and the address under which it was sent last.

    If ``work`` is None, the task is a greeting: its answer shows that the worker is up.
    """

    worker: int
    round: int
    attempt: int
    work: Work | None
    left_at: float = math.nan  # when it left the master last, in seconds
    is_out: bool = True  # False if it has been answered, has failed, or is not needed any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss(Generic[Work]):
    """A task that has failed, the reason, and the seconds to wait before the next attempt.

    If ``is_repeated``, another task of the worker had failed before, and the worker has answered no
    task with work since. If ``is_flawed``, the worker has answered, but its result cannot be used
    (`Failure.flaws`). If ``is_final``, the worker has reached the allowed number of failures in a
    row (`Retries.exhausted`).
    """

    task: EngineTask[Work]
    why: str
    wait_s: float
    is_repeated: bool
    is_flawed: bool
    is_final: bool


class Engine(ABC, Generic[Work]):
    """A policy that gives each of ``n`` workers one task after the other, for ``num_jobs`` jobs.

    The module's docstring explains how it works. Of the ``rule``, the engine uses only the time
    limit and the number of attempts.
    """

    ahead: int = 1
    """The largest number of tasks that a worker holds."""
    awaits_late: bool = False
    """If True, a task whose time limit has passed does not count as failed: its late answer is
    still used."""
    is_wary: bool = True
    """If True, a worker that has failed holds one task at a time, until it answers a task with
    work. If it held other tasks when it failed, their failures are not counted."""

    counts_called_off: bool = False
    """If True, the time of tasks that were called off counts as well: a worker is replaced if
    nothing was heard from it for a time limit, although each of its tasks was out for less."""

    def __init__(self, n: int, rule: ClosingRule, *, num_jobs: int) -> None:
        self._n, self._rule = n, rule
        self._num_jobs = require_int("num_jobs", num_jobs, least=0)
        self._now = -math.inf
        self._alarms = Alarms[_Call]()
        self._retries = Retries(rule)
        # By worker that holds tasks: these tasks, in the order in which they were sent.
        self._queues: dict[int, list[EngineTask[Work]]] = {}
        self._waiting = Counter[int]()  # by worker: tasks that wait
        self._to_cancel: set[tuple[int, int]] = set()  # rounds and workers, see "Cancel" above
        self._resting: dict[int, float] = {}  # by worker: when its rest ends
        # By worker: the times of its last counted failure, and of the next attempt.
        self._until: dict[int, tuple[float, float]] = {}
        self._failing: dict[int, str] = {}  # by worker: why its newest task with work failed
        self._silent = Counter[int]()  # by worker: time limits since anything was heard
        self._quiet_from: dict[int, float] = {}  # by worker: when its silence began
        self._attempts: defaultdict[int, Counter[int]] = defaultdict(Counter)  # by round and worker
        self._to_ask: dict[int, None] = {}  # workers that may get work now, in order
        self._idle: dict[int, None] = {}  # workers for which there was no work, in order
        self._flawed: dict[Work, set[int]] = {}  # by work: workers whose answers had flaws
        self._to_send: list[EngineTask[Work]] = []

    # ---- what a strategy decides -----------------------------------------------------------------

    @abstractmethod
    def _next(self, worker: int) -> tuple[int, Work | None] | None:
        """Return the round and the work of a new task for a worker that has room.

        If the work is None, the task is a greeting. Return None instead if there is no task for
        this worker. The worker is then idle, and the strategy must call `_ask` or `_ask_idle` as
        soon as there is work for it.
        """

    @abstractmethod
    def _done(self, task: EngineTask[Work], actions: list[Action]) -> str | None:
        """Use the answer to a task. Afterwards, the engine asks for more work for its worker.

        If the answer is of no use, return the reason. The answer is then dropped.
        """

    def _part_done(self, task: EngineTask[Work], slot: int, actions: list[Action]) -> str | None:
        """Use the result of one mini-task of a task, which continues.

        If the result is of no use, return the reason. The result is then dropped. A result may come
        again. A strategy whose dispatches have ``item_loads`` must override this method.
        """
        raise NotImplementedError

    @abstractmethod
    def _lost(self, loss: Loss[Work], actions: list[Action]) -> None:
        """Decide which worker does the work of a failed task: call `_retry` or `_release`."""

    @abstractmethod
    def _dispatches(self, tasks: Sequence[EngineTask[Work]]) -> list[Dispatch]:
        """Return the actions that send these tasks, which have the same round and attempt."""

    def _recovered(self) -> None:
        """Handle a worker's first answer after a failure."""

    def _silenced(self, task: EngineTask[Work]) -> None:
        """Handle a task whose time limit has passed.

        If the task counts as failed, `_lost` is called after this method.
        """

    def _recall(self, state: Mapping[str, Any]) -> None:
        """Restore the strategy's own part of a state.

        A strategy that has a ``snapshot`` must override this method.
        """
        raise NotImplementedError

    @property
    @abstractmethod
    def rounds(self) -> int:
        """The number of closed jobs, rounds or clocks."""

    @property
    def _goal(self) -> str:
        """The work that is open now, as named in the message of an error that ends the run."""
        return f"job {self.rounds}"

    @property
    def _able(self) -> Collection[int]:
        """The workers that could do the work. If all of them are silent, the run ends."""
        return range(self._n)

    # ---- the run ---------------------------------------------------------------------------------

    @property
    def num_jobs(self) -> int:
        """The number of jobs in the run, which `end_after` may reduce."""
        return self._num_jobs

    @property
    def done(self) -> bool:
        """True if all jobs are complete."""
        return self.rounds >= self._num_jobs

    def start(self) -> Sequence[Dispatch]:
        """Give every worker its first task."""
        self._ask(range(self._n))
        return self._flush()

    def restore(self, state: object) -> None:
        """Continue from the ``snapshot`` of a policy with the same arguments.

        Call this method before `start`.

        Raises
        ------
        TypeError, KeyError, ValueError
            If the state is not a snapshot of such a policy.
        """
        if not isinstance(state, Mapping):
            raise TypeError(f"a policy's state must be a mapping; got {state!r}")
        self._num_jobs = min(self._num_jobs, require_int("jobs", state["jobs"], least=0))
        self._recall(state)

    # ---- what a strategy asks of the engine ------------------------------------------------------

    def _ask(self, workers: Iterable[int]) -> None:
        """Ask the strategy for work for each of these workers that has room.

        The engine does so when it has handled the present event.
        """
        for worker in workers:
            self._to_ask[worker] = None

    def _ask_idle(self, most: int | None = None) -> None:
        """Ask for work for at most ``most`` idle workers, the longest idle first."""
        self._ask(itertools.islice(self._idle, most))

    def _may(self, worker: int, work: Work) -> bool:
        """Return True if a worker may do some work although earlier answers had flaws.

        A worker whose answer to this work could not be used may try again only if every other
        worker is failing, or has given an unusable answer to this work as well.
        """
        flawed = self._flawed.get(work, ())
        return worker not in flawed or len(self._failing.keys() | flawed) == self._n

    def _give(self, worker: int, round: int, work: Work | None) -> EngineTask[Work]:
        """Give a task to a worker that has room; it is sent after the present event."""
        if not self._has_room(worker):
            why = "it rests, or holds as many tasks as it may, or a task that has failed"
            raise ScheduleError(f"worker {worker} has no room for a task of round {round}: {why}")
        task = EngineTask(
            worker=worker, round=round, attempt=self._attempt(round, worker), work=work
        )
        if (queue := self._queues.get(worker)) is None:
            self._queues[worker] = [task]
        else:
            queue.append(task)
        self._to_send.append(task)
        return task

    def _retry(self, task: EngineTask[Work], wait_s: float) -> None:
        """Send a failed task to the same worker again after ``wait_s`` seconds."""
        self._require_failed(task)
        self._alarms.set(self._now + wait_s, partial(self._again, task), of=task)

    def _release(
        self, task: EngineTask[Work], actions: list[Action], *, rest_s: float | None = 0.0
    ) -> None:
        """Take a failed task from its worker, and let the worker rest for ``rest_s`` seconds.

        If ``rest_s`` is None, the worker rests until `_end_rest` is called. If the worker rests
        already, the longer rest counts.
        """
        self._require_failed(task)
        self._end(task)
        self._cancel(task.round, (task.worker,), actions)
        worker, ends_at = task.worker, math.inf if rest_s is None else self._now + rest_s
        self._resting[worker] = max(ends_at, self._resting.get(worker, ends_at))
        if math.isfinite(self._resting[worker]):
            end_rest = partial(self._end_rest, worker)
            self._alarms.set(self._resting[worker], end_rest, of=("rest", worker))

    def _call_off(self, task: EngineTask[Work], actions: list[Action]) -> None:
        """Take a task from its worker, because its answer is not needed any more."""
        if task not in self._held(task.worker):
            why = f"worker {task.worker} does not have it any more"
            raise ScheduleError(f"cannot call off a task of round {task.round}: {why}")
        self._end(task)
        self._cancel(task.round, (task.worker,), actions)
        self._ask([task.worker])

    def _call_off_all(self, round: int, workers: Sequence[int], actions: list[Action]) -> None:
        """Take all tasks of a round from these workers, because no answer is needed any more."""
        for worker in workers:
            for task in [task for task in self._held(worker) if task.round == round]:
                self._end(task)
        self._cancel(round, workers, actions)
        self._ask(workers)

    def _end_rest(self, worker: int, actions: list[Action]) -> None:  # noqa: ARG002 (as all alarms)
        self._resting.pop(worker, None)
        self._alarms.forget(("rest", worker))
        self._ask([worker])

    def _held(self, worker: int) -> Sequence[EngineTask[Work]]:
        """Return the tasks in a worker's queue, the oldest first."""
        return self._queues.get(worker, ())

    def _has_room(self, worker: int) -> bool:
        """Return True if a worker may be sent a task now."""
        if worker in self._resting:
            return False
        if (queue := self._queues.get(worker)) is None:  # the usual case
            return True
        most = 1 if self.is_wary and worker in self._failing else self.ahead
        return len(queue) < most and worker not in self._waiting

    def _end(self, task: EngineTask[Work]) -> None:
        if not task.is_out:
            self._count_waiting(task.worker, -1)
        task.is_out = False
        if len(queue := self._queues[task.worker]) > 1:
            queue.remove(task)
        else:
            del self._queues[task.worker]
        self._alarms.forget(task)

    def _count_waiting(self, worker: int, more: int) -> None:
        self._waiting[worker] += more
        if not self._waiting[worker]:
            del self._waiting[worker]

    def _cancel(self, round: int, workers: Sequence[int], actions: list[Action]) -> None:
        """Send these workers a `Cancel` as soon as they hold no task of a round any more."""
        asked = {(round, worker) for worker in workers}
        waiting = {
            each for each in asked if any(task.round == round for task in self._held(each[1]))
        }
        self._to_cancel -= asked
        self._to_cancel |= waiting
        if over := tuple(worker for worker in workers if (round, worker) not in waiting):
            actions.append(ports.Cancel(round=round, workers=over))

    def _require_failed(self, task: EngineTask[Work]) -> None:
        if task.is_out or task not in self._held(task.worker):
            address = f"round {task.round}, attempt {task.attempt}"
            rule = "has not failed: retry or release only tasks that have failed"
            raise ScheduleError(f"the task of worker {task.worker}, {address}, {rule}")

    @property
    def _is_at_work(self) -> bool:
        """True if a task with work is out."""
        tasks = itertools.chain.from_iterable(self._queues.values())
        return any(task.is_out and task.work is not None for task in tasks)

    def _error(self, what: str, worker: int | None = None) -> WorkerError:
        why = f"; worker {worker}: {self._failing[worker]}" if worker in self._failing else ""
        text = f"{self._goal} cannot be completed: {what}{why}"
        return WorkerError(text, round=self.rounds, worker=worker)

    # ---- events ----------------------------------------------------------------------------------

    def on(self, event: Event) -> Sequence[Action]:
        """Handle an event; return the actions that follow from it, in order.

        Raises
        ------
        WorkerError
            If the run cannot be completed.
        WireError
            If an answer or failure names a worker that does not exist.
        ScheduleError
            If the event is a `Timetable`, or reports that a task has left which the policy did not
            send.
        """
        self._now = max(self._now, event.at)
        actions: list[Action] = []
        match event:
            case ports.Dispatched():
                self._note_left(event)
                return ()
            case Arrival() | Failure():
                self._settle(event, actions)
            case PartialArrival():
                self._settle_part(event, actions)
            case ports.Tick():
                if math.isinf(event.at):
                    what = "the backend will deliver no more answers"
                    raise self._error(what, min(self._queues, default=None))
            case ports.Timetable():
                rule = "its workers do not begin rounds together: send each answer as an `Arrival`"
                raise ScheduleError(f"this policy accepts no timetable, because {rule}")
        if isinstance(event, ports.Tick) or self._alarms.next_at >= event.at:
            for call in self._alarms.due(event.at):
                call(actions)
        self._proceed(actions)
        return actions

    @property
    def wake_at(self) -> float:
        """The time at which to send a `Tick` if no event arrives before, in seconds."""
        return self._alarms.next_at

    def _note_left(self, event: ports.Dispatched) -> None:
        for worker, left_at in zip(event.workers, event.left_at, strict=True):
            task = self._awaited(event.round, worker, event.attempt)
            if task is None:
                address = f"round {event.round}, attempt {event.attempt}"
                raise ScheduleError(f"worker {worker} has no task with the address {address}")
            task.left_at = left_at
            self._left(task, left_at)
            self._limit(task, left_at)

    def _limit(self, task: EngineTask[Work], from_at: float) -> None:
        """Begin the time limit of a task at the time ``from_at``, instead of any earlier one."""
        if math.isfinite(self._rule.timeout_s):
            if self.counts_called_off:
                from_at = self._quiet_from.setdefault(task.worker, from_at)
            limit_at = from_at + self._rule.timeout_s
            self._alarms.set(limit_at, partial(self._miss, task), of=task)

    def _left(self, task: EngineTask[Work], at: float) -> None:
        """Handle the report that a task has left the master at the time ``at``."""

    def _settle(self, event: Arrival | Failure, actions: list[Action]) -> None:
        require_worker(event.worker, self._n)
        self._quiet_from.pop(event.worker, None)
        task = self._awaited(event.round, event.worker, event.attempt)
        if task is None:
            actions.append(ports.Drop(event=event, reason=self._why_dropped(event)))
            return
        self._silent.clear()
        if isinstance(event, Failure):
            self._fail(task, event.reason, actions, is_flawed=bool(event.flaws))
            return
        self._end(task)
        if task.worker in self._resting:
            del self._resting[task.worker]
            self._alarms.forget(("rest", task.worker))
        if task.work is not None and self._failing.pop(task.worker, None) is not None:
            self._recovered()
        if (reason := self._done(task, actions)) is not None:
            actions.append(ports.Drop(event=event, reason=reason))
        elif task.work is not None:
            self._retries.succeeded((task.worker,))
        if self._to_cancel and (task.round, task.worker) in self._to_cancel:
            self._cancel(task.round, (task.worker,), actions)
        self._to_ask[task.worker] = None

    def _settle_part(self, event: PartialArrival, actions: list[Action]) -> None:
        require_worker(event.worker, self._n)
        self._quiet_from.pop(event.worker, None)
        task = self._awaited(event.round, event.worker, event.attempt)
        if task is None:
            actions.append(ports.Drop(event=event, reason=self._why_dropped(event)))
            return
        self._silent.clear()
        self._limit(task, self._now)
        if self._failing.pop(task.worker, None) is not None:
            self._recovered()
        self._retries.succeeded((task.worker,))
        if (reason := self._part_done(task, event.slot, actions)) is not None:
            actions.append(ports.Drop(event=event, reason=reason))

    def _why_dropped(
        self,
        event: Arrival | PartialArrival | Failure,  # noqa: ARG002 (others have reasons)
    ) -> str:
        return "nobody waits for it"

    def _awaited(self, round: int, worker: int, attempt: int) -> EngineTask[Work] | None:
        """Return the task that is out under this address, if there is one."""
        for task in self._queues.get(worker, ()):
            if task.attempt == attempt and task.round == round and task.is_out:
                return task
        return None

    def _fail(
        self, task: EngineTask[Work], why: str, actions: list[Action], *, is_flawed: bool = False
    ) -> None:
        worker, task.is_out = task.worker, False
        self._count_waiting(worker, 1)
        self._alarms.forget(task)
        loss = Loss(
            task=task,
            why=why,
            wait_s=self._wait_s(task),
            is_repeated=worker in self._failing,
            is_flawed=is_flawed,
            is_final=self._retries.exhausted((worker,)),
        )
        if task.work is not None:
            self._failing[worker] = why
        self._lost(loss, actions)
        is_hopeless = loss.is_final and not self._is_at_work
        if is_hopeless and all(self._retries.exhausted((each,)) for each in range(self._n)):
            self._failing[worker] = why
            least = min(self._retries.in_a_row((each,)) for each in range(self._n))
            raise self._error(f"every worker has failed at least {least} times in a row", worker)

    def _wait_s(self, task: EngineTask[Work]) -> float:
        """Count a failure, and return the seconds to wait before the next attempt.

        If `is_wary` and the task had left before the worker's last counted failure, this failure is
        not counted, and its wait ends at the same time as the wait of the counted failure.
        """
        worker = task.worker
        if self.is_wary and worker in self._until and task.left_at < self._until[worker][0]:
            return max(0.0, self._until[worker][1] - self._now)
        wait_s = self._retries.failed((worker,))
        self._until[worker] = self._now, self._now + wait_s
        return wait_s

    def _miss(self, task: EngineTask[Work], actions: list[Action]) -> None:
        """Replace a worker that has exceeded the time limit.

        All tasks of the worker count as failed, unless `awaits_late`.
        """
        worker, why = task.worker, f"silent for {self._rule.timeout_s:g} s: raise the time limit"
        if self.awaits_late:
            self._silenced(task)
            self._alarms.set(self._now + self._rule.timeout_s, partial(self._miss, task), of=task)
            if task is not self._held(worker)[0]:
                return  # the worker is replaced once for all its tasks
        self._silent[worker] += 1
        self._quiet_from.pop(worker, None)
        if all(self._silent[each] >= TIME_LIMITS for each in {worker, *self._able}):
            first = next(iter(self._silent))
            self._failing[first] = why
            raise self._error(f"no worker has answered within {TIME_LIMITS} time limits", first)
        actions.append(ports.Restart(worker=worker))
        lost = [] if self.awaits_late else [each for each in self._held(worker) if each.is_out]
        for each in lost:
            if each.is_out:  # not if the strategy has called it off meanwhile
                self._silenced(each)
                self._fail(each, why, actions)

    def _again(self, task: EngineTask[Work], actions: list[Action]) -> None:  # noqa: ARG002
        queue = self._queues[task.worker]
        queue.append(queue.pop(queue.index(task)))
        self._count_waiting(task.worker, -1)
        task.attempt, task.is_out = self._attempt(task.round, task.worker), True
        self._to_send.append(task)

    def _attempt(self, round: int, worker: int) -> int:
        self._attempts[round][worker] += 1
        return self._attempts[round][worker] - 1

    def _forget_round(self, round: int) -> None:
        """Forget the numbers of attempts in a round. No task of the round may be sent any more."""
        self._attempts.pop(round, None)

    # ---- what is sent ----------------------------------------------------------------------------

    def _proceed(self, actions: list[Action]) -> None:
        actions += self._flush()

    def _flush(self) -> list[Dispatch]:
        """Ask the strategy for work, and return the actions that send all new tasks."""
        self._assign()
        tasks, self._to_send = self._to_send, []
        if len(tasks) < 2:  # the usual case
            return self._dispatches(tasks) if tasks else []
        groups: defaultdict[tuple[int, int], list[EngineTask[Work]]] = defaultdict(list)
        for task in tasks:
            groups[task.round, task.attempt].append(task)
        return [each for group in groups.values() for each in self._dispatches(group)]

    def _assign(self) -> None:
        """Ask the strategy for work for each worker in turn.

        A strategy that compares the workers with each other before it gives out work overrides
        this method.
        """
        asked, self._to_ask = list(self._to_ask), {}
        while asked:
            given = []
            for worker in asked:
                if not self._has_room(worker):
                    continue
                if (work := self._next(worker)) is None:
                    self._idle[worker] = None
                else:
                    self._idle.pop(worker, None)
                    self._give(worker, *work)
                    given.append(worker)
            asked = given if self.ahead > 1 else []
