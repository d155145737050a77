"""`Overdue`: late answers, which belong to closed rounds and may still be useful.

When a round closes, some schedules still await the answers of its stragglers
(`seqgc.schemes.Schedule.awaits`). The tasks of these stragglers are not cancelled. When such a late
answer comes, the open round *takes* it: the schedule counts it, and the round's record lists it.
The task is cancelled when the jobs that could use its answer are finished.

In a resumed run, a round that was closed before the interruption takes the same late answers as it
did then. A late answer may come earlier than it did before the interruption, even while its own
round is open. It is then kept until the round opens that took it before. If a round cannot be
closed as before, because an answer is missing, it takes all late answers that have come.
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
    """The awaited late answers, and the late answers that have come but that no round has taken.

    Rounds have the numbers of the run. The first round of the schedule is ``first_round``.
    """

    def __init__(self, schedule: Schedule, first_round: int) -> None:
        self._schedule, self._first_round = schedule, first_round
        self._owed: dict[LateAnswer, int] = {}  # by awaited answer: the latest attempt of its task
        self._here: list[LateAnswer] = []  # answers that have come, and that no round has taken

    def inherit(self, before: Overdue, *, taken: Iterable[LateAnswer]) -> None:
        """Continue from the object ``before``, whose open round has ``taken`` some late answers.

        The open round begins again, so that it can take these answers again.
        """
        self._owed, self._here = dict(before._owed), [*before._here, *taken]

    def owes(self, event: Arrival | Failure) -> bool:
        """Return True if an event belongs to a task whose late answer is awaited."""
        return 0 <= event.attempt <= self._owed.get((event.round, event.worker), -1)

    def ask_again(self, wanted: Iterable[LateAnswer], *, before: int) -> list[Owed]:
        """Return the tasks to send again so that the ``wanted`` late answers come.

        A task is sent again if its round is before ``before``, the schedule awaits its answer, the
        answer has not come, and no task is out for it. From now on the answer is awaited.
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
        """Record an event for which `owes` is True.

        Return True if the event is an answer that the schedule can still use.
        """
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

        A round that is to close with the same answers as before an interruption (`Repeat`) gets
        only the late answers that it took then. If one of these late answers will not come, or if
        the round used an answer of worker ``without``, which has failed now, the repetition is
        given up. The round then gets all late answers that have come.
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
        """Await the late answers of the ``stragglers`` of a round that has just closed.

        Return the stragglers whose tasks can be cancelled. ``answered`` (n,) marks the workers
        whose answers have come, although the round may not have used them. ``attempts`` are the
        latest attempts of the workers that are still computing, by worker.
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

        They cancel the tasks of these ``workers`` in the round, and all tasks of earlier rounds
        whose late answers are no longer useful.
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
