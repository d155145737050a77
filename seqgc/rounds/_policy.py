"""`RoundPolicy`: a policy that runs a schedule, round by round.

Theory of operation
-------------------
One round is open at a time. It opens with a `Dispatch` of every worker's mini-tasks, and ends with
a `Close`. In between, `OpenRound` follows the worker's tasks, and `RoundGate` decides when the
answers suffice.

- Answers to a closed round are used by the open round if the schedule awaits them (`Overdue`).
- All other events that no task awaits are dropped: a second answer, an answer to a closed round, a
  failure of an old attempt. So each worker counts once in each round, and the answers that count
  are exactly those on which the round closed.
- A worker from which nothing was heard for a whole time limit may hang. It is replaced (`Restart`)
  if the backend can do so, even if all rounds could do without it.

*Closing.* The schedule is told who responded, and returns the jobs that are finished. Then follow,
in this order: `Close`; a `Cancel` for the workers that did not respond and are not awaited; a
`Finish` for each finished job; the `Dispatch` of the next round. In this order, the loop can send
the next tasks before it decodes gradients that they do not need (paper, Appendix K.1).

A round in which no worker has a task is not sent. A scheme with a delay may have such rounds at its
end. The next tick closes it, with the reason ``idle`` and a duration of 0.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from seqgc import ports
from seqgc.errors import ScheduleError, WorkerError
from seqgc.ports import (
    Action,
    BoolArray,
    Decoding,
    Dispatch,
    Event,
    Failure,
    RoundRecord,
)
from seqgc.rounds._foreign import require_worker
from seqgc.rounds._gate import RoundGate, idle_record
from seqgc.rounds._lazy import ByWorker, Once, numbered, renumbered, replicas
from seqgc.rounds._open_round import OpenRound
from seqgc.rounds._overdue import Overdue
from seqgc.rounds._repeat import PastRound
from seqgc.rounds._rule import ClosingRule
from seqgc.schemes import Assignment, Schedule


class RoundPolicy:
    """A policy that runs a schedule: the policy of every scheme with rounds.

    The ``rule`` says when a round closes, and how often a failed task is sent again. If the
    schedule was given no payload, as in a replay, decodings are judged as in float32.

    ``first_job`` and ``first_round`` are the numbers of the schedule's first job and round in the
    run. When a run is resumed, ``again`` are the rounds that closed after its checkpoint, by
    number. If a round closes with other answers than it must, ``again`` is emptied, because the
    later rounds did not happen.

    With ``audit``, a round waits for three answers to each question that several workers are asked,
    or for as many as can still arrive: with fewer, it is unknown which worker lies.

    Examples
    --------
    >>> from seqgc.schemes import GC
    >>> policy = RoundPolicy(GC(n=3, s=1).start(1), ClosingRule())
    >>> [type(action).__name__ for action in policy.start()]
    ['Dispatch']
    """

    def __init__(
        self,
        schedule: Schedule,
        rule: ClosingRule,
        *,
        first_job: int = 0,
        first_round: int = 0,
        again: dict[int, PastRound] | None = None,
        audit: bool = False,
    ) -> None:
        self._schedule, self._rule, self._audit = schedule, rule, audit
        self._first_job, self._first_round = first_job, first_round
        self._at_opening = schedule  # its state at the beginning of the open round
        self._again = {} if again is None else again
        self._overdue = Overdue(schedule, first_round)
        self._used = _UsedAnswers(schedule)
        self._barred: dict[int, Failure] = {}  # workers whose answers will never be usable
        self._quiet_s = np.zeros(schedule.n)  # seconds since anything was heard of a worker
        self._open: OpenRound | None = None  # None: no worker has a task
        self._now = 0.0

    @property
    def done(self) -> bool:
        """True if every round is closed."""
        return self._schedule.round >= self._schedule.num_rounds

    @property
    def wake_at(self) -> float:
        """The time for a `Tick` if nothing arrives before, in the backend's time."""
        return self._now if self._open is None else self._open.wake_at

    @property
    def _round(self) -> int:
        return self._first_round + self._schedule.round

    def start(self) -> Sequence[Dispatch]:
        """Open the first round that is not closed.

        Late answers that later rounds used before the run was resumed are requested first, unless
        they are awaited already (`inherit`).
        """
        taken = (late for past in self._again.values() for late in past.late)
        missing = self._overdue.ask_again(taken, before=self._round)
        dispatches: list[Dispatch] = []
        for round, workers in missing:
            tasks = numbered(self._schedule.asked(round - self._first_round), self._first_job)
            dispatches.append(self._dispatch(round, 0, ByWorker(tasks, workers)))
        return [*dispatches, *self._open_round()]

    def inherit(self, before: RoundPolicy) -> None:
        """Await the late answers that another policy of the same run awaited; call before `start`.

        Answers that its open round has used are available again.
        """
        taken = () if before._open is None else before._open.gate.late_taken
        self._overdue.inherit(before._overdue, taken=taken)

    def snapshot(self) -> dict[str, object]:
        """Return the state of the schedule at the beginning of the open round, as JSON data.

        A policy with a schedule that is restored from it sends all tasks of the open round again.
        """
        return self._at_opening.snapshot()

    # ---- events ----------------------------------------------------------------------------------

    def on(self, event: Event) -> Sequence[Action]:
        """Handle an event; return the actions that follow from it, in order.

        Raises
        ------
        WorkerError
            If the round cannot end. The error names the first worker that failed or is silent.
        WireError
            If the event names a worker that does not exist.
        """
        self._now = event.at
        try:
            match event:
                case ports.Dispatched():
                    if self._open is not None and event.round == self._round:
                        self._open.left(event)
                    return ()
                case ports.Arrival() | ports.Failure():
                    return self._settle(event)
                case ports.Tick():
                    return self._tick()
                case ports.Timetable():
                    assert self._open is not None
                    return self._close(self._open.gate.play(event.times))
        except WorkerError as error:
            raise (error if self._open is None else self._open.explain(error)) from None

    def _settle(self, event: ports.Arrival | Failure) -> Sequence[Action]:
        require_worker(event.worker, self._schedule.n)
        if event.round < self._round and self._overdue.owes(event) and self._open is not None:
            return self._settle_late(event, self._open)
        if event.round < self._round:
            reason: str | None = "its round is closed"
        elif event.round > self._round or self._open is None:
            reason = "nobody asked for it"
        else:
            reason = self._open.why_dropped(event)
        if reason is not None or self._open is None:
            self._quiet_s[event.worker] = 0.0
            return (ports.Drop(event=event, reason=reason or ""),)
        if isinstance(event, Failure):
            return self._ask(self._open.fail(event))
        self._open.answer(event)
        return ()

    def _settle_late(
        self, event: ports.Arrival | Failure, open_round: OpenRound
    ) -> Sequence[Action]:
        self._quiet_s[event.worker] = 0.0
        is_used = self._overdue.settle(event)
        elapsed = max(open_round.elapsed_s(event), 0.0)  # the clock may not have started
        self._overdue.take(open_round.gate, elapsed)
        return () if is_used else (ports.Drop(event=event, reason="its round is closed"),)

    def _tick(self) -> Sequence[Action]:
        if self._now < self.wake_at:
            return ()
        if self._open is None:
            return self._close(idle_record(self._round, self._schedule.n))
        silent, asked = self._open.tick()
        if self._open.gate.record is not None:
            return self._close(self._open.gate.record)
        return [*self._restart(silent), *self._ask(asked)]

    def _restart(self, workers: Sequence[int]) -> list[Action]:
        self._quiet_s[list(workers)] = 0.0
        return [ports.Restart(worker=worker) for worker in workers]

    # ---- tasks -----------------------------------------------------------------------------------

    def _assignment(self) -> Assignment:
        """Return the tasks of the open round, with the run's numbers of jobs."""
        return numbered(self._schedule.assignment(), self._first_job)

    def _dispatch(self, round: int, attempt: int, tasks: ByWorker) -> Dispatch:
        """Return the action that sends tasks of this or an earlier round, at the present loads."""
        loads = self._schedule.loads()
        return Dispatch(round=round, attempt=attempt, assignment=tasks, loads=loads)

    def _ask(self, asked: Mapping[int, Sequence[int]]) -> list[Action]:
        """Return the actions that send workers their tasks again, by attempt."""
        return [
            self._dispatch(self._round, attempt, ByWorker(self._assignment(), workers))
            for attempt, workers in asked.items()
        ]

    def _open_round(self) -> list[Dispatch]:
        self._open = None
        # Only late answers change a schedule while a round is open.
        takes_late = self._schedule.takes_late
        self._at_opening = copy.copy(self._schedule) if takes_late else self._schedule
        assignment = None if self.done else self._assignment()
        if assignment is None or assignment.idle:
            return []  # the next tick closes the round, if there is one
        excused = self._schedule.excused
        gate = RoundGate(
            self._schedule,
            self._rule,
            round=self._round,
            replicas=replicas(assignment, excused) if self._audit else (),
            excused=excused,
            again=self._again.get(self._round),
        )
        self._open = OpenRound(
            self._round,
            self._rule,
            gate,
            self._overdue,
            excused=excused,
            barred=self._barred,
        )
        return [self._dispatch(self._round, 0, ByWorker(assignment, self._open.asked))]

    # ---- closing ---------------------------------------------------------------------------------

    def _close(self, record: RoundRecord) -> list[Action]:
        past = self._again.get(record.round)
        if past is not None and past.contradicts(record):
            self._again.clear()
        finished = self._schedule.close_round(record.responded)
        self._used.close(record, first_round=self._first_round)
        jobs = tuple(self._first_job + job for job in finished)
        actions: list[Action] = [ports.Close(record=record, jobs=jobs), *self._cancel(record)]
        if hanging := self._who_hangs(record):
            actions += self._restart(hanging)
        actions += [
            ports.Finish(job=self._first_job + job, decoding=Once(partial(self._decoding, job)))
            for job in finished
        ]
        return [*actions, *self._open_round()]

    def _cancel(self, record: RoundRecord) -> list[ports.Cancel]:
        """Return the actions that cancel tasks of this round and of earlier rounds."""
        round, stragglers = record.round, (~record.responded).nonzero()[0].tolist()
        if stragglers and self._schedule.takes_late and self._open is not None:
            answered = self._open.gate.answered & ~self._schedule.excused
            attempts = self._open.under_way(stragglers)
            stragglers = self._overdue.keep(round, stragglers, answered=answered, attempts=attempts)
        return self._overdue.cancel(round, stragglers)

    def _who_hangs(self, record: RoundRecord) -> list[int]:
        """Return the stragglers from which nothing was heard for a whole time limit."""
        if math.isinf(limit_s := self._rule.timeout_s) or record.responded.all():
            return []
        self._quiet_s = np.where(record.responded, 0.0, self._quiet_s + record.duration_s)
        self._quiet_s[list(self._open.failed if self._open else ())] = 0.0
        hanging: list[int] = np.flatnonzero(self._quiet_s >= limit_s).tolist()
        return hanging

    def _decoding(self, job: int) -> Decoding:
        """Return the decoding of one of the schedule's jobs, with the run's numbers."""
        decoding = self._schedule.decoding(job, self._schedule.payload or "float32")
        self._used.require(decoding)
        return renumbered(decoding, self._first_job, self._first_round)


