"""`OpenRound`: the tasks of the round that is open, from the first dispatch to the decision.

Theory of operation
-------------------
Every worker is in one of these states:

===========  ===================================================================================
state        meaning
===========  ===================================================================================
*asked*      its task has been sent, and its answer is awaited
*waiting*    its task has failed, and will be sent again (`Attempts`)
*responded*  its answer has arrived
*failed*     its task has failed, and the round is to do without it
*flawed*     its answer has arrived, but cannot be used unless a model is at fault
===========  ===================================================================================

===================  =============================  ==============================================
from                 what happens                   to
===================  =============================  ==============================================
*asked*, *waiting*   an answer to any attempt       *responded*
*failed*, *flawed*   an answer to any attempt       *responded*
*asked*              the newest attempt fails       *waiting*; after the last attempt *failed* or
                                                    *flawed*, if the round can do without the worker
*failed*, *flawed*   the round needs more answers   *waiting*, if the worker may be asked again
*asked*              the time limit passes          *asked*: a new attempt, if the round needs it
===================  =============================  ==============================================

A worker that is *responded*, *failed* or *flawed* is settled: the round does not wait for it. Which
attempt is the last one depends on the other workers. If the round can do without the worker,
`ClosingRule.max_attempts` counts; a failure with flaws or a final failure is then the last in any
case, because asking the same worker again would give the same. If the round cannot do without it,
all workers that have failed are asked again, up to the limit of `Attempts`.

*Time.* The clock of the round starts when its first task leaves (`Dispatched.at`). All workers have
this one origin, so that times never go back, and the time kappa of the first answer includes the
sending of its own task. If tasks leave late by half a time limit, because the master was stopped,
the limit counts from then on.

*Ties.* Answers only register with the gate, which decides at a `Tick`. All answers of one instant
therefore count together, and a replay, where ties are common, closes each round as the live run
did. The loop compares sums (origin + alarm) and the gate compares differences. So that the last bit
of a number does not decide, the time of an event that came before an alarm is at most the alarm's.
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

_Asked: TypeAlias = dict[int, list[int]]  # workers that are sent their tasks again, by attempt
_Register: TypeAlias = Callable[[int, float], None]


class OpenRound:
    """The states of the workers in round ``number``; see this module's docstring.

    ``excused`` (n,) marks the workers without a task. ``barred`` contains the workers whose
    answers will never be usable, each with its final failure. They are asked only if no other
    worker has a task. If a worker fails permanently in this round, it is added to ``barred``.
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
        self._asks_all = False  # the tasks that leave now are those that the round has to wait for
        self.asked: Sequence[int] = range(len(excused))
        """The workers that are sent a task first."""
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
        """The time of the next decision, in the backend's time."""
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
        """Return the seconds since the origin, not after the next alarm or before the last one."""
        return max(min(event.at - self._origin, self._alarm_s), self._decided_s)

    def why_dropped(self, event: ports.Arrival | Failure) -> str | None:
        """Return the reason why an event of this round changes nothing; None if it does."""
        worker, latest = event.worker, self._attempts.latest(event.worker)
        is_failure = isinstance(event, Failure)
        if worker in self._settled and (is_failure or worker not in self.failed):
            return "the worker is settled"
        if not 0 <= event.attempt <= latest:
            return "nobody asked for it"
        if is_failure and (event.attempt < latest or self._attempts.waits(worker)):
            return "an earlier attempt"
        return None

    def answer(self, event: ports.Arrival) -> None:
        """Register an answer."""
        worker, self._asks_all = event.worker, False
        if self.failed.pop(worker, None) is not None:
            self._attempts.forget(worker)
            self.gate.expect([worker])
        self._settle(worker, self.gate.arrive, self.elapsed_s(event))

    def fail(self, failure: Failure) -> _Asked:
        """Register a failure; return the workers that are asked again at once, by attempt."""
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

        The first result is the list of silent workers. The second one contains all workers that are
        sent their tasks again, silent or failed, by the number of the attempt. If the round can
        close, the gate has a record after this call, and both results are empty.

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
        """Return the newest attempt of each of these workers that may still answer."""
        return self._attempts.under_way(w for w in workers if w not in self._settled)

    def explain(self, error: WorkerError) -> WorkerError:
        """Return the error with its cause: the first failure, and the silent workers."""
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
        """The workers without which the round is to close if it can, and that could try again."""
        return sorted((self.failed.keys() & self._settled) - self._barred.keys())

    def _ask_later(self, workers: Sequence[int], elapsed: float) -> list[int]:
        """Plan another attempt for these workers; return the workers that may be asked again."""
        again = self._attempts.plan(workers, elapsed, limit_s=self.gate.limit_s)
        self._settled.difference_update(again)
        self.gate.expect(again)
        return again

    def _settle(self, worker: int, register: _Register, elapsed: float) -> None:
        self._settled.add(worker)
        register(worker, elapsed)
