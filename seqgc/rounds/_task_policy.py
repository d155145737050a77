"""`TaskPolicy`: the base of policies whose workers get task after task, without rounds."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias

from seqgc import ports
from seqgc.errors import ScheduleError, WorkerError
from seqgc.ports import Action, Arrival, Event, Failure
from seqgc.rounds._alarms import Alarms

__all__ = ["TaskPolicy"]

_Call: TypeAlias = Callable[[list[Action]], None]


class TaskPolicy(ABC):
    """A policy that is driven by answers and alarms; `Engine` adds the life of a task.

    An event is handled in three steps: `_settle` changes the state, then the alarms that are due
    are called, and `_proceed` sends new tasks. Each step appends to the list of actions. Alarms are
    set to times of the backend.

    If an alarm was due before an event, the master was busy or stopped, and other events that
    happened before the alarm may not have been read yet. The alarm then waits for its own `Tick`,
    which the loop sends after all these events.
    """

    def __init__(self) -> None:
        self._alarms = Alarms[_Call]()
        self._now = -math.inf

    def on(self, event: Event) -> Sequence[Action]:
        """Handle an event; return the actions that follow from it, in order.

        Raises
        ------
        WorkerError
            If the run cannot end.
        WireError
            If the event names a worker that does not exist.
        """
        self._now = max(self._now, event.at)
        actions: list[Action] = []
        match event:
            case ports.Dispatched():
                self._note_left(event)
                return ()
            case Arrival() | Failure():
                self._settle(event, actions)
            case ports.Tick():
                if math.isinf(event.at):
                    raise self._unheard("the backend will deliver no more answers")
            case ports.Timetable():
                rule = "its workers do not begin rounds together: send each answer as an `Arrival`"
                raise ScheduleError(f"this policy accepts no timetable, because {rule}")
        if isinstance(event, ports.Tick) or self._alarms.next_at >= event.at:
            for call in self._alarms.due(event.at):
                call(actions)
        self._proceed(actions)
        return actions

    @abstractmethod
    def _note_left(self, event: ports.Dispatched) -> None:
        """Record when tasks left."""

    @abstractmethod
    def _settle(self, event: Arrival | Failure, actions: list[Action]) -> None:
        """Use an answer or failure that is awaited; drop any other event."""

    @abstractmethod
    def _proceed(self, actions: list[Action]) -> None:
        """Add the actions that send new tasks."""

    @abstractmethod
    def _unheard(self, what: str) -> WorkerError:
        """Return the error that ends a run in which no event can happen any more."""
