"""`PausedPolicy`, which begins a job only after the caller has asked for it."""

from __future__ import annotations

from collections.abc import Sequence

from seqgc.ports import Action, Close, Dispatch, Event
from seqgc.rounds._policy_defence import RunPolicy


class PausedPolicy:
    """A policy that stops after each job, until the caller allows the next one.

    It holds back the tasks of later jobs. A loop that executes this policy ends with the job, and a
    new loop on the same backend continues. Answers to earlier jobs that arrive then are dropped, as
    in any run, and workers that have been silent for too long are replaced.

    Examples
    --------
    >>> import numpy as np
    >>> from seqgc.master import run
    >>> from seqgc.rounds import Setting, policy_of
    >>> from seqgc.schemes import GC
    >>> from seqgc.search import ReplayBackend
    >>> policy = PausedPolicy(policy_of(Setting(scheme=GC(n=2, s=1)), num_jobs=3), first_job=0)
    >>> backend = ReplayBackend(np.ones((3, 2)))
    >>> policy.allow(0)
    >>> run(policy, backend)
    >>> policy.rounds, policy.done
    (1, True)
    >>> policy.allow(1)
    >>> policy.done
    False
    """

    def __init__(self, policy: RunPolicy, *, first_job: int) -> None:
        self._policy, self._allowed = policy, first_job - 1
        self._held_back: list[Dispatch] = []
        self._has_begun = False
        self._ended = first_job - 1  # the last job that has ended

    @property
    def rounds(self) -> int:
        """The number of closed rounds."""
        return self._policy.rounds

    def allow(self, job: int) -> None:
        """Allow ``job``, which must be the next one. The loop must be started again."""
        self._allowed = job

    @property
    def done(self) -> bool:
        """True if the job that was allowed last has ended."""
        return self._ended >= self._allowed

    @property
    def wake_at(self) -> float:
        """The time at which to send a `Tick` if no event arrives before, in seconds."""
        return self._policy.wake_at

    def start(self) -> Sequence[Action]:
        """Open the first round, or send the tasks that were held back."""
        if not self._has_begun:
            self._has_begun = True
            return self._sorted(self._policy.start())
        actions, self._held_back = self._held_back, []
        return self._sorted(actions)

    def on(self, event: Event) -> Sequence[Action]:
        """Handle an event; return the actions that follow from it, without tasks of later jobs."""
        return self._sorted(self._policy.on(event))

    def _sorted(self, actions: Sequence[Action]) -> list[Action]:
        """Return the actions, but hold back the tasks of jobs that are not allowed."""
        now: list[Action] = []
        for action in actions:
            if isinstance(action, Dispatch) and self._is_later(action):
                self._held_back.append(action)
                continue
            if isinstance(action, Close):
                self._ended = max((self._ended, *action.jobs))
            now.append(action)
        return now

    def _is_later(self, action: Dispatch) -> bool:
        tasks = (task for mini_tasks in action.assignment.values() for task in mini_tasks)
        return any(task.job > self._allowed for task in tasks)
