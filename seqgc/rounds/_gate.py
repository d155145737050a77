"""`RoundGate`, which decides when a round may close."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from seqgc.errors import ScheduleError, WorkerError
from seqgc.ports import BoolArray, CloseReason, FloatArray, IntArray, LateAnswer, RoundRecord
from seqgc.rounds._repeat import PastRound, Repeat
from seqgc.rounds._rule import TIME_LIMITS, ClosingRule

_VOTES = 3  # with two different results, it is unknown which one is wrong

# This module calls `count_nonzero` instead of `any` and `all`, which take ten times as long.


class Judge(Protocol):
    """The methods of a schedule that the gate calls (`seqgc.schemes.Schedule`).

    Additional answers never turn the result of a method from True to False.
    """

    @property
    def n(self) -> int: ...
    def conforms(self, responded: BoolArray) -> bool: ...
    def enough(self, responded: BoolArray) -> bool: ...
    def feasible(self, responded: BoolArray) -> bool: ...


class RoundGate:
    """The object that decides when one round closes.

    The gate does no I/O. It is told the times of events in seconds since the round began.

    Let kappa be the time of the first answer, and ``mu`` the tolerance of the closing rule. The
    round stays open until ``(1 + mu) * kappa``, or until every worker has answered or failed. If
    the answers do not suffice then, ``rule.wait_out`` determines how much longer the round waits:

    - ``all``: until every worker has answered or failed;
    - ``feasible``: until no job in flight would be lost, and the scheme waits for no further
      answers (`Schedule.enough`);
    - ``conform``: until, in addition, the stragglers fit the scheme's straggler model.

    A round never closes with answers that would lose a job, whatever the rule. Methods such as
    `arrive` only register events, and `tick` decides. Therefore all answers of one instant count
    together.

    Source: docs/mathematics.md, section 6.

    Parameters
    ----------
    schedule
        The object that judges sets of answers of its ``n`` workers with its methods ``conforms``,
        ``enough`` and ``feasible``.
    rule
        The closing rule. After ``timeout_s`` seconds, the round closes if no job would be lost with
        the answers that have arrived. Otherwise the silent workers are asked again (see `tick`),
        and the time limit starts again. This happens at most twice.
    round : int
        Number of the round, for the record and for errors.
    replicas
        Groups of workers that compute the same mini-task, so that a wrong result can be outvoted.
        While there are workers to wait for, the answers do not suffice until three workers of each
        group have answered, or both workers of a group of two.
    excused : (n,) bool, optional
        Workers without a task. They count as having answered.
    again : PastRound, optional
        In a resumed run: the answers with which the round was closed before the interruption. As
        soon as all these answers have come, the round closes with them alone. Until then the round
        takes no other late answers. If one of their workers fails, or is silent for too long after
        other answers suffice (see `Repeat`), the round closes like any other round. It is an
        ordinary round from the beginning if ``again.responded`` is None.

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
        again: PastRound | None = None,
        replicas: Sequence[IntArray] = (),
    ) -> None:
        self._replicas = replicas
        self.late_taken = list[LateAnswer]()
        self._schedule, self._rule, self._round = schedule, rule, round
        self.repeat: Repeat | None = None
        if again is not None and again.responded is not None:
            self.repeat = Repeat(again.responded, again.late, limit_s=rule.timeout_s)
        self._responded, self._failed, self._doubted = np.zeros((3, schedule.n), dtype=np.bool_)
        if excused is not None:
            self._responded |= excused
        self._settled: BoolArray = self._responded.copy()  # responded, failed or doubted
        self._kappa_s: float | None = None
        self._latest_s = 0.0
        self._waited_out, self._overdue = False, 0  # number of time limits that have passed
        self._asked_late_s = 0.0  # seconds by which the limit is extended, see `asked`
        is_lenient = rule.wait_out == "feasible"
        self._questions = (schedule.enough,) if is_lenient else (schedule.conforms, schedule.enough)
        self._verdicts: dict[tuple[int, bytes], bool] = {}
        self.wake_at = rule.timeout_s
        self.record: RoundRecord | None = None

    def arrive(self, worker: int, elapsed: float) -> None:
        """Register an answer that came ``elapsed`` seconds after the round began.

        Raises
        ------
        ScheduleError
            If the round is closed, the worker has already answered or failed, or ``elapsed`` is
            smaller than for an earlier event.
        """
        self._answer(worker, elapsed)

    def doubt(self, worker: int, elapsed: float) -> None:
        """Register an answer that cannot be used yet, because it has flaws.

        The round does not wait for this worker, and does not count its answer. If the answer turns
        out to be usable, call `expect` and then `arrive`. Raises the same errors as `arrive`.
        """
        self._answer(worker, elapsed, self._doubted)

    def fail(self, worker: int, elapsed: float) -> None:
        """Register that a worker will not answer. Raises the same errors as `arrive`."""
        self._register(self._failed, worker, elapsed)
        self._set_alarm(elapsed)

    @property
    def answered(self) -> BoolArray:
        """A mask (n,) of the workers whose answers have arrived and can be used."""
        return self._responded

    def withhold(self, elapsed: float) -> None:
        """Register that late answers have arrived which the round may not take while it repeats.

        A round *repeats* as long as it is to close with the same answers as before (``again``).
        """
        if self.repeat is not None:
            self.repeat.withholds = True
        self._set_alarm(elapsed)

    def repeat_no_more(self, elapsed: float) -> None:
        """Give the repetition up, so that the round closes like any other round.

        After this call, pass the withheld late answers to the gate (`take_late`).
        """
        self.repeat = None
        self._set_alarm(elapsed)

    def take_late(self, late: LateAnswer, elapsed: float) -> None:
        """Register that the schedule has taken an answer to an earlier round.

        Raises `ScheduleError` if the round is closed, or ``elapsed`` is smaller than for an earlier
        event.
        """
        self._require_open(elapsed)
        self._latest_s = elapsed
        self.late_taken.append(late)
        if self.repeat is not None:
            self.repeat.late.discard(late)
        self._verdicts.clear()
        self._set_alarm(elapsed)

    def expect(self, workers: Sequence[int]) -> None:
        """Wait again for workers that have failed, or whose answers are in doubt."""
        again = list(workers)
        self._failed[again] = self._doubted[again] = self._settled[again] = False

    def needs(self, worker: int) -> bool:
        """Return True if the round cannot close without this worker's answer.

        It is assumed that all other workers answer, except workers that have failed and workers
        whose answers are in doubt. After the time limit it is assumed that silent workers do not
        answer.
        """
        others = self._responded.copy() if self._overdue else ~(self._failed | self._doubted)
        others[worker] = False
        return not self._schedule.feasible(others)

    @property
    def limit_s(self) -> float:
        """The end of the current time limit, in seconds since the round began."""
        return self._rule.timeout_s * (1 + self._overdue) + self._asked_late_s

    @property
    def is_overdue(self) -> bool:
        """True if the time limit has passed at least once."""
        return self._overdue > 0

    def asked(self, left_at: float, *, origin: float) -> None:
        """Record the time ``left_at`` at which the last of the tasks left the master.

        Tasks should leave when the round begins, at ``origin``, or when a time limit passes. If
        they leave at least half a time limit late, the master was busy or stopped. The time limit
        then begins at ``left_at``.
        """
        late_s = left_at - (origin + self._rule.timeout_s * self._overdue)
        if late_s >= self._rule.timeout_s / 2:
            limit_s, self._asked_late_s = self.limit_s, max(self._asked_late_s, late_s)
            self.wake_at = self.limit_s if self.wake_at == limit_s else self.wake_at

    @property
    def awaited(self) -> tuple[int, ...]:
        """The workers that have neither answered nor failed."""
        return tuple(np.flatnonzero(~self._settled).tolist())

    def tick(self, elapsed: float) -> tuple[int, ...]:
        """Decide whether to close the round, and return the workers to ask again.

        All events up to ``elapsed`` seconds must have been registered. If the time limit has passed
        for the first or second time, and the round cannot close yet, all silent workers are to be
        asked again. In a round that repeats (``again``), the silent workers among those whose
        answers it needs are to be asked again once. If a repetition is given up and late answers
        were withheld, the round does not close before the next tick.

        Raises
        ------
        WorkerError
            If a job would be lost with the answers, and there is no worker left to wait for or the
            time limit has passed three times.
        ScheduleError
            If the round is closed, or ``elapsed`` is smaller than for an earlier event.
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
        """Play the whole round, given the ``times`` (n,) of all workers' answers in seconds.

        Return the record of the round. It is the same as after calls of `arrive` and `tick` for one
        event after the other. But since all times are known, the first answer with which the
        answers suffice is found by bisection.

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
        """Return the number of answers with which the round may close next.

        ``order`` and ``at`` are the workers and times of all answers, sorted by time. The first
        ``taken`` answers have been registered.
        """
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
        for question in range(len(self._questions)):  # in this order: feasibility takes longest
            if question and self._holds(question, with_first(enough)):
                continue
            counts = range(enough, last + 1)
            found = bisect_left(counts, True, key=lambda c: self._holds(question, with_first(c)))
            enough = counts[min(found, len(counts) - 1)]
        return int(np.searchsorted(at, at[enough - 1], side="right"))  # and all of the same instant

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
                f"worker {workers} is settled in round {self._round} (it has answered or failed): "
                "drop the event"
            )
        mask[workers] = self._settled[workers] = True
        self._latest_s = elapsed

    def _require_open(self, elapsed: float) -> None:
        if self.record is not None:
            raise ScheduleError(f"round {self._round} is closed: drop the event")
        if elapsed < self._latest_s:
            rule = f"time went back from {self._latest_s} s to {elapsed} s"
            raise ScheduleError(f"{rule}: register events in the order of their times")

    def _set_alarm(self, elapsed: float) -> None:
        repeat = self.repeat
        if repeat is not None and self._decides(repeat, elapsed):
            self.wake_at = elapsed
        elif repeat is not None and repeat.is_waiting:
            pass  # the alarm is set already
        elif self._nobody_left() or self._overdue:
            self.wake_at = elapsed
        elif self._kappa_s is not None and not (self._waited_out and self._rule.wait_out == "all"):
            deadline = (1 + self._rule.mu) * self._kappa_s
            self.wake_at = min(self.limit_s, max(elapsed, deadline))

    def _decides(self, repeat: Repeat, elapsed: float) -> bool:
        """Return True if a repetition has succeeded or must be given up.

        It has succeeded if all answers of the earlier closing have come. It must be given up if one
        of them will not come, or the time to wait for them is over.
        """
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
        if key not in self._verdicts:  # the result of a bisection is asked about once more
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
    """Return the record of a round in which none of the ``n`` workers has a task."""
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
