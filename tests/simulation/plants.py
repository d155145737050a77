"""Bugs to be planted, one of each kind, to see that the simulator finds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final
from unittest import mock

from seqgc.ports import Term
from seqgc.rounds import RoundPolicy
from seqgc.schemes.ra_sgc import RASGCSchedule
from tests.simulation.clock_plants import CLOCK_PLANTS
from tests.simulation.function_plants import FUNCTION_PLANTS
from tests.simulation.resident_plants import RESIDENT_PLANTS
from tests.simulation.seams import (
    Blame,
    History,
    Learner,
    Lease,
    Recorder,
    Replicas,
    TorchWorkload,
    durable,
    gathering,
)
from tests.simulation.world import Clock

_Plant = Callable[[], AbstractContextManager[object]]


def _around(owner: type, name: str, make: Callable[[Any], Callable[..., Any]]) -> _Plant:
    """Return what replaces a method by what ``make`` makes of it."""
    return lambda: mock.patch.object(owner, name, make(getattr(owner, name)))


def _late(settle: Any) -> Callable[..., Any]:
    return lambda self, event: settle(self, replace(event, round=self._round))


def _as_they_come(_: Any) -> Callable[..., Any]:
    def add(self: Any, place: int, result: Any) -> None:
        if place not in self.places:
            self.places.add(place)
            if (0, 0) in self.nodes:
                self.nodes[0, 0][: self._size] += result
            else:
                self.nodes[0, 0] = self._copy(result)

    return add


def _after(more: Callable[[Any], object]) -> Callable[[Any], Callable[..., Any]]:
    """Return what does ``more`` with an object after its method."""

    def make(method: Any) -> Callable[..., Any]:
        def changed(self: Any, *arguments: Any, **named: Any) -> Any:
            result = method(self, *arguments, **named)
            more(self)
            return result

        return changed

    return make


def _forget_gradients(workload: Any) -> None:
    for gradient in workload._unapplied.values():
        if gradient is not None:
            gradient[:] = 0


def _apply_again(workload: Any) -> None:
    for job, gradient in workload._unapplied.items():
        if gradient is not None:
            for learner, result in workload._results(job, gradient.copy()):
                learner.apply(result)


def _unrecorded(close: Any) -> Callable[..., Any]:
    return lambda self, seen: close(self, seen) if seen.record.round % 5 else None


def _unsynced(write: Any) -> Callable[..., Any]:
    return lambda descriptor, data, **_: write(descriptor, data, sync=False)


def _keeps_all(init: Any) -> Callable[..., Any]:
    return lambda self, path, **_: init(self, path)


def _takes_all(_: Any) -> Callable[..., Any]:
    return lambda *_, **__: None


def _without(kind: str) -> Callable[[Any], Callable[..., Any]]:
    """Return what reads a journal as if it had no lines of a kind."""

    def make(take: Any) -> Callable[..., Any]:
        return lambda self, entry: take(
            self, replace(entry, kind="" if entry.kind == kind else entry.kind)
        )

    return make


def _first_counts(count: Any) -> Callable[..., Any]:
    def changed(self: Any, places: Any, **options: Any) -> Any:
        for votes in self._votes.values():
            first = next(iter(votes.values()), set())
            while len(votes) > 1:
                first |= votes.popitem()[1]
        return count(self, places, **options)

    return changed


def _though_finished(_: Any) -> Callable[..., Any]:
    return lambda self, round, _: round < self._round


def _dealt_and_late(terms_of: Any) -> Callable[..., Any]:
    """Return what counts each answer to what was dealt, though the chunk's own has come late."""

    def terms(self: Any, job: int, received: Any, deal: Any, responded: Any) -> Any:
        dealt = zip(deal.chunks.tolist(), deal.holders, strict=True)
        late = [holders[0] for chunk, holders in dealt if received[chunk] >= 0]
        more = [
            Term(worker=int(part[responded[part].argmax()]), round=job + 1, slot=1, weight=1.0)
            for part in late
            if responded[part].any()
        ]
        return (*terms_of(self, job, received, deal, responded), *more)

    return terms


PLANTS: Final[Mapping[str, _Plant]] = MappingProxyType(
    {
        "answers of closed rounds count": _around(RoundPolicy, "_settle", _late),
        "late answers of finished jobs count": _around(RASGCSchedule, "_awaits", _though_finished),
        "what came late and was dealt again counts twice": _around(
            RASGCSchedule, "_terms", _dealt_and_late
        ),
        "any form of result is taken": _around(gathering.Gatherer, "flaw", _takes_all),
        "sums in the order of answers": _around(gathering.CoverSum, "add", _as_they_come),
        "jobs are never forgotten": lambda: mock.patch.object(
            gathering.Gatherer, "combine", _remembering(gathering.Gatherer.combine)
        ),
        "gradients lost by resume": _around(TorchWorkload, "restore", _after(_forget_gradients)),
        "gradients applied again by resume": _around(
            TorchWorkload, "restore", _after(_apply_again)
        ),
        "optimizers forget": _around(
            Learner, "restore", _after(lambda self: self.stepper._optimizer.state.clear())
        ),
        "rounds that are not on record": _around(Recorder, "_close", _unrecorded),
        "nothing is synced": lambda: mock.patch.object(
            durable, "_write", _unsynced(durable._write)
        ),
        "one who says that a model is not finite is believed": _around(
            Blame, "_is_second", lambda _: lambda *_: True
        ),
        "lies are not compared": _around(Replicas, "count", _first_counts),
        "who lied is trusted by resume": _around(History, "take", _without("expel")),
        "switches are forgotten by resume": _around(History, "take", _without("decide")),
        "nothing is locked": _around(Lease, "_acquire", _takes_all),
        "durations by the wall clock": lambda: mock.patch.object(Clock, "monotonic", Clock.time),
        "metrics are kept by resume": _around(durable.AppendOnly, "__init__", _keeps_all),
        **FUNCTION_PLANTS,
        **RESIDENT_PLANTS,
        **CLOCK_PLANTS,
    }
)


# Of which kind of runs (`tests.simulation.draws`) each is looked for in, if not in any.
FOUND_IN: Final[Mapping[str, str]] = MappingProxyType(
    {
        "gradients lost by resume": "stale",
        "gradients applied again by resume": "stale",
        **dict.fromkeys(FUNCTION_PLANTS, "functions"),
        **dict.fromkeys(RESIDENT_PLANTS, "dealt-staying"),
        "functions that are silent are kept": "staying",
        "functions wait for their master for ever": "staying",
        **dict.fromkeys(CLOCK_PLANTS, "clocks"),
    }
)


def _remembering(combine: Any) -> Callable[..., Any]:
    def changed(self: Any, decoding: Any) -> Any:
        gradient = combine(self, decoding)
        self.require(decoding.job, gradient.dtype, gradient.size)
        return gradient

    return changed


def planted(name: str | None) -> AbstractContextManager[object]:
    return nullcontext() if name is None else PLANTS[name]()
