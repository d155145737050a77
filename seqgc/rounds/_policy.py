"""`RoundPolicy`: a schedule and a gate, as a policy.

Theory of operation
-------------------
A run is a sequence of rounds, and one round is open at a time. It opens with a `Dispatch` of every
worker's mini-tasks and ends with a `Close`; in between the policy only counts who is *settled*:

- An `Arrival` settles its worker as responded, a `Failure` of the last attempt as failed. A failure
  before that is answered by a `Dispatch` of the next attempt to this worker alone, at once or after
  a wait (`_attempts`). Which attempt is the last one depends on the others: ``max_attempts`` bounds
  what the round can do without; where it cannot, all who have failed are asked again.
- An answer to a round that is closed is taken by the open one if the schedule awaits it
  (`_overdue`): then the gate decides anew.
- Whatever else comes is a `Drop`: another answer to a round that is closed, a second answer, the
  failure of an attempt after which another was sent, anything of an attempt that was never sent. So
  each worker counts once a round, whatever workers and connections do, and the answers that count
  are just those by which the round was closed.
- Who says nothing for as long as a round may take, be it in one round or over several that could do
  without, may hang: it is replaced (`Restart`) if the backend can.
- A failure with flaws of a model is an answer that cannot be used yet. Asking the same worker again
  would give the same. Therefore it is asked again only if the round cannot close without it;
  otherwise it is a straggler of this round. If the model is at fault, the loop passes the answer on
  after all. It then counts in full, so that the gradients of the other models are decoded from the
  same answers as if nothing had happened.

*Time.* The round's clock starts when its first task leaves (`Dispatched.at`): one origin for all
workers, so that what the gate sees never goes back, and the first answer's time kappa holds the
sending of its own task at least. Who is sent a task twice is as late as that takes. Only if a task
leaves late by half a time limit, for the master was stopped, does the limit count from then.

*Deciding.* Arrivals only register with the gate; it decides at a `Tick`, which the loop sends when
nothing more has arrived by `wake_at`. So all answers of one instant count together, and a replay,
where ties are common, closes each round as the live run did. That is also why an event's time is
cut to the alarm that it beat (`_settle`): the loop compares sums (origin + alarm), the gate
differences, and the last bit must not make an answer late that the loop has let through.

A task that waits to be sent again has its alarm as well; `wake_at` is the first of all.

*Closing.* The schedule is told who responded, once; it says which jobs that finishes. Then come, in
this order: `Close`; `Cancel` for all who did not respond and are not awaited, whose debts end with
it; a `Finish` for each finished job; and the next round's `Dispatch`. The order lets the loop send
the next tasks before it decodes what they do not need (paper, Appendix K.1).

A round in which nobody has anything to do (the last ones of a scheme with a delay may be such) is
never sent: the next tick closes it, with reason ``idle`` and no time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

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
    LateAnswer,
    RoundRecord,
)
from seqgc.rounds._attempts import Attempts
from seqgc.rounds._foreign import require_worker
from seqgc.rounds._gate import RoundGate, idle_record
from seqgc.rounds._lazy import ByWorker, Once, numbered, renumbered, replicas
from seqgc.rounds._overdue import Overdue
from seqgc.rounds._rule import ClosingRule
from seqgc.schemes import Assignment, Schedule


class RoundPolicy:
    """A schedule and a gate, as a policy: what the loop drives for every round-based scheme.

    A failed task is sent again; how often, says the rule (`ClosingRule`). Answers to closed rounds,
    second ones and such as nobody asked for are dropped.

    A schedule that was given no payload is for decisions only, as in replay; should gradients be
    decoded all the same, they are judged as float32's. The run may call the schedule's first job
    and round otherwise than 0 (``first_job``, ``first_round``). ``again`` says on whose
    answers (n,) rounds of the run, by number, were closed before it was resumed, and ``late`` which
    late ones they took; the former is emptied once one of them closes otherwise, for what followed
    that did not happen. With ``audit`` a round waits for three answers, or all that there can be,
    to each question that several workers are asked: fewer, and nobody knows who lies. That is as
    long as there is someone to wait for.

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
        again: dict[int, BoolArray] | None = None,
        late: Mapping[int, Sequence[LateAnswer]] = MappingProxyType({}),
        audit: bool = False,
    ) -> None:
        self._audit = audit
        self._schedule, self._rule = schedule, rule
        self._again, self._late = {} if again is None else again, late
        self._first_job, self._first_round = first_job, first_round
        self._overdue = Overdue(schedule, first_round)
        self._gate = self._new_gate()
        self._is_idle = True  # nobody has anything to do in the open round, or none is open
        self._attempts = Attempts(0, rule)
        self._settled: set[int] = set()
        self._failed: dict[int, Failure] = {}  # the first failure of each who has not answered yet
        self._barred: dict[int, Failure] = {}  # whose answers will never be of use, and why
        self._quiet_s = np.zeros(schedule.n)  # for how long nothing was heard of a worker
        # (n,) workers whose answers decodings may use, by round of the schedule
        self._used: dict[int, BoolArray] = {}
        # When the round's tasks have left, and, seconds from then, the gate was asked last.
        self._origin, self._decided_s = math.nan, -math.inf
        self._now, self._asks_all = 0.0, False  # just now, of whom the round needs an answer

    @property
    def done(self) -> bool:
        """Whether every round is closed."""
        return self._schedule.round >= self._schedule.num_rounds

    @property
    def wake_at(self) -> float:
        """When to send a `Tick` if nothing arrives before, in the backend's time."""
        return self._now if self._is_idle else self._origin + self._alarm

    @property
    def _alarm(self) -> float:
        return min(self._gate.wake_at, self._attempts.wake_at)

    @property
    def _round(self) -> int:
        return self._first_round + self._schedule.round

    def start(self) -> Sequence[Dispatch]:
        """Open the first round that is not closed.

        First of all, answers to closed rounds are asked for again that rounds yet to come took
        before the run was resumed, unless they are awaited already (`inherit`).
        """
        taken = (late for round in self._again for late in self._late.get(round, ()))
        lacking = self._overdue.ask_again(taken, before=self._round)
        return [*(self._ask_late(*each) for each in lacking), *self._open_round()]

    def inherit(self, before: RoundPolicy) -> None:
        """Before the start, await the late answers that another policy did, whose run goes on."""
        self._overdue.inherit(before._overdue, taken=before._gate.late_taken)

    @property
    def _late_again(self) -> Sequence[LateAnswer]:
        """Which late answers the open round took before the run was resumed."""
        return self._late.get(self._round, ()) if self._round in self._again else ()

    def _ask_late(self, round: int, workers: list[int]) -> Dispatch:
        tasks = numbered(self._schedule.asked(round - self._first_round), self._first_job)
        return self._dispatch(round, 0, ByWorker(tasks, workers))

    def _dispatch(self, round: int, attempt: int, tasks: ByWorker) -> Dispatch:
        """Return what sends tasks, of the open round or an earlier one, at the open one's loads."""
        loads = self._schedule.loads()
        return Dispatch(round=round, attempt=attempt, assignment=tasks, loads=loads)

    def on(self, event: Event) -> Sequence[Action]:
        """Take one event; return what is to be done about it, in order.

        `WorkerError` if the round cannot end, which names who failed first or is silent;
        `WireError` if there is no such worker.
        """
        self._now = event.at
        try:
            match event:
                case ports.Dispatched():
                    if event.round == self._round and event.attempt == 0:
                        self._origin, self._asks_all = self._now, True
                    if event.round == self._round and self._asks_all:
                        self._gate.asked(max(event.left_at), origin=self._origin)
                    return ()
                case ports.Arrival() | ports.Failure():
                    return self._settle(event)
                case ports.Tick():
                    return self._tick()
                case ports.Timetable():
                    return self._close(self._gate.play(event.times))
        except WorkerError as error:
            raise self._with_cause(error) from None

    def _settle(self, event: ports.Arrival | Failure) -> Sequence[Action]:
        worker, self._asks_all = event.worker, False
        require_worker(worker, self._schedule.n)
        if event.round < self._round and self._overdue.owes(event) and not self._is_idle:
            return self._settle_late(event)
        if (reason := self._why_unwanted(event)) is not None:
            self._quiet_s[worker] = 0.0
            return (ports.Drop(event=event, reason=reason),)
        if isinstance(event, Failure):
            return self._fail(event, self._elapsed(event))
        if self._failed.pop(worker, None) is not None:
            self._attempts.forget(worker)
            self._gate.expect([worker])
        self._settled.add(worker)
        self._gate.arrive(worker, self._elapsed(event))
        return ()

    def _settle_late(self, event: ports.Arrival | Failure) -> Sequence[Action]:
        self._quiet_s[event.worker] = 0.0
        is_of_use = self._overdue.settle(event)
        self._overdue.take(self._gate, max(self._elapsed(event), 0.0))  # before the clock: 0
        return () if is_of_use else (ports.Drop(event=event, reason="its round is closed"),)

    def _elapsed(self, event: ports.Arrival | Failure) -> float:
        """Return an event's seconds, by rounding neither after its alarm nor before the last."""
        return max(min(event.at - self._origin, self._alarm), self._decided_s)

    def _why_unwanted(self, event: ports.Arrival | Failure) -> str | None:
        worker, latest = event.worker, self._attempts.latest(event.worker)
        if event.round < self._round:
            return "its round is closed"
        if worker in self._settled and (isinstance(event, Failure) or worker not in self._failed):
            return "the worker is settled"
        if self._is_idle or event.round > self._round or not 0 <= event.attempt <= latest:
            return "nobody asked for it"
        if isinstance(event, Failure) and (event.attempt < latest or self._attempts.waits(worker)):
            return "an earlier attempt"
        return None

    def _fail(self, failure: Failure, elapsed: float) -> Sequence[Action]:
        """Have a failed task sent again; or else it is settled, as long as that is no loss."""
        worker, again = failure.worker, [failure.worker]
        self._failed.setdefault(worker, failure)
        if failure.final:
            self._barred[worker] = failure
        if failure.final or failure.flaws or failure.attempt + 1 >= self._rule.max_attempts:
            if not failure.flaws:
                self._overdue.take(self._gate, elapsed, without=worker)
            again = [worker, *self._given_up] if self._gate.needs(worker) else []
            again = [each for each in again if each not in self._barred]
        if worker not in self._plan(again, elapsed):
            self._settled.add(worker)
            (self._gate.doubt if failure.flaws else self._gate.fail)(worker, elapsed)
        return self._ask(self._attempts.due(elapsed))

    @property
    def _given_up(self) -> list[int]:
        """Who has failed so often that the round is to do without, if it can."""
        return sorted((self._failed.keys() & self._settled) - self._barred.keys())

    def _plan(self, workers: Sequence[int], elapsed: float) -> list[int]:
        """Have failed tasks sent again of those who may be asked once more; return these."""
        again = self._attempts.plan(workers, elapsed, limit_s=self._gate.limit_s)
        self._settled.difference_update(again)
        self._gate.expect(again)
        return again

    def _ask(self, workers: Sequence[int]) -> list[Action]:
        """Send these workers their tasks once more."""
        return [
            self._dispatch(self._round, attempt, ByWorker(self._assignment(), group))
            for attempt, group in self._attempts.begin(workers).items()
        ]

    def _tick(self) -> Sequence[Action]:
        if self._now < self.wake_at:
            return ()
        if self._is_idle:
            return self._close(idle_record(self._round, self._schedule.n))
        elapsed = self._decided_s = self._alarm
        awaited = self._gate.tick(elapsed)
        if self._gate.record is not None:
            return self._close(self._gate.record)
        self._overdue.take(self._gate, elapsed)
        attempts = self._attempts
        self._asks_all = bool(awaited) and self._gate.is_overdue
        if self._asks_all:  # those given up may yet answer
            self._plan(self._given_up, elapsed)
        silent = [w for w in awaited if not attempts.waits(w) and attempts.left(w)]
        return [*self._restart(silent), *self._ask([*silent, *attempts.due(elapsed)])]

    def _restart(self, workers: Sequence[int]) -> list[Action]:
        self._quiet_s[list(workers)] = 0.0
        return [ports.Restart(worker=worker) for worker in workers]

    def _with_cause(self, error: WorkerError) -> WorkerError:
        silent = [w for w in self._gate.awaited if w not in self._failed]
        causes = [f"worker {f.worker}: {f.reason}" for f in self._failed.values()]
        text = [f"first failure, {cause}" for cause in causes[:1]]
        if silent:
            more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
            what = f"worker {silent[0]}{more} silent though asked three times"
            text.append(f"{what}: raise the time limit")
        worker = next(iter([*self._failed, *silent]), None)
        return WorkerError("; ".join([str(error), *text]), round=error.round, worker=worker)

    def _assignment(self) -> Assignment:
        """Return who does what in the open round, for the run's jobs."""
        return numbered(self._schedule.assignment(), self._first_job)

    def _open_round(self) -> list[Dispatch]:
        self._attempts = Attempts(self._round, self._rule)
        self._settled, self._failed = set(), {}
        assignment = None if self.done else self._assignment()
        if assignment is None or assignment.idle:
            self._is_idle = True
            return []  # the next tick closes the round, if there is one
        self._is_idle = False
        self._gate, self._origin, self._decided_s = self._new_gate(), math.nan, -math.inf
        self._overdue.take(self._gate, 0.0)
        asked: Sequence[int] = range(self._schedule.n)
        if np.count_nonzero(excused := self._schedule.excused):
            self._settled.update(np.flatnonzero(excused).tolist())
            asked = np.flatnonzero(~excused).tolist()
        if self._barred and (others := [w for w in asked if w not in self._barred]):
            for worker in set(asked) - set(others):
                self._settled.add(worker)
                self._failed[worker] = self._barred[worker]
                self._gate.fail(worker, 0.0)
            asked = others
        tasks = ByWorker(assignment, asked)
        return [self._dispatch(self._round, 0, tasks)]

    def _new_gate(self) -> RoundGate:
        schedule, audit = self._schedule, self._audit and not self.done
        return RoundGate(
            schedule,
            self._rule,
            round=self._round,
            replicas=replicas(self._assignment(), schedule.excused) if audit else (),
            excused=schedule.excused,
            again=self._again.get(self._round),
            late=self._late_again,
        )

    def _close(self, record: RoundRecord) -> list[Action]:
        known, late = self._again.get(record.round), set(self._late_again)
        if known is None or set(record.late) != late or (known != record.responded).any():
            self._again.clear()
        finished = self._schedule.close_round(record.responded)
        self._note_used(record)
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
        """Return who need not answer any more, in this round or an earlier one."""
        round, stragglers = record.round, (~record.responded).nonzero()[0].tolist()
        if stragglers and self._schedule.takes_late:
            answered = self._gate.answered & ~self._schedule.excused
            latest = self._attempts.under_way(w for w in stragglers if w not in self._settled)
            stragglers = self._overdue.keep(round, stragglers, answered=answered, attempts=latest)
        return self._overdue.cancel(round, stragglers)

    def _who_hangs(self, record: RoundRecord) -> list[int]:
        """Return the stragglers of whom nothing was heard for as long as a round may take."""
        if math.isinf(limit_s := self._rule.timeout_s) or record.responded.all():
            return []
        self._quiet_s = np.where(record.responded, 0.0, self._quiet_s + record.duration_s)
        self._quiet_s[list(self._failed)] = 0.0
        hanging: list[int] = np.flatnonzero(self._quiet_s >= limit_s).tolist()
        return hanging

    def _decoding(self, job: int) -> Decoding:
        """Return the decoding of one of the schedule's jobs, under the run's numbers."""
        decoding = self._schedule.decoding(job, self._schedule.payload or "float32")
        self._require_received(decoding)
        return renumbered(decoding, self._first_job, self._first_round)

    def _note_used(self, record: RoundRecord) -> None:
        """Record the workers whose answers are used, for the rounds of the jobs in flight."""
        first, schedule = self._first_round, self._schedule
        self._used[record.round - first] = record.responded.copy()
        for round, worker in record.late:
            if round - first in self._used:
                self._used[round - first][worker] = True
        self._used.pop(schedule.round - 2 - (schedule.num_rounds - schedule.num_jobs), None)

    def _require_received(self, decoding: Decoding) -> None:
        """Raise `ScheduleError` if a decoding uses a result that has not arrived.

        Rounds that closed before the run was resumed are not checked.
        """
        for term in decoding.terms:
            used = self._used.get(term.round)
            is_here = term.round < self._schedule.round if used is None else used[term.worker]
            if not is_here:
                name = f"the result of worker {term.worker}, round {term.round}, slot {term.slot}"
                text = f"decodes job {decoding.job} with {name}, which has not arrived"
                remedy = "the scheme's schedule is wrong; seqgc.testing.check_scheme says more"
                raise ScheduleError(f"{self._schedule.scheme_name} {text}: {remedy}")
