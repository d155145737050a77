"""`Overdue`: late answers, which belong to closed rounds and may still be useful.

When a round closes, some schedules still await the answers of its stragglers
(`seqgc.schemes.Schedule.awaits`). The tasks of these stragglers are not cancelled. A late answer is
taken by the round that is open when it comes. When the jobs for which it is useful are finished,
its task is cancelled.

In a resumed run, a round that is closed again takes exactly the late answers that it took before.
A late answer that comes too early, possibly even in its own round, is kept until the round that
took it before. If a round cannot be closed as before, because an answer is missing, it takes all
late answers that have come.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from seqgc.ports import Arrival, BoolArray, Cancel, Failure, LateAnswer
from seqgc.rounds._gate import RoundGate
from seqgc.schemes import Schedule

__all__ = ["Overdue"]

Owed: TypeAlias = tuple[int, list[int]]  # a round, and the workers that owe it an answer


class Overdue:
    """The useful late answers that are still to come, or that have come and no round took yet.

    Rounds have the numbers of the run. The first round of the schedule is ``first_round``.
    """

    def __init__(self, schedule: Schedule, first_round: int) -> None:
        self._schedule, self._first_round = schedule, first_round
        self._owed: dict[LateAnswer, int] = {}  # still to come; the latest attempt of the task
        self._here: list[LateAnswer] = []  # that have come, and that no round has taken

    def inherit(self, before: Overdue, *, taken: Iterable[LateAnswer]) -> None:
        """Continue from another object. ``taken`` are answers that its open round has taken.

        The open round begins again, so that these answers can be taken again.
        """
        self._owed, self._here = dict(before._owed), [*before._here, *taken]

    def owes(self, event: Arrival | Failure) -> bool:
        """Return True if an event belongs to a task whose late answer is still to come."""
        return 0 <= event.attempt <= self._owed.get((event.round, event.worker), -1)

    def ask_again(self, wanted: Iterable[LateAnswer], *, before: int) -> list[Owed]:
        """Return the tasks to send again for the ``wanted`` answers to rounds before ``before``.

        These are the answers that the schedule awaits, that have not come, and for which no task is
        out. From now on their workers owe them.
        """
        owed: defaultdict[int, list[int]] = defaultdict(list)
        for late in wanted:
            if late[0] < before and not self._has(late) and self.awaits(late):
                self._owed[late] = 0
                owed[late[0]].append(late[1])
        return sorted(owed.items())

    def _has(self, late: LateAnswer) -> bool:
        return late in self._owed or late in self._here

    def awaits(self, late: LateAnswer) -> bool:
        """Return True if the late answer is useful for the schedule."""
        round, worker = late
        return self._schedule.awaits(round - self._first_round, worker)

    def settle(self, event: Arrival | Failure) -> bool:
        """Record an event for which `owes` is True; return True if it is a useful answer."""
        late = (event.round, event.worker)
        if isinstance(event, Failure):
            if event.attempt == self._owed[late]:
                del self._owed[late]
            return False
        del self._owed[late]
        if not self.awaits(late):
            return False
        self._here.append(late)
        return True

    def take(self, gate: RoundGate, elapsed: float, *, without: int | None = None) -> None:
        """Pass the late answers that have come to the open round.

        A round that repeats an earlier closing gets only the late answers that it took then. If it
        cannot repeat any more, it gets all. It cannot if one of these late answers will not come,
        or if it needs worker ``without``, which has failed.
        """
        repeat = gate.repeat
        for late in [each for each in self._here if repeat is None or each in repeat.late]:
            self._here.remove(late)
            if self.awaits(late):
                round, worker = late
                self._schedule.take_late(round - self._first_round, worker)
                gate.take_late(late, elapsed)
        is_lost = repeat is not None and without is not None and repeat.answers[without]
        if repeat is not None and (is_lost or not all(self._has(late) for late in repeat.late)):
            gate.repeat_no_more(elapsed)
            self.take(gate, elapsed)
        elif self._here:
            gate.withhold(elapsed)

    def keep(
        self, round: int, stragglers: list[int], *, answered: BoolArray, attempts: dict[int, int]
    ) -> list[int]:
        """Await the late answers of stragglers, after their round has closed.

        Returns the stragglers whose tasks can be cancelled. ``answered`` (n,) marks the workers
        whose answers have come, and ``attempts`` has the latest attempt of each worker that is
        still computing.
        """
        others: list[int] = []
        for worker in stragglers:
            late = (round, worker)
            if answered[worker]:
                self._here.append(late)
            elif worker in attempts and self.awaits(late):
                self._owed[late] = attempts[worker]
                continue
            others.append(worker)
        return others

    def cancel(self, round: int, workers: list[int]) -> list[Cancel]:
        """Return the cancellations after a round has closed.

        They are for these ``workers`` of the round, and for workers whose late answers to earlier
        rounds are no longer useful.
        """
        self._here = [late for late in self._here if self.awaits(late)]
        return [*_cancel(round, workers), *self._cancel_useless()]

    def _cancel_useless(self) -> Iterator[Cancel]:
        useless = [late for late in self._owed if not self.awaits(late)]
        for late in useless:
            del self._owed[late]
        for round in sorted({round for round, _ in useless}):
            yield from _cancel(round, [worker for of, worker in useless if of == round])


def _cancel(round: int, workers: list[int]) -> list[Cancel]:
    return [Cancel(round=round, workers=tuple(sorted(workers)))] if workers else []
