"""What workers owe, and which of their tasks are out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from seqgc.ports import Arrival, Event, Failure, MiniTask, Timetable

__all__ = ["Debts", "TasksOut"]


class Debts:
    """What workers owe: the mini-tasks that they were sent, until they are answered or cancelled.

    Debts know nothing of rounds closing: a worker may owe answers of several rounds at once, and
    what it owes of one ends only with its answer, with a `Cancel` or with the job. Within (worker,
    round) a slot names a mini-task; each attempt asks for some of them, and its answer must hold
    just these.
    """

    def __init__(self) -> None:
        # By (worker, round), then by slot: the mini-task, and the attempts that asked for it.
        self._debts: dict[tuple[int, int], dict[int, tuple[MiniTask, set[int]]]] = {}

    def ask(
        self, worker: int, *, round: int, attempt: int, mini_tasks: Sequence[MiniTask]
    ) -> list[MiniTask]:
        """Note that a worker is sent these; return those that it did not owe before."""
        debts = self._debts.setdefault((worker, round), {})
        added = [task for task in mini_tasks if task.slot not in debts]
        for task in mini_tasks:
            debts.setdefault(task.slot, (task, set()))[1].add(attempt)
        return added

    def owed(self, answer: Arrival) -> dict[int, MiniTask]:
        """Return what an answer settles, by slot: what its attempt asked for and is still owed."""
        debts = self._debts.get((answer.worker, answer.round), {})
        return {slot: task for slot, (task, by) in debts.items() if answer.attempt in by}

    def settle(self, answer: Arrival) -> dict[int, MiniTask]:
        """Forget what an answer settles, and return it."""
        debtor, settled = (answer.worker, answer.round), self.owed(answer)
        debts = self._debts.pop(debtor, {})
        if left := {slot: debt for slot, debt in debts.items() if slot not in settled}:
            self._debts[debtor] = left
        return settled

    def finish(self, job: int) -> None:
        """Forget what is owed for a job; an answer may still be of use for another."""
        for debtor in list(self._debts):
            debts = self._debts[debtor]
            for slot in [slot for slot, (task, _) in debts.items() if task.job == job]:
                del debts[slot]
            if not debts:
                del self._debts[debtor]

    def cancel(self, round: int, workers: Iterable[int]) -> None:
        """Forget what these workers owe of a round."""
        for worker in workers if self._debts else ():
            self._debts.pop((worker, round), None)


class TasksOut:
    """The tasks whose answer is to come, whether or not anybody has a use for it; true if any are.

    A backend that tells times ahead (`Timetable`) knows itself when nothing is left to arrive: of
    its tasks some are always said to be out.
    """

    def __init__(self) -> None:
        self._attempts: dict[tuple[int, int], set[int]] = {}  # by (round, worker)
        self._told = False

    def __bool__(self) -> bool:
        return self._told or bool(self._attempts)

    def leave(self, round: int, attempt: int, workers: Iterable[int]) -> None:
        """Note that these workers are sent a task."""
        for worker in () if self._told else workers:
            self._attempts.setdefault((round, worker), set()).add(attempt)

    def see(self, event: Event) -> None:
        """Take an answer, or the news that there will be none."""
        if isinstance(event, Timetable):
            self._told = True
            self._attempts.clear()
        elif isinstance(event, Arrival | Failure):
            attempts = self._attempts.get((event.round, event.worker), set())
            attempts.discard(event.attempt)
            if not attempts:
                self._attempts.pop((event.round, event.worker), None)

    def cancel(self, round: int, workers: Iterable[int]) -> None:
        """Note that these workers' tasks of a round will not be answered."""
        for worker in workers if self._attempts else ():
            self._attempts.pop((round, worker), None)
