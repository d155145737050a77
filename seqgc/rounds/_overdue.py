"""`Overdue`: answers to closed rounds that may still be of use.

When a round closes, some schedules await what its stragglers have not sent yet
(`seqgc.schemes.Schedule.awaits`). Those are not cancelled. Their answers are taken, by the round
that is open when they come, until the jobs that they are for are finished; then they are cancelled
after all.

A round that is closed *again*, in a resumed run, takes those late answers that it took before, and
no others. So one that comes too early for that, maybe in its own round, is kept until its turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from seqgc.ports import Arrival, BoolArray, Cancel, Failure, LateAnswer
from seqgc.rounds._gate import RoundGate
from seqgc.schemes import Schedule

__all__ = ["Overdue"]


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

    def add(self, round: int, worker: int, *, attempt: int) -> None:
        """Let a worker owe its answer to a closed round, of which this is the latest attempt."""
        self._owed[round, worker] = attempt

    def awaits(self, late: LateAnswer) -> bool:
        """Whether the schedule has a use for an answer."""
        round, worker = late
        return self._schedule.awaits(round - self._first_round, worker)

    def lacks(self, late: LateAnswer) -> bool:
        """Whether an answer is awaited that nobody owes any more, nor is it here."""
        return late not in self._owed and late not in self._here and self.awaits(late)

    def settle(self, event: Arrival | Failure, *, usable: bool) -> bool:
        """Take note of an event that was owed; say whether it is an answer of use."""
        late = (event.round, event.worker)
        if isinstance(event, Failure):
            if event.attempt == self._owed[late]:
                del self._owed[late]
            return False
        del self._owed[late]
        if not usable or not self.awaits(late):
            return False
        self._here.append(late)
        return True

    def take(self, gate: RoundGate, elapsed: float) -> None:
        """Have the open round take what is there and it wants."""
        for late in [each for each in self._here if gate.wants(each)]:
            self._here.remove(late)
            if self.awaits(late):
                round, worker = late
                self._schedule.take_late(round - self._first_round, worker)
                gate.take_late(late, elapsed)

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
                self.add(*late, attempt=attempts[worker])
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
