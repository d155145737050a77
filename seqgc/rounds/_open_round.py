"""`OpenRound`: the tasks of the open round, from the first dispatch to the decision to close it.

Theory of operation
-------------------
Every worker is in one of these states:

===========  ===================================================================================
state        meaning
===========  ===================================================================================
*asked*      its task has been sent, and its answer is awaited
*waiting*    its task has failed, and will be sent again (`Attempts`)
*responded*  its answer has arrived
*failed*     its task has failed, and the round is to close without its answer
*flawed*     its answer has arrived with flaws, which the worker or a model has caused. The answer
             can be used only if it turns out that a model is at fault
===========  ===================================================================================

===================  =============================  ==============================================
from                 what happens                   to
===================  =============================  ==============================================
*asked*, *waiting*   an answer to any attempt       *responded*
*failed*, *flawed*   an answer to any attempt       *responded*
*asked*              the newest attempt fails       *waiting*; after the last attempt *failed*, or
                                                    *flawed* if the failure has flaws
*failed*, *flawed*   the round needs more answers   *waiting*, if the worker may be asked again
*asked*              the time limit passes          *asked*: a new attempt, if the round needs it
===================  =============================  ==============================================

A worker that is *responded*, *failed* or *flawed* is *settled*: the round does not wait for it.
Which attempt is the last one depends on the other workers. If the round can close without the
worker's answer, there are at most `ClosingRule.max_attempts` attempts, and no further attempt after
a failure with flaws or a final failure, because the same worker would fail again in the same way.
If the round cannot close without this answer, all workers that have failed are asked again, except
after a final failure, up to the limit of `Attempts`.

*Time.* The clock of the round starts when its first task leaves (`Dispatched.at`). All workers have
this one origin. Therefore times never go back, and the time kappa of the first answer includes the
time until its own task was sent. If the tasks leave at least half a time limit late, because the
master was stopped, the time limit begins when they leave.

*Ties.* Answers only register with the gate, which decides at a `Tick`. All answers of one instant
therefore count together, and a replay, where ties are common, closes each round as the live run
did. The loop compares the time of an event with a sum (origin + alarm), but the gate compares a
difference (event - origin) with the alarm. The two may differ in their last bit. Therefore the time
that the gate is given for an event is never later than its next alarm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np

from seqgc import ports
from seqgc.errors import WorkerError
from seqgc.ports import BoolArray, Failure
from seqgc.rounds._attempts import Attempts
from seqgc.rounds._gate import RoundGate
from seqgc.rounds._overdue import Overdue
from seqgc.rounds._rule import ClosingRule

__all__ = ["OpenRound"]

_Asked: TypeAlias = dict[int, list[int]]  # by attempt: workers that are sent their tasks again
_Register: TypeAlias = Callable[[int, float], None]


class OpenRound:
    """The states of the workers in round ``number`` (see the module's docstring).

    ``excused`` (n,) marks the workers without a task. ``barred`` maps each worker that will never
    give a usable answer to its final failure (`Failure.final`). These workers are asked only if no
    other worker has a task. A worker with a final failure in this round is added to ``barred``.
    """

    def __init__(
        self,
        number: int,
        rule: ClosingRule,
        gate: RoundGate,
        overdue: Overdue,
        *,
        excused: BoolArray,
        barred: dict[int, Failure],
    ) -> None:
        self.number, self.gate = number, gate
        self._rule, self._overdue, self._barred = rule, overdue, barred
        self._attempts = Attempts(number, rule)
        self.failed: dict[int, Failure] = {}
        """The first failure of each worker that has not answered since."""
        self._settled: set[int] = set()
        self._origin, self._decided_s = math.nan, -math.inf
        self._asks_all = False  # True while tasks leave with which a time limit begins
        self.asked: Sequence[int] = range(len(excused))
        """The workers that are sent a task when the round opens."""
        overdue.take(gate, 0.0)
        if np.count_nonzero(excused):
            self._settled.update(np.flatnonzero(excused).tolist())
            self.asked = np.flatnonzero(~excused).tolist()
        if barred and (able := [worker for worker in self.asked if worker not in barred]):
            for worker in set(self.asked) - set(able):
                self.failed[worker] = barred[worker]
                self._settle(worker, gate.fail, 0.0)
            self.asked = able

    @property
    def wake_at(self) -> float:
        """The time of the next decision, in seconds on the clock of the backend."""
        return self._origin + self._alarm_s

    @property
    def _alarm_s(self) -> float:
        return min(self.gate.wake_at, self._attempts.wake_at)

    def left(self, event: ports.Dispatched) -> None:
        """Record when tasks of the round left."""
        if event.attempt == 0:
            self._origin, self._asks_all = event.at, True
        if self._asks_all:
            self.gate.asked(max(event.left_at), origin=self._origin)

    def elapsed_s(self, event: ports.Arrival | Failure) -> float:
        """Return the seconds from the origin to an event.

        The result is at least the time of the last decision and at most that of the next alarm.
        """
        return max(min(event.at - self._origin, self._alarm_s), self._decided_s)

    def why_dropped(self, event: ports.Arrival | Failure) -> str | None:
        """Return the reason why an event is dropped, or None if the round uses it."""
        worker, latest = event.worker, self._attempts.latest(event.worker)
        is_failure = isinstance(event, Failure)
        if worker in self._settled and (is_failure or worker not in self.failed):
            return "its worker has already answered or failed"
        if not 0 <= event.attempt <= latest:
            return "no such task has been sent"
        if is_failure and (event.attempt < latest or self._attempts.waits(worker)):
            return "its task has been sent again, or will be"
        return None

    def answer(self, event: ports.Arrival) -> None:
        worker, self._asks_all = event.worker, False
        if self.failed.pop(worker, None) is not None:
            self._attempts.forget(worker)
            self.gate.expect([worker])
        self._settle(worker, self.gate.arrive, self.elapsed_s(event))

    def fail(self, failure: Failure) -> _Asked:
        """Register a failure. Return the workers that are asked again at once, by attempt."""
        worker, elapsed, again = failure.worker, self.elapsed_s(failure), [failure.worker]
        self._asks_all = False
        self.failed.setdefault(worker, failure)
        if failure.final:
            self._barred[worker] = failure
        if failure.final or failure.flaws or failure.attempt + 1 >= self._rule.max_attempts:
            if not failure.flaws:
                self._overdue.take(self.gate, elapsed, without=worker)
            again = [worker, *self._given_up] if self.gate.needs(worker) else []
            again = [each for each in again if each not in self._barred]
        if worker not in self._ask_later(again, elapsed):
            self._settle(worker, self.gate.doubt if failure.flaws else self.gate.fail, elapsed)
        return self._attempts.begin(self._attempts.due(elapsed))

    def tick(self) -> tuple[list[int], _Asked]:
        """Let the gate decide at its alarm, and return the workers to ask again.

        The first result is the list of silent workers. The second result maps attempts to all
        workers that are sent their tasks again, because they are silent or have failed. If the
        round closes, the gate has a record after this call, and both results are empty.

        Raises
        ------
        WorkerError
            If a job would be lost with the answers, and there is no worker left to wait for or the
            time limit has passed three times.
        """
        elapsed = self._decided_s = self._alarm_s
        awaited = self.gate.tick(elapsed)
        if self.gate.record is not None:
            return [], {}
        self._overdue.take(self.gate, elapsed)
        attempts = self._attempts
        self._asks_all = bool(awaited) and self.gate.is_overdue
        if self._asks_all:  # workers that were given up may answer now
            self._ask_later(self._given_up, elapsed)
        silent = [w for w in awaited if not attempts.waits(w) and attempts.left(w)]
        return silent, attempts.begin([*silent, *attempts.due(elapsed)])

    def under_way(self, workers: Iterable[int]) -> dict[int, int]:
        """Return the latest attempt of each of these workers that may still answer, by worker."""
        return self._attempts.under_way(w for w in workers if w not in self._settled)

    def explain(self, error: WorkerError) -> WorkerError:
        """Return the error with its causes added: the first failure, and the silent workers."""
        silent = [w for w in self.gate.awaited if w not in self.failed]
        causes = [f"worker {f.worker}: {f.reason}" for f in self.failed.values()]
        text = [f"first failure, {cause}" for cause in causes[:1]]
        if silent:
            more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
            what = f"worker {silent[0]}{more} did not answer, though asked three times"
            text.append(f"{what}: raise the time limit")
        worker = next(iter([*self.failed, *silent]), None)
        return WorkerError("; ".join([str(error), *text]), round=error.round, worker=worker)

    @property
    def _given_up(self) -> list[int]:
        """The settled workers that have failed, but could still be asked again."""
        return sorted((self.failed.keys() & self._settled) - self._barred.keys())

    def _ask_later(self, workers: Sequence[int], elapsed: float) -> list[int]:
        """Plan another attempt of each worker that may have one, and return these workers."""
        again = self._attempts.plan(workers, elapsed, limit_s=self.gate.limit_s)
        self._settled.difference_update(again)
        self.gate.expect(again)
        return again

    def _settle(self, worker: int, register: _Register, elapsed: float) -> None:
        self._settled.add(worker)
        register(worker, elapsed)
