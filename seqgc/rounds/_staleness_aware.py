"""`StalenessAware`: an update moves the weights the less, the more they have moved meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from seqgc.ports import Action, Arrival, Decoding, Dispatch, Event, Failure, Update
from seqgc.rounds._amended import AmendedPolicy
from seqgc.rounds._policy_defence import ResumablePolicy

__all__ = ["StalenessAware"]


class StalenessAware(AmendedPolicy):
    """A policy whose updates weigh ``1 / (1 + clocks)``; otherwise it is the ``policy`` given.

    So many whole clocks of updates, of the ``n`` parts of a job each, were given out between when
    the update's own task left and when it came: that is how old the weights are that it was
    computed on. Where nobody is ahead, everything weighs 1.

    Source: AntDT (2024) names the action ADJUST_LR, and gives no formula; the rate over the
    staleness is Zhang et al. 2016, "Staleness-aware async-SGD", Eq. 6, here in clocks.
    """

    def __init__(self, policy: ResumablePolicy, *, n: int) -> None:
        super().__init__(policy)
        self._n = n
        self._given = 0  # updates
        self._given_before: dict[tuple[int, int, int], int] = {}  # a task left, by its address

    def start(self) -> Sequence[Action]:
        return self._weighed(self._policy.start(), weight=1.0)

    def on(self, event: Event) -> Sequence[Action]:
        weight = 1.0
        if isinstance(event, Arrival | Failure):
            address = event.round, event.worker, event.attempt
            before = self._given_before.pop(address, self._given)
            weight = 1 / (1 + (self._given - before) // self._n)
        return self._weighed(self._policy.on(event), weight=weight)

    def _weighed(self, actions: Sequence[Action], *, weight: float) -> list[Action]:
        weighed: list[Action] = []
        for action in actions:
            if isinstance(action, Update):
                self._given += 1
                decoding = partial(_times, action.decoding, weight)
                weighed.append(replace(action, decoding=decoding))
                continue
            if isinstance(action, Dispatch):
                for worker in action.assignment:
                    self._given_before[action.round, worker, action.attempt] = self._given
            weighed.append(action)
        return weighed


def _times(decoding: Callable[[], Decoding], weight: float) -> Decoding:
    """Return a decoding whose terms weigh so many times as much."""
    made = decoding()
    terms = (replace(term, weight=weight * term.weight) for term in made.terms)
    return replace(made, terms=tuple(terms))
