"""Bugs to be planted where workers go on by themselves; the draw "clocks" has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final
from unittest import mock

from seqgc.clocks import ClockPolicy, FlexRRPolicy, Slack
from seqgc.shards import ShardService, Stretches
from tests.simulation.seams import DataQueue, Engine, Learner, StaleWorkload

_Plant = Callable[[], AbstractContextManager[object]]


def _in_place_of(owner: type, name: str, make: Callable[[Any], Callable[..., Any]]) -> _Plant:
    return lambda: mock.patch.object(owner, name, make(getattr(owner, name)))


def _one_further(admits: Any) -> Callable[..., bool]:
    return lambda self, part, clock, clocks: admits(self, part, clock - 1, clocks)


def _one_clock_less(snapshot: Any) -> Callable[..., Any]:
    def changed(self: Any) -> Any:
        state = snapshot(self)
        return {**state, "completed": [max(0, clock - 1) for clock in state["completed"]]}

    return changed


def _as_if_new(restore: Any) -> Callable[..., None]:
    def changed(self: Any, state: Any) -> None:
        restore(self, {**state, "todo": [(number, 0) for number, _ in state["todo"]]})

    return changed


def _settled_at_once(standing: Any) -> Callable[..., Any]:
    def changed(self: Any, worker: int) -> Any:
        stand = standing(self, worker)
        return replace(stand, settles=range(stand.part, stand.part + 1))

    return changed


def _as_if_for_the_first_time(standing: Any) -> Callable[..., Any]:
    return lambda self, worker: replace(standing(self, worker), again=False)


def _forgotten(_: Any) -> Callable[..., Any]:
    return lambda self: {}  # noqa: ARG005


def _of_any_attempt(_: Any) -> Callable[..., Any]:
    return lambda self, clock, worker, _: next(iter(self._held(worker)), None)  # noqa: ARG005


def _whatever_the_slack(_: Any) -> Callable[..., bool]:
    return lambda self, part: self._clocks.clock(part) < self.num_jobs


def _given_by_the_part_s_worker(update: Any) -> Callable[..., Any]:
    def changed(self: Any, part: int, clock: int) -> Any:
        self._givers[part] = dict.fromkeys(self._givers[part], part)
        return update(self, part, clock)

    return changed


def _moved_again() -> AbstractContextManager[object]:
    """Have a resumed run's weights moved again by the last update of each model with open jobs."""
    latest: dict[str, Any] = {}
    apply_part, restore = Learner.apply_part, StaleWorkload.restore

    def noting(self: Any, result: Any) -> None:
        latest[self.model.name] = replace(result, gradient=result.gradient.copy())
        apply_part(self, result)

    def changed(self: Any, state: Any, files: Any) -> None:
        restore(self, state, files)
        begun = [job for job, parts in state.parts.items() if parts.losses]
        for index in {index for job in begun for index in self._plan.bundle(job)}:
            learner = self._learners[index]
            if (result := latest.get(learner.model.name)) is not None:
                apply_part(learner, result)

    stack = ExitStack()
    stack.enter_context(mock.patch.object(Learner, "apply_part", noting))
    stack.enter_context(mock.patch.object(StaleWorkload, "restore", changed))
    return stack


CLOCK_PLANTS: Final[Mapping[str, _Plant]] = MappingProxyType(
    {
        "a worker begins beyond its slack": _in_place_of(Slack, "admits", _one_further),
        "clocks that are in the weights are asked for again by resume": _in_place_of(
            ClockPolicy, "snapshot", _one_clock_less
        ),
        "shards begin anew with each resume": _in_place_of(ShardService, "restore", _as_if_new),
        "a job ends though a shard may be done again": _in_place_of(
            Stretches, "standing", _settled_at_once
        ),
        "what is done again is taken for new": _in_place_of(
            Stretches, "standing", _as_if_for_the_first_time
        ),
        "answers to any attempt count": _in_place_of(Engine, "_awaited", _of_any_attempt),
        "an update is applied again by resume": _moved_again,
        "parts of pieces that are in the weights are asked for again by resume": _in_place_of(
            FlexRRPolicy, "snapshot", _one_clock_less
        ),
        "a helper begins a clock beyond the slack": _in_place_of(
            FlexRRPolicy, "_is_open", _whatever_the_slack
        ),
        "a helper's piece counts as the part's worker's": _in_place_of(
            FlexRRPolicy, "_update", _given_by_the_part_s_worker
        ),
        "what steps lost is forgotten by resume": _in_place_of(DataQueue, "snapshot", _forgotten),
    }
)
