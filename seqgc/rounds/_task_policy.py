"""`TaskPolicy`: what all policies do whose workers go on by themselves, task by task."""

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
    """A policy without rounds that all begin together; it is driven by answers and alarms.

    A subclass says what an answer or a failure changes, and what can be sent then. Between the two
    come the alarms that are due: calls, each given the list of actions to add to. They are set to
    times of the backend, of which ``now`` is the latest that is known. An alarm that should have
    rung before an event was not heard, for the master was busy or stopped: it waits for its own
    `Tick`, which comes when all has been told that nobody read meanwhile.
    """

    def __init__(self) -> None:
        self._alarms = Alarms[_Call]()
        self._now = -math.inf

    def on(self, event: Event) -> Sequence[Action]:
        """Take one event; return what is to be done about it, in order.

        `WorkerError` if the run cannot end; `WireError` if there is no such worker.
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
                    raise self._unheard("nobody answers any more")
            case ports.Timetable():
                raise ScheduleError("there is no timetable of work that nobody begins together")
        if isinstance(event, ports.Tick) or self._alarms.next_at >= event.at:
            for call in self._alarms.due(event.at):
                call(actions)
        self._proceed(actions)
        return actions

    @abstractmethod
    def _note_left(self, event: ports.Dispatched) -> None:
        """Take note of when tasks left."""

    @abstractmethod
    def _settle(self, event: Arrival | Failure, actions: list[Action]) -> None:
        """Take what somebody waits for; have any other event dropped."""

    @abstractmethod
    def _proceed(self, actions: list[Action]) -> None:
        """Send what else can be sent now."""

    @abstractmethod
    def _unheard(self, what: str) -> WorkerError:
        """Return the error with which a run ends that would wait for ever."""
