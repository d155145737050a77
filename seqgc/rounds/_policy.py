"""`RoundPolicy`: a schedule and a gate, as a policy.

Theory of operation
-------------------
A run is a sequence of rounds, and one round is open at a time. It opens with a `Dispatch` of every
worker's mini-tasks and ends with a `Close`; in between the policy only counts who is *settled*:

- An `Arrival` settles its worker as responded, a `Failure` of the last attempt as failed. A failure
  before that is answered by a `Dispatch` of the next attempt to this worker alone.
- Whatever else comes is a `Drop`: an answer to a round that is closed, a second answer, the failure
  of an attempt after which another was sent. So each worker counts once a round, whatever workers
  and connections do, and the answers that count are just those by which the round was closed.

*Time.* The round's clock starts when its first task leaves (`Dispatched.at`): one origin for all
workers, so that what the gate sees never goes back, and the first answer's time kappa holds the
sending of its own task at least. A `Dispatched` of a later attempt moves nothing: who is sent a
task twice is as late as that takes.

*Deciding.* Arrivals only register with the gate; it decides at a `Tick`, which the loop sends when
nothing more has arrived by `wake_at`. So all answers of one instant count together, and a replay,
where ties are common, closes each round as the live run did. That is also why an event's time is
cut to the alarm that it beat (`_elapsed`): the loop compares sums (origin + alarm), the gate
differences, and the last bit must not make an answer late that the loop has let through.

*Closing.* The schedule is told who responded, once; it says which jobs that finishes. Then come, in
this order: `Close`; `Cancel` for all who did not respond, whose debts end with it; a `Finish` for
each finished job; and the next round's `Dispatch`. The order lets the loop send the next tasks
before it decodes what they do not need (paper, Appendix K.1).

A round in which nobody has anything to do (the last ones of a scheme with a delay may be such) is
never sent: the next tick closes it, with reason ``idle`` and no time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Protocol

import numpy as np

from seqgc.errors import WorkerError
from seqgc.ports import (
    Action,
    Arrival,
    BoolArray,
    Cancel,
    Close,
    Decoding,
    Dispatch,
    Dispatched,
    Drop,
    Event,
    Failure,
    Finish,
    Payload,
    RoundRecord,
    Tick,
    Timetable,
)
from seqgc.rounds._gate import Judge, RoundGate
from seqgc.rounds._rule import ClosingRule
from seqgc.schemes import Assignment, MiniTasks

__all__ = ["RoundPolicy"]


class _Schedule(Judge, Protocol):
    """What the policy asks of a schedule."""

    def decodes_well(self, responded: BoolArray, payload: Payload = ...) -> bool: ...

    @property
    def num_rounds(self) -> int: ...
    @property
    def round(self) -> int: ...
    @property
    def excused(self) -> BoolArray: ...
    def assignment(self) -> Assignment: ...
    def close_round(self, responded: BoolArray) -> tuple[int, ...]: ...
    def decoding(self, job: int, payload: Payload = ...) -> Decoding: ...


class RoundPolicy:
    """A schedule and a gate, as a policy: what the loop drives for every round-based scheme.

    A failed task is sent again at once, at most ``rule.max_attempts`` times in a round; then its
    worker is this round's straggler. Answers to closed rounds, and second ones, are dropped.

    Parameters
    ----------
    schedule
        The scheme's run, from ``Scheme.start``.
    rule
        When a round closes; see `RoundGate`.
    payload
        The format in which results travel, where gradients are decoded: answers that would be
        decoded too badly do not suffice. None: for decisions only, as in replay; should gradients
        be decoded all the same, they are judged as float32's.

    Examples
    --------
    >>> from seqgc.schemes import GC
    >>> policy = RoundPolicy(GC(n=3, s=1).start(1), ClosingRule())
    >>> [type(action).__name__ for action in policy.start()]
    ['Dispatch']
    """

    def __init__(
        self,
        schedule: _Schedule,
        rule: ClosingRule,
        *,
        payload: Payload | None = None,
    ) -> None:
        self._schedule, self._max_attempts = schedule, rule.max_attempts
        self._payload: Payload = payload or "float32"
        judged = None if payload is None else partial(schedule.decodes_well, payload=payload)
        self._new_gate: Callable[[], RoundGate] = lambda: RoundGate(
            schedule,
            rule,
            round=schedule.round,
            decodes_well=judged,
            excused=schedule.excused,
        )
        self._gate = self._new_gate()
        self._assignment: Assignment | None = None  # of the open round, if one is
        self._attempts = [0] * schedule.n
        self._settled: set[int] = set()
        self._first_failure: Failure | None = None
        self._origin = math.nan  # set when the round's tasks have left
        self._now = 0.0

    @property
    def done(self) -> bool:
        """Whether every round is closed."""
        return self._schedule.round >= self._schedule.num_rounds

    @property
    def wake_at(self) -> float:
        """When to send a `Tick` if nothing arrives before, in the backend's time."""
        return self._now if self._is_idle else self._origin + self._gate.wake_at

    @property
    def _is_idle(self) -> bool:
        """Whether nobody has anything to do in the open round, if there is one."""
        return self._assignment is None or self._assignment.idle

    def start(self) -> Sequence[Dispatch]:
        """Open the first round."""
        return self._open_round()

    def on(self, event: Event) -> Sequence[Action]:
        """Take one event; return what is to be done about it, in order.

        Raises
        ------
        WorkerError
            If the round cannot end; names the first failure.
        """
        self._now = event.at
        match event:
            case Dispatched():
                return self._on_dispatched(event)
            case Arrival():
                return self._on_arrival(event)
            case Failure():
                return self._on_failure(event)
            case Tick():
                return self._on_tick(event)
            case Timetable():
                return self._on_timetable(event)

    def _on_dispatched(self, event: Dispatched) -> Sequence[Action]:
        if event.attempt == 0:
            self._origin = event.at
        return ()

    def _on_arrival(self, event: Arrival) -> Sequence[Action]:
        if stale := self._stale(event):
            return stale
        self._settled.add(event.worker)
        self._gate.arrive(event.worker, self._elapsed(event.at))
        return ()

    def _on_failure(self, event: Failure) -> Sequence[Action]:
        if stale := self._stale(event):
            return stale
        if event.attempt != self._attempts[event.worker]:
            return (Drop(event=event, reason="an earlier attempt"),)
        self._first_failure = self._first_failure or event
        if event.attempt + 1 >= self._max_attempts:
            self._settled.add(event.worker)
            self._gate.fail(event.worker, self._elapsed(event.at))
            return ()
        self._attempts[event.worker] += 1
        again = {event.worker: self._schedule.assignment()[event.worker]}
        return (Dispatch(round=event.round, attempt=event.attempt + 1, assignment=again),)

    def _on_tick(self, event: Tick) -> Sequence[Action]:
        if event.at < self.wake_at:
            return ()
        if self._is_idle:
            return self._close(self._idle())
        try:
            self._gate.tick(self._gate.wake_at)
        except WorkerError as error:
            raise self._with_cause(error) from None
        return () if self._gate.record is None else self._close(self._gate.record)

    def _on_timetable(self, event: Timetable) -> Sequence[Action]:
        try:
            record = self._gate.play(event.times)
        except WorkerError as error:
            raise self._with_cause(error) from None
        return self._close(record)

    def _elapsed(self, at: float) -> float:
        # An event is never later than the alarm it beat: rounding must not make it so.
        return min(at - self._origin, self._gate.wake_at)

    def _stale(self, event: Arrival | Failure) -> Sequence[Action]:
        if event.round != self._schedule.round:
            return (Drop(event=event, reason="its round is closed"),)
        if event.worker in self._settled:
            return (Drop(event=event, reason="the worker is settled"),)
        return ()

    def _with_cause(self, error: WorkerError) -> WorkerError:
        cause = self._first_failure
        if cause is None:
            text, worker = "nobody reported a failure: raise the round's time limit", None
        else:
            text, worker = f"first failure, worker {cause.worker}: {cause.reason}", cause.worker
        return WorkerError(f"{error}; {text}", round=error.round, worker=worker)

    def _open_round(self) -> list[Dispatch]:
        self._attempts = [0] * self._schedule.n
        self._settled, self._first_failure = set(), None
        self._assignment = None if self.done else self._schedule.assignment()
        if self._assignment is None or self._assignment.idle:
            return []  # the next tick closes the round, if there is one
        self._gate, self._origin = self._new_gate(), math.nan
        tasks = _ByWorker(self._assignment, excused=self._schedule.excused)
        return [Dispatch(round=self._schedule.round, attempt=0, assignment=tasks)]

    def _idle(self) -> RoundRecord:
        responded = np.ones(self._schedule.n, dtype=np.bool_)
        responded.flags.writeable = False
        return RoundRecord(
            round=self._schedule.round,
            responded=responded,
            kappa_s=0.0,
            duration_s=0.0,
            reason="idle",
            waited_out=False,
        )

    def _close(self, record: RoundRecord) -> list[Action]:
        finished = self._schedule.close_round(record.responded)
        actions: list[Action] = [Close(record=record)]
        if not record.responded.all():
            stragglers = tuple(np.flatnonzero(~record.responded).tolist())
            actions.append(Cancel(round=record.round, workers=stragglers))
        actions += [
            Finish(job=job, decoding=cache(partial(self._schedule.decoding, job, self._payload)))
            for job in finished
        ]
        return [*actions, *self._open_round()]


class _ByWorker(Mapping[int, MiniTasks]):
    """Who is asked for what; mini-tasks are still made when somebody looks at them."""

    def __init__(self, assignment: Assignment, *, excused: BoolArray) -> None:
        self._assignment = assignment
        every = range(len(assignment))
        self._workers = [w for w in every if not excused[w]] if excused.any() else every

    def __getitem__(self, worker: int) -> MiniTasks:
        if worker not in self._workers:
            raise KeyError(worker)
        return self._assignment[worker]

    def __iter__(self) -> Iterator[int]:
        return iter(self._workers)

    def __len__(self) -> int:
        return len(self._workers)