class _UsedAnswers:
    """The workers (n,) whose answers decodings may use, by round of the schedule.

    Rounds that closed before the run was resumed are unknown, and are not checked.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._workers: dict[int, BoolArray] = {}

    def close(self, record: RoundRecord, *, first_round: int) -> None:
        """Record the answers that a round used; forget rounds whose jobs have all ended."""
        schedule = self._schedule
        self._workers[record.round - first_round] = record.responded.copy()
        for round, worker in record.late:
            if round - first_round in self._workers:
                self._workers[round - first_round][worker] = True
        self._workers.pop(schedule.round - 2 - (schedule.num_rounds - schedule.num_jobs), None)

    def require(self, decoding: Decoding) -> None:
        """Raise `ScheduleError` if a decoding uses a result that has not arrived."""
        for term in decoding.terms:
            used = self._workers.get(term.round)
            is_here = term.round < self._schedule.round if used is None else used[term.worker]
            if not is_here:
                name = f"the result of worker {term.worker}, round {term.round}, slot {term.slot}"
                text = f"decodes job {decoding.job} with {name}, which has not arrived"
                remedy = "the scheme's schedule is wrong; check it with seqgc.testing.check_scheme"
                raise ScheduleError(f"{self._schedule.scheme_name} {text}: {remedy}")
