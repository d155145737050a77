"""`RoundPolicy`: a policy that runs a schedule, round by round.

Theory of operation
-------------------
One round is open at a time. It opens with a `Dispatch` of every worker's mini-tasks, and ends with
a `Close`. In between, `OpenRound` tracks the tasks of all workers, and `RoundGate` decides when the
answers suffice.

- Answers to a closed round are used by the open round if the schedule awaits them (`Overdue`).
- Any other event that no task awaits is dropped, for example a second answer, an answer to a closed
  round, or the failure of an old attempt. Therefore each worker counts once in each round, and the
  answers that count are exactly those with which the round closed.
- A worker from which nothing was heard for a whole time limit may hang. It is replaced (`Restart`)
  if the backend can replace workers, even if all rounds could close without its answers.

*Closing.* The schedule is told which workers responded, and returns the finished jobs. The actions
are, in this order: `Close`; a `Cancel` for the workers that did not respond and are not awaited; a
`Restart` for each worker that may hang; a `Finish` for each finished job; and the `Dispatch` of the
next round. In this order, the loop can send the next tasks before it decodes gradients that these
tasks do not need (paper, Appendix K.1).

A round in which no worker has a task is not sent. A scheme with a delay may have such rounds at the
end of a run. The next tick closes such a round, with the reason ``idle`` and a duration of 0.
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
    """A policy that runs a schedule round by round. Every scheme with rounds has this policy.

    The ``rule`` says when a round closes, and how often a failed task is sent again. If the
    schedule has no payload format, as in a replay, decodings must be accurate enough for float32.

    ``first_job`` and ``first_round`` are the run's numbers of the schedule's first job and round.
    In a resumed run, ``again`` are the rounds that closed after its checkpoint, by number. If such
    a round closes with other answers than before, the policy empties ``again``, because what
    happened in the later rounds no longer applies.

    With ``audit``, a round waits for three answers to each mini-task that several workers compute,
    or for as many as can still arrive. With fewer answers it is unknown which worker is wrong.

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
        self._quiet_s = np.zeros(schedule.n)  # seconds since anything was heard from a worker
        self._open: OpenRound | None = None  # None if no worker has a task
        self._now = 0.0

    @property
    def done(self) -> bool:
        """True if every round is closed."""
        return self._schedule.round >= self._schedule.num_rounds

    @property
    def wake_at(self) -> float:
        """The time at which to send a `Tick` if no event arrives before, in seconds."""
        return self._now if self._open is None else self._open.wake_at

    @property
    def _round(self) -> int:
        return self._first_round + self._schedule.round

    def start(self) -> Sequence[Dispatch]:
        """Open the first round that is not closed.

        In a resumed run, rounds that are repeated may need late answers to earlier rounds. Tasks
        for such answers are sent first, unless the answers are awaited already (`inherit`).
        """
        taken = (late for past in self._again.values() for late in past.late)
        missing = self._overdue.ask_again(taken, before=self._round)
        dispatches: list[Dispatch] = []
        for round, workers in missing:
            tasks = numbered(self._schedule.asked(round - self._first_round), self._first_job)
            dispatches.append(self._dispatch(round, 0, ByWorker(tasks, workers)))
        return [*dispatches, *self._open_round()]

    def inherit(self, before: RoundPolicy) -> None:
        """Take over the late answers that the previous policy of the same run awaits.

        Late answers that its open round has taken can be taken again. Call this method before
        `start`.
        """
        taken = () if before._open is None else before._open.gate.late_taken
        self._overdue.inherit(before._overdue, taken=taken)

    def snapshot(self) -> dict[str, object]:
        """Return the state of the schedule at the beginning of the open round, as JSON data.

        To continue, restore a schedule from this state and create a policy with the schedule. This
        policy sends all tasks of the open round again.
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
            If an answer or failure names a worker that does not exist.
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
                case ports.PartialArrival():
                    reason = "the round takes whole answers only"
                    return (ports.Drop(event=event, reason=reason),)
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
            reason = "no such task has been sent"
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
        """Return the mini-tasks of the open round, with the run's numbers of jobs."""
        return numbered(self._schedule.assignment(), self._first_job)

    def _dispatch(self, round: int, attempt: int, tasks: ByWorker) -> Dispatch:
        """Return the action that sends tasks, with the loads of the open round."""
        loads = self._schedule.loads()
        return Dispatch(round=round, attempt=attempt, assignment=tasks, loads=loads)

    def _ask(self, asked: Mapping[int, Sequence[int]]) -> list[Action]:
        """Return the actions that send tasks of the open round again; ``asked`` is by attempt."""
        return [
            self._dispatch(self._round, attempt, ByWorker(self._assignment(), workers))
            for attempt, workers in asked.items()
        ]

    def _open_round(self) -> list[Dispatch]:
        self._open = None
        # While a round is open, a schedule changes only if it takes late answers.
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
        """Return the actions that cancel tasks of the closed round and of earlier rounds."""
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
    """A record of which workers' answers each round has used, to check decodings.

    Rounds that closed before the run was resumed are unknown, and are not checked.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._workers: dict[int, BoolArray] = {}  # by round of the schedule: a mask (n,)

    def close(self, record: RoundRecord, *, first_round: int) -> None:
        """Record the answers that a round used, and forget rounds whose jobs have all ended."""
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
