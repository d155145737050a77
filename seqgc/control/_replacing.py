from __future__ import annotations

from collections.abc import Sequence

from seqgc.control._monitor import TaskMonitor
from seqgc.control._persistence import Persistence
from seqgc.ports import Action, Dispatch, Dispatched, Event, Restart, Update
from seqgc.rounds import AmendedPolicy, RunPolicy

__all__ = ["ReplacingPolicy"]


class ReplacingPolicy(AmendedPolicy):
    """A policy that adds restarts of slow workers to another ``policy``.

    The ``monitor`` measures the workers, and the ``rule`` decides which of them are replaced. The
    rule is applied after an answer that the policy uses, at most every ``act`` seconds. Restarts
    come before the new tasks, so that the worker that has just answered is replaced between two
    tasks. If any other worker is replaced, its current task fails (`Restart`), and the policy
    treats this as any failure. If the backend cannot replace workers, the run continues without
    restarts and a warning says so. If the policy itself replaces a worker, such as a silent one,
    the monitor also forgets its measurements. Snapshots do not contain the measurements, because a
    resumed run has other workers.

    Examples
    --------
    Worker 0 sleeps 3 s before each task of 1 s, until it is replaced:

    >>> from seqgc.master import run
    >>> from seqgc.profiles.slowdowns import SleepWindows
    >>> from seqgc.rounds import ClosingRule
    >>> from seqgc.shards import ShardPolicy
    >>> from seqgc.virtual import VirtualBackend
    >>> slow = SleepWindows(n=4, intensity=0.75, probability=0.0).pace()
    >>> shards, seen = ShardPolicy(4, ClosingRule(), num_jobs=12), []
    >>> rule = Persistence(lam=1.5, per=10.0, act=5.0)
    >>> policy = ReplacingPolicy(shards, monitor=TaskMonitor(4, window_s=10.0), rule=rule)
    >>> run(policy, VirtualBackend(4, slow), observe=seen.append)
    >>> [action.worker for action in seen if isinstance(action, Restart)], shards.tasks
    ([0], (7, 14, 14, 14))
    """

    def __init__(self, policy: RunPolicy, *, monitor: TaskMonitor, rule: Persistence) -> None:
        super().__init__(policy)
        self._monitor, self._rule = monitor, rule

    def start(self) -> Sequence[Action]:
        return self._policy.start()

    def on(self, event: Event) -> Sequence[Action]:
        actions = self._policy.on(event)
        is_used = any(isinstance(action, Update) for action in actions)
        if is_used or isinstance(event, Dispatched):
            self._monitor.on(event)
        for action in actions:
            if isinstance(action, Restart):
                self._monitor.forget(action.worker)
        if not (is_used and self._rule.is_due(self._monitor.now)):
            return actions
        restarts = [
            Restart(worker=worker, reason=self._rule.reason)
            for worker in self._rule.persistent(self._monitor)
        ]
        for restart in restarts:
            self._monitor.forget(restart.worker)
        settling = [action for action in actions if not isinstance(action, Dispatch)]
        sending = [action for action in actions if isinstance(action, Dispatch)]
        return [*settling, *restarts, *sending]
