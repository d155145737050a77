"""`Overdue`: answers to closed rounds that may still be of use.

When a round closes, some schedules await what its stragglers have not sent yet
(`seqgc.schemes.Schedule.awaits`). Those are not cancelled. Their answers are taken, by the round
that is open when they come, until the jobs that they are for are finished; then they are cancelled
after all.

A round that is closed *again*, in a resumed run, takes those late answers that it took before, and
no others. So one that comes too early for that, maybe in its own round, is kept until its turn: or
until the round has to close like any other, for something that it was closed on before is missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from seqgc.ports import Arrival, BoolArray, Cancel, Failure, LateAnswer
from seqgc.rounds._gate import RoundGate
from seqgc.schemes import Schedule

__all__ = ["Overdue"]

Owed: TypeAlias = tuple[int, list[int]]  # a round, and workers


class Overdue:
    """Who owes an answer of use to a closed round, and whose is there but not taken yet.

    Rounds are numbered as the run does; the schedule's first one is ``first_round``.
    """

    def __init__(self, schedule: Schedule, first_round: int) -> None:
        self._schedule, self._first_round = schedule, first_round
        self._owed: dict[LateAnswer, int] = {}  # and the attempt that was sent last
        self._here: list[LateAnswer] = []

    def inherit(self, before: Overdue, *, taken: Iterable[LateAnswer]) -> None:
        """Go on where another one was; some of its answers were ``taken`` by a round undone."""
        self._owed, self._here = dict(before._owed), [*before._here, *taken]

    def owes(self, event: Arrival | Failure) -> bool:
        """Whether an event is of a task that is owed still."""
        return 0 <= event.attempt <= self._owed.get((event.round, event.worker), -1)

    def ask_again(self, wanted: Iterable[LateAnswer], *, before: int) -> list[Owed]:
        """Let workers owe the answers, to rounds before this one, that are lacking; return those.

        Lacking are those awaited that nobody owes, nor are they here.
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
        """Whether the schedule has a use for an answer."""
        round, worker = late
        return self._schedule.awaits(round - self._first_round, worker)

    def settle(self, event: Arrival | Failure) -> bool:
        """Take note of an event that was owed; say whether it is an answer of use."""
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
        """Have the open round take what is there, or of that what it took before, if it repeats.

        If what it waits for will not come any more, a late answer or the worker that it has to do
        ``without``, it repeats no more, and takes all.
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
        """Await what stragglers of a round that has just closed may yet send; return the others.

        ``answered`` (n,) are here already. ``attempts``: the latest of each who may yet answer.
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
        """Return these of a round that has just closed, and whose answers are of no more use."""
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
