"""Who looks on: logs, counts, progress, budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from seqgc.ports._protocols import Action, Event


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Notice:
    """What a run did by itself, beside its rounds' events and actions.

    Its ``kind``, and what its ``fields`` are: ``start``, workers are about to be started
    (``workers``, ``provider``); ``ready``, they are (``seconds``, ``note``: what else to know of
    them); ``run``, training begins (the first line of ``events.jsonl``); ``round``, a recording's
    has ended (``done``, ``total``); ``search``, ``switch``, a search for a better setting has
    ended, the run takes another; ``parked``, a ``model`` is left as it is after its ``step``
    (``why``, and of what ``cause``: see `seqgc.training.Parked`); ``expelled``, a ``worker`` lied
    in a ``job``, and is heard no more; ``uncompared``, an audit could not compare so many
    ``results`` of a ``job``; ``slowdown``, all workers take so many ``times`` as long as before,
    ``since`` a round, and ``recovered``, they do no more (both with the ``round`` in which that
    became clear); ``warning``, what to know (``text``); ``end``, the run is over (``outcome``).
    """

    kind: str
    fields: Mapping[str, object]


Seen: TypeAlias = Event | Action | Notice


class Observer(Protocol):
    """Is shown a run: each event before the policy sees it, each action before it is done.

    Observers are called in the order in which they are given, from the master's own thread; the
    run's records come after them. One that raises ends the run there: what it was shown has then
    not happened, and is not on record. `seqgc.costs.Budget` is one that does.

    Examples
    --------
    >>> from seqgc.ports import Close
    >>> def tell(seen: Seen) -> None:
    ...     if isinstance(seen, Close):
    ...         print(seen.record.round, seen.record.reason)
    """

    def __call__(self, seen: Seen, /) -> None: ...


@runtime_checkable
class LastingObserver(Observer, Protocol):
    """An observer that goes on, in a resumed run, where the one before it was.

    Not where the run's newest checkpoint was: what was done after it has been done, and paid for.
    """

    @property
    def memory(self) -> Mapping[str, float]:
        """What it must remember: on the disk before tasks leave of which it was shown."""

    def recall(self, memory: Mapping[str, float]) -> None:
        """Go on from there."""
