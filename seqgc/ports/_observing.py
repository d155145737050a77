"""What looks on while a run goes: logs, counts, progress, budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from seqgc.ports._protocols import Action, Event

__all__ = ["Notice", "Observer", "Seen"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Notice:
    """Something that a run did by itself, beside the events and actions of its rounds.

    ``kind`` is one of

    - ``start``: workers are about to be started (``workers``, ``provider``);
    - ``ready``: they are (``seconds``, ``note``: what else is worth saying of them);
    - ``run``: training begins (the first line of ``events.jsonl``);
    - ``round``: a round of a recording has ended (``done``, ``total``);
    - ``search``, ``switch``: a search for a better setting has ended; the run takes another one;
    - ``end``: the run is over, whatever its cause (``outcome``).
    """

    kind: str
    fields: Mapping[str, object]


Seen: TypeAlias = Event | Action | Notice


class Observer(Protocol):
    """Is shown a run: each event before the policy sees it, each action before it is done.

    Observers are called in the order in which they are given, from the master's own thread; the
    run's records come after them. One that raises ends the run there: what it was shown has then
    not happened, and is not on record. `seqgc.deploy.Budget` is one that does.

    Examples
    --------
    >>> from seqgc.ports import Close
    >>> def tell(seen: Seen) -> None:
    ...     if isinstance(seen, Close):
    ...         print(seen.record.round, seen.record.reason)
    """

    def __call__(self, seen: Seen, /) -> None: ...
