"""What one process, or one function, owes its master."""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field
from typing import TypeAlias

from seqgc.ports import Arrival, Failure

__all__ = ["Owed", "TaskKey"]

TaskKey: TypeAlias = tuple[int, int]
"""A task's round and attempt: with the worker, who is known here, its address."""

_LATE = 64  # cancelled tasks whose answers may come: one was begun, and reads on


@dataclass(slots=True)
class Owed:
    """The tasks that were sent and are not answered, and those that were cancelled since."""

    tasks: set[TaskKey] = field(default_factory=set)
    late: deque[TaskKey] = field(default_factory=lambda: deque(maxlen=_LATE))

    def cancel(self, round: int, *, unsent: Container[TaskKey] = ()) -> bool:
        """Owe nothing of a round any more; return whether any of it had been sent."""
        over = {task for task in self.tasks if task[0] == round}
        self.tasks -= over
        sent = [task for task in over if task not in unsent]
        self.late.extend(sent)
        return bool(sent)

    def settle(self, event: Arrival | Failure) -> bool:
        """Take note of an answer; return whether it is an event.

        An answer to what was never asked, or has been answered, is none.
        """
        task = (event.round, event.attempt)
        if task in self.tasks:
            self.tasks.discard(task)
            return True
        if task in self.late:
            self.late.remove(task)
            return isinstance(event, Arrival)  # what is cancelled may fail: its weights are gone
        return False

    def lose(self) -> list[TaskKey]:
        """Owe nothing any more; return the tasks that will not be answered, in order."""
        lost = sorted(self.tasks)
        self.tasks.clear()
        self.late.clear()
        return lost
