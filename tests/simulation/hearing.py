"""What a run says of itself, over all its masters, to be held against how it ends."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from seqgc import ports
from seqgc.ports import Notice, RoundRecord, Seen
from tests.simulation.world import World


class Hearing:
    """An observer that notes claims, expulsions and switches in the world; one a master."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._told: int | None = None  # who has just been expelled

    def __call__(self, seen: Seen) -> None:
        if not self._world.alive:
            return
        if self._told is not None:  # and that is on record, if the disk can be written
            self._world.expelled |= set() if self._world.disk_failed else {self._told}
            self._told = None
        match seen:
            case Notice():
                self._hear(seen)
            case ports.Arrival() | ports.Failure():
                self._claim(seen, seen.flaws)
            case ports.Close(record=record):
                self._close(record)

    def _claim(self, answer: ports.Arrival | ports.Failure, models: Iterable[str]) -> None:
        for model in models:
            self._world.claims.setdefault((answer.round, model), set()).add(answer.worker)

    def _hear(self, notice: Notice) -> None:
        world, fields = self._world, notice.fields
        match notice.kind:
            case "expelled":
                self._told = int(str(fields["worker"]))
            case "uncompared":
                world.uncompared = True
            case "parked" if fields["cause"] == "diverged":
                world.diverged.add(str(fields["model"]))
            case "switch":
                spec = str(fields["to"]).split(", mu")[0]
                world.switches.append((int(str(fields["round"])), int(str(fields["job"])), spec))

    def _close(self, record: RoundRecord) -> None:
        """Forget what followed a round that is now closed otherwise."""
        stragglers, closed = tuple(np.flatnonzero(~record.responded).tolist()), self._world.closed
        if closed.setdefault(record.round, stragglers) != stragglers:
            for later in [round for round in closed if round > record.round]:
                del closed[later]
            closed[record.round] = stragglers
            self._world.switches = [s for s in self._world.switches if s[0] <= record.round]
