"""The only loop: events to the policy, its actions to the backend and the workload."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from seqgc._types import FloatArray, MiniTask
from seqgc.ports import (
    Action,
    Arrival,
    Backend,
    Cancel,
    Close,
    Dispatch,
    Dispatched,
    Drop,
    Event,
    Failure,
    Finish,
    Policy,
    Task,
    Tick,
    WorkItem,
    Workload,
)

__all__ = ["Observer", "run"]

Observer: TypeAlias = Callable[[Event | Action], None]


def run(
    policy: Policy,
    backend: Backend,
    workload: Workload | None = None,
    *,
    observe: Observer | None = None,
) -> None:
    """Drive a policy to its end.

    Parameters
    ----------
    policy
        Decides: which tasks to send, when to close a round, which jobs are finished.
    backend
        Executes tasks; its clock is the only one.
    workload
        Resolves mini-tasks and takes decoded gradients. Without it nothing is computed or
        decoded: the decisions alone are replayed.
    observe
        Called with every event, before the policy sees it, and every action, before it is done.

    Raises
    ------
    WorkerError
        If a round cannot end.
    IllConditionedError
        If a gradient cannot be decoded to a useful precision.
    """
    _Loop(policy, backend, workload, observe or (lambda _: None)).run()


class _Loop:
    def __init__(
        self, policy: Policy, backend: Backend, workload: Workload | None, observe: Observer
    ) -> None:
        self._policy, self._backend = policy, backend
        self._workload, self._observe = workload, observe
        self._begun = -1  # jobs begin in order
        # For the tasks of the open round: (worker, round) -> the job of each slot they owe.
        self._owed: dict[tuple[int, int], dict[int, int]] = {}
        # For the jobs in flight: (worker, round, slot) -> result.
        self._results: dict[int, dict[tuple[int, int, int], FloatArray]] = defaultdict(dict)

    def run(self) -> None:
        self._perform(self._policy.start())
        while not self._policy.done:
            until = self._policy.wake_at
            self._feed(self._backend.receive(until) or Tick(at=until))

    def _feed(self, event: Event) -> None:
        if isinstance(event, Arrival):
            event = self._screen(event)
        self._observe(event)
        actions = self._policy.on(event)
        if isinstance(event, Arrival) and not any(isinstance(a, Drop) for a in actions):
            key = (event.worker, event.round)
            for slot, job in self._owed.get(key, {}).items():
                self._results[job][*key, slot] = event.results[slot]
        self._perform(actions)

    def _screen(self, event: Arrival) -> Arrival | Failure:
        """Turn an answer that lacks a result into a failure."""
        missing = self._owed.get((event.worker, event.round), {}).keys() - event.results.keys()
        if not missing:
            return event
        return Failure(
            round=event.round,
            worker=event.worker,
            attempt=event.attempt,
            at=event.at,
            reason=f"the answer lacks the result of slot {min(missing)}",
        )

    def _perform(self, actions: Sequence[Action]) -> None:
        for action in actions:
            self._observe(action)
            match action:
                case Dispatch():
                    self._dispatch(action)
                case Cancel(round=round, workers=workers):
                    self._backend.cancel(round, workers)
                case Finish():
                    self._finish(action)
                case Close():
                    self._owed.clear()
                case Drop():
                    pass  # for the observer

    def _dispatch(self, action: Dispatch) -> None:
        tasks = [self._task(action, worker) for worker in action.assignment]
        at = self._backend.dispatch(action.round, tasks)
        self._feed(Dispatched(round=action.round, attempt=action.attempt, at=at))

    def _task(self, action: Dispatch, worker: int) -> Task:
        items: tuple[WorkItem, ...] = ()
        if self._workload is not None:
            mini_tasks = action.assignment[worker]
            self._owed[worker, action.round] = {m.slot: m.job for m in mini_tasks}
            items = tuple(self._item(self._workload, m) for m in mini_tasks)
        return Task(round=action.round, worker=worker, attempt=action.attempt, items=items)

    def _item(self, workload: Workload, mini_task: MiniTask) -> WorkItem:
        while self._begun < mini_task.job:
            self._begun += 1
            workload.begin(self._begun)
        return WorkItem(slot=mini_task.slot, parts=workload.resolve(mini_task))

    def _finish(self, action: Finish) -> None:
        if self._workload is None:
            return
        results = self._results.pop(action.job)
        decoding = action.decoding(next(iter(results.values())).dtype)
        weights = np.array([term.weight for term in decoding.terms])
        rows = [results[t.worker, t.round, t.slot] for t in decoding.terms]
        self._workload.finish(action.job, weights @ np.stack(rows))
