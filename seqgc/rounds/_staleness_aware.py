"""`StalenessAware`: a policy that gives stale updates smaller weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from seqgc.ports import Action, Arrival, Decoding, Dispatch, Event, Failure, Update
from seqgc.rounds._amended import AmendedPolicy
from seqgc.rounds._policy_defence import RunPolicy

__all__ = ["StalenessAware"]


class StalenessAware(AmendedPolicy):
    """A policy that multiplies each update of another ``policy`` by ``1 / (1 + clocks)``.

    ``clocks`` is the staleness of the weights with which the update was computed. It is the number
    of updates between the time at which the update's task was sent and the time of its answer,
    divided by ``n``, the number of parts of a job, and rounded down. If no worker is ahead of
    another, the factor is 1.

    Source: AntDT (2024) names the action ADJUST_LR, but gives no formula. Zhang et al. 2016,
    "Staleness-aware async-SGD", Eq. 6, divides the learning rate by the staleness. Here staleness
    is counted in clocks.
    """

    def __init__(self, policy: RunPolicy, *, n: int) -> None:
        super().__init__(policy)
        self._n = n
        self._given = 0  # the number of updates so far
        # By a task's (round, worker, attempt): the number of updates before it was sent.
        self._given_before: dict[tuple[int, int, int], int] = {}

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
    """Return a decoding with all its weights multiplied by ``weight``."""
    made = decoding()
    terms = (replace(term, weight=weight * term.weight) for term in made.terms)
    return replace(made, terms=tuple(terms))
