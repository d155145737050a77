"""`RoundGate` decides when a round may close."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from seqgc.errors import ScheduleError, WorkerError
from seqgc.ports import BoolArray, CloseReason, FloatArray, IntArray, LateAnswer, RoundRecord
from seqgc.rounds._repeat import Repeat
from seqgc.rounds._rule import TIME_LIMITS, ClosingRule

_VOTES = 3

# Masks are asked for their counts: `any` and `all` take ten times as long, and a replay asks often.


class Judge(Protocol):
    """What the gate asks of a schedule; more answers never hurt."""

    @property
    def n(self) -> int: ...
    def conforms(self, responded: BoolArray) -> bool: ...
    def enough(self, responded: BoolArray) -> bool: ...
    def feasible(self, responded: BoolArray) -> bool: ...


class RoundGate:
    """Decides when one round closes; sans-I/O: elapsed seconds in, decision out.

    Source: docs/mathematics.md, section 6.

    The round stays open until ``(1+mu) * kappa``, kappa being the first answer's time, or until
    everybody answered. If the answers do not suffice then, it waits: for every worker (``all``),
    or for one more answer at a time until the pattern fits the scheme's model (``conform``) or no
    job in flight is lost and the scheme has `enough` (``feasible``). Whatever the rule, a round
    never closes on answers that would lose a job. Answers only ever register; `tick` decides, so
    that all answers of one instant count together.

    Parameters
    ----------
    schedule
        Judges patterns of its ``n`` workers: ``conforms``, ``enough`` and ``feasible``.
    rule
        If a job would be lost with the answers that are there after ``timeout_s``, the workers that
        have not answered are asked again (see `tick`) and have the same time again. This happens
        twice at most.
    round : int
        Number of the round, for the record and for errors.
    replicas
        Workers who are asked for the same, group by group. Answers do not suffice until three of
        each group are there, or all, as long as there is one to wait for: a liar is outvoted.
    excused : (n,) bool, optional
        Who is not asked for anything: counts as having answered, and nobody waits for them.
    again : (n,) bool, optional
        On whose answers the round was closed before, in a run that is resumed: as soon as they have
        answered it closes on these alone, whoever else has. Should one of them fail, or stay silent
        for longer than others took to suffice (`Repeat`), it is closed like any other.
    late
        Which answers to earlier rounds it took then: while it repeats, those and no others are
        taken again, and waited for as those of ``again`` are.

    Examples
    --------
    >>> from seqgc.schemes import GC
    >>> gate = RoundGate(GC(n=3, s=1).start(1), ClosingRule(mu=0.5))
    >>> gate.arrive(2, 1.0)
    >>> gate.wake_at
    1.5
    >>> _ = gate.tick(1.5)  # one answer of three: not enough
    >>> gate.arrive(0, 1.7); _ = gate.tick(1.7)
    >>> gate.record.reason, gate.record.duration_s
    ('wait-out', 1.7)
    """

    def __init__(
        self,
        schedule: Judge,
        rule: ClosingRule,
        *,
        round: int = 0,
        excused: BoolArray | None = None,
        again: BoolArray | None = None,
        replicas: Sequence[IntArray] = (),
        late: Iterable[LateAnswer] = (),
    ) -> None:
        self._replicas = replicas
        self.late_taken = list[LateAnswer]()
        self._schedule, self._rule, self._round = schedule, rule, round
        self.repeat = None if again is None else Repeat(again, late, limit_s=rule.timeout_s)
        self._responded, self._failed, self._doubted = np.zeros((3, schedule.n), dtype=np.bool_)
        if excused is not None:
            self._responded |= excused
        self._settled: BoolArray = self._responded.copy()  # any of the three
        self._kappa_s: float | None = None
        self._latest_s = 0.0
        self._waited_out, self._overdue = False, 0  # how often the time limit has passed
        self._asked_late_s = 0.0  # by how much the limit counts from later on
        is_lenient = rule.wait_out == "feasible"
        self._questions = (schedule.enough,) if is_lenient else (schedule.conforms, schedule.enough)
        self._verdicts: dict[tuple[int, bytes], bool] = {}
        self.wake_at = rule.timeout_s
        self.record: RoundRecord | None = None

    def arrive(self, worker: int, elapsed: float) -> None:
        """Register an answer at ``elapsed`` seconds.

        Raises
        ------
        ScheduleError
            If the round is closed, the worker has answered or failed, or time went back.
        """
        self._answer(worker, elapsed)

    def doubt(self, worker: int, elapsed: float) -> None:
        """Register an answer that does not count, unless `expect` and `arrive` follow.

        Raises like `arrive`.
        """
        self._answer(worker, elapsed, self._doubted)

    def fail(self, worker: int, elapsed: float) -> None:
        """Register that a worker will not answer; raises like `arrive`."""
        self._register(self._failed, worker, elapsed)
        self._set_alarm(elapsed)

    @property
    def answered(self) -> BoolArray:
        """Return the workers (n,) whose answers have arrived and can be used."""
        return self._responded

    def withhold(self, elapsed: float) -> None:
        """Decide anew: answers to earlier rounds are here that are not to be taken as yet."""
        if self.repeat is not None:
            self.repeat.withholds = True
        self._set_alarm(elapsed)

    def repeat_no_more(self, elapsed: float) -> None:
        """Let the round close like any other; give it at once the late answers it did without."""
        self.repeat = None
        self._set_alarm(elapsed)

    def take_late(self, late: LateAnswer, elapsed: float) -> None:
        """Decide anew: the schedule has taken an answer to an earlier round.

        Raises like `arrive`.
        """
        self._require_open(elapsed)
        self._latest_s = elapsed
        self.late_taken.append(late)
        if self.repeat is not None:
            self.repeat.late.discard(late)
        self._verdicts.clear()
        self._set_alarm(elapsed)

    def expect(self, workers: Sequence[int]) -> None:
        """Wait again for workers that have failed or are in doubt."""
        again = list(workers)
        self._failed[again] = self._doubted[again] = self._settled[again] = False

    def needs(self, worker: int) -> bool:
        """Whether the round could not close without this worker, should all others answer.

        Those who have failed are no such others, nor whose answers are in doubt, nor, beyond the
        time limit, who is silent.
        """
        others = self._responded.copy() if self._overdue else ~(self._failed | self._doubted)
        others[worker] = False
        return not self._schedule.feasible(others)

    @property
    def limit_s(self) -> float:
        """When the round ends, whoever has answered."""
        return self._rule.timeout_s * (1 + self._overdue) + self._asked_late_s

    @property
    def is_overdue(self) -> bool:
        """True if the time limit has passed at least once."""
        return self._overdue > 0

    def asked(self, left_at: float, *, origin: float) -> None:
        """Take note of when the last one left of those whom the round, or `tick`, has asked.

        That should be when the round began, its ``origin``, or at the limit. If it is later by half
        a limit, the master was busy or stopped: the limit counts from then.
        """
        late_s = left_at - (origin + self._rule.timeout_s * self._overdue)
        if late_s >= self._rule.timeout_s / 2:
            limit_s, self._asked_late_s = self.limit_s, max(self._asked_late_s, late_s)
            self.wake_at = self.limit_s if self.wake_at == limit_s else self.wake_at

    @property
    def awaited(self) -> tuple[int, ...]:
        """Who has neither answered nor failed."""
        return tuple(np.flatnonzero(~self._settled).tolist())

    def tick(self, elapsed: float) -> tuple[int, ...]:
        """Decide, everything that happened by ``elapsed`` seconds being registered.

        Returns the workers to ask again. They are asked if the time limit has passed for the first
        or second time and the round cannot close without their answers; or, once, if the round
        closed without them before the master was stopped. If it has to `repeat_no_more`, and late
        answers are withheld, the next tick decides.

        Raises
        ------
        WorkerError
            If nobody is left to wait for, or the time limit has passed three times, and the answers
            would lose a job.
        """
        self._require_open(elapsed)
        if elapsed < self.wake_at:
            return ()
        self._latest_s = elapsed
        repeat = self.repeat
        if repeat is not None and self._decides(repeat, elapsed):
            if repeat.is_complete(self._responded) and self._schedule.feasible(repeat.answers):
                self._close(elapsed, "again", repeat.answers)
            else:
                self.repeat_no_more(elapsed)
                return () if repeat.withholds else self.tick(elapsed)
        elif self._nobody_left() or self._overdue or elapsed >= self.limit_s:
            return self._close_or_give_up(elapsed)
        elif repeat is not None and (repeat.withholds or self._suffices(self._responded)):
            silent = repeat.answers & ~self._settled & repeat.is_waiting
            self.wake_at = repeat.wait(elapsed)
            return tuple(np.flatnonzero(silent).tolist())
        elif self._suffices(self._responded):
            reason: CloseReason = "wait-out" if self._waited_out else "tolerance"
            self._close(elapsed, reason, self._responded)
        else:
            self._waited_out = True
            self.wake_at = self.limit_s
        return ()

    def play(self, times: FloatArray) -> RoundRecord:
        """Play the round to its end, every worker answering at its time, (n,) seconds.

        The same as `arrive` and `tick`, one event after the other. But where these ask after each
        answer whether it suffices, here all are known: the first that does is found by bisection.

        Raises
        ------
        ScheduleError, WorkerError
            See `arrive` and `tick`.
        """
        order = np.argsort(times)
        if np.count_nonzero(self._responded):
            order = order[~self._responded[order]]
        at, taken = times[order], 0
        while self.record is None:
            if taken == len(at) or at[taken] > self.wake_at:
                self.tick(self.wake_at)
            else:
                more = self._until_next_decision(order, at, taken)
                self._answer(order[taken:more], float(at[more - 1]))
                taken = more
        return self.record

    def _until_next_decision(self, order: IntArray, at: FloatArray, taken: int) -> int:
        """Return how many will have answered when the round may next close; ``taken`` have."""
        if self._kappa_s is None or self._overdue or self.repeat is not None:
            return taken + 1
        last = int(np.searchsorted(at, self.wake_at, side="right"))
        if not self._waited_out or self._rule.wait_out == "all":
            return last

        def with_first(count: int) -> BoolArray:
            responded = self._responded.copy()
            responded[order[taken:count]] = True
            return responded

        enough = taken + 1
        for question in range(len(self._questions)):  # one by one: feasibility takes longest
            if question and self._holds(question, with_first(enough)):
                continue
            counts = range(enough, last + 1)
            found = bisect_left(counts, True, key=lambda c: self._holds(question, with_first(c)))
            enough = counts[min(found, len(counts) - 1)]
        return int(np.searchsorted(at, at[enough - 1], side="right"))  # the end of an instant

    def _answer(
        self, workers: int | IntArray, elapsed: float, mask: BoolArray | None = None
    ) -> None:
        self._register(self._responded if mask is None else mask, workers, elapsed)
        if self._kappa_s is None:
            self._kappa_s = elapsed
        self._set_alarm(elapsed)

    def _register(self, mask: BoolArray, workers: int | IntArray, elapsed: float) -> None:
        self._require_open(elapsed)
        if np.count_nonzero(self._settled[workers]):
            raise ScheduleError(
                f"worker {workers} is settled in round {self._round}: drop the event"
            )
        mask[workers] = self._settled[workers] = True
        self._latest_s = elapsed

    def _require_open(self, elapsed: float) -> None:
        if self.record is not None:
            raise ScheduleError(f"round {self._round} is closed: drop the event")
        if elapsed < self._latest_s:
            raise ScheduleError(f"time went back from {self._latest_s} s to {elapsed} s")

    def _set_alarm(self, elapsed: float) -> None:
        repeat = self.repeat
        if repeat is not None and self._decides(repeat, elapsed):
            self.wake_at = elapsed
        elif repeat is not None and repeat.is_waiting:
            pass  # it is set
        elif self._nobody_left() or self._overdue:
            self.wake_at = elapsed
        elif self._kappa_s is not None and not (self._waited_out and self._rule.wait_out == "all"):
            deadline = (1 + self._rule.mu) * self._kappa_s
            self.wake_at = min(self.limit_s, max(elapsed, deadline))

    def _decides(self, repeat: Repeat, elapsed: float) -> bool:
        """Whether all is here on which the round was closed before, or is waited for in vain."""
        failed, is_over = self._failed[repeat.answers].any(), elapsed >= repeat.ends_at
        return is_over or bool(failed) or self._nobody_left() or repeat.is_complete(self._responded)

    def _nobody_left(self) -> bool:
        all_settled = np.count_nonzero(self._settled) == len(self._settled)
        return all_settled and not (self.repeat is not None and self.repeat.late)

    def _suffices(self, responded: BoolArray) -> bool:
        return all(self._holds(each, responded) for each in range(len(self._questions))) and all(
            np.count_nonzero(responded[who]) >= min(_VOTES, len(who)) for who in self._replicas
        )

    def _holds(self, question: int, responded: BoolArray) -> bool:
        key = question, responded.tobytes()
        if key not in self._verdicts:  # bisection asks once more about what it has found
            self._verdicts[key] = self._questions[question](responded)
        return self._verdicts[key]

    def _close_or_give_up(self, elapsed: float) -> tuple[int, ...]:
        is_limit = elapsed >= self.limit_s
        is_over = self._nobody_left() or (is_limit and self._overdue == TIME_LIMITS - 1)
        if self._schedule.feasible(self._responded):
            late = self._overdue or is_limit
            reason: CloseReason = "timeout" if late else "exhausted"
            self._close(elapsed, "everyone" if self._responded.all() else reason, self._responded)
            return ()
        if is_over:
            answered, n = np.count_nonzero(self._responded), len(self._responded)
            raise WorkerError(
                f"round {self._round} cannot end: {answered} of {n} workers answered within "
                f"{elapsed:.3g} s, {np.count_nonzero(self._failed)} failed",
                round=self._round,
            )
        asked = self.awaited if is_limit else ()
        self._overdue += is_limit
        self.wake_at = self.limit_s
        return asked

    def _close(self, elapsed: float, reason: CloseReason, answers: BoolArray) -> None:
        responded = answers.copy()
        responded.flags.writeable = False
        kappa_s = elapsed if self._kappa_s is None else self._kappa_s
        self.record = RoundRecord(
            round=self._round,
            responded=responded,
            kappa_s=kappa_s,
            duration_s=elapsed,
            reason=reason,
            waited_out=self._waited_out or elapsed > (1 + self._rule.mu) * kappa_s,
            late=tuple(self.late_taken),
        )


def idle_record(round: int, n: int) -> RoundRecord:
    """Return the record of a round in which none of n workers had anything to do."""
    everyone = np.ones(n, dtype=np.bool_)
    everyone.flags.writeable = False
    return RoundRecord(
        round=round,
        responded=everyone,
        kappa_s=0.0,
        duration_s=0.0,
        reason="idle",
        waited_out=False,
    )
