"""What workers owe: the mini-tasks that they were sent, until they are answered or cancelled.

Debts know nothing of rounds closing: a worker may owe answers of several rounds at once, and what
it owes of one ends only with its answer or with a `Cancel`. Within (worker, round) a mini-task is
named by its slot; each attempt asks for some of the slots, and its answer must hold just these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from seqgc.ports import Arrival, MiniTask

__all__ = ["Debts"]

_Debtor: TypeAlias = tuple[int, int]  # worker, round


@dataclass(slots=True)
class _Debt:
    tasks: dict[int, MiniTask] = field(default_factory=dict)  # by slot
    attempts: dict[int, tuple[int, ...]] = field(default_factory=dict)  # attempt -> slots


class Debts:
    """Mini-tasks that are owed, by worker, round and slot.

    Examples
    --------
    >>> import numpy as np
    >>> task = MiniTask(job=0, slot=5, chunks=np.array([0]), coefficients=np.ones(1))
    >>> debts = Debts()
    >>> [each.slot for each in debts.ask(1, round=0, attempt=0, mini_tasks=[task])]
    [5]
    >>> debts.ask(1, round=0, attempt=1, mini_tasks=[task])  # owed already
    []
    >>> answer = Arrival(round=0, worker=1, attempt=1, at=0.0, results={})
    >>> list(debts.owed(answer))
    [5]
    >>> debts.settle(answer)
    >>> debts.owed(answer), len(debts)
    ({}, 0)
    """

    def __init__(self) -> None:
        self._debts: dict[_Debtor, _Debt] = {}

    def __len__(self) -> int:
        return sum(len(debt.tasks) for debt in self._debts.values())

    def ask(
        self, worker: int, *, round: int, attempt: int, mini_tasks: Sequence[MiniTask]
    ) -> list[MiniTask]:
        """Note that a worker is sent these; return those that it did not owe before."""
        debt = self._debts.setdefault((worker, round), _Debt())
        added = [task for task in mini_tasks if task.slot not in debt.tasks]
        debt.tasks |= {task.slot: task for task in added}
        debt.attempts[attempt] = tuple(task.slot for task in mini_tasks)
        return added

    def owed(self, answer: Arrival) -> Mapping[int, MiniTask]:
        """Return what an answer settles, by slot: what its attempt asked for and is still owed."""
        debt = self._debts.get((answer.worker, answer.round), _Debt())
        slots = debt.attempts.get(answer.attempt, ())
        return {slot: debt.tasks[slot] for slot in slots if slot in debt.tasks}

    def settle(self, answer: Arrival) -> None:
        """Forget what an answer settles."""
        if debt := self._debts.get((answer.worker, answer.round)):
            for slot in debt.attempts.pop(answer.attempt, ()):
                debt.tasks.pop(slot, None)
            if not debt.tasks:
                del self._debts[answer.worker, answer.round]

    def cancel(self, round: int, workers: Iterable[int]) -> None:
        """Forget what these workers owe of a round."""
        for worker in workers:
            self._debts.pop((worker, round), None)
