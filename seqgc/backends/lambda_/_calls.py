"""The unfinished invocations of a backend, and the times at which throttled ones are sent again.

Waits have full jitter, and a window limits the number of re-submissions at once. Nothing here does
I/O: times are arguments.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from seqgc.backends.lambda_._transport import Reply
from seqgc.errors import ParameterError, require_int
from seqgc.wire import TaskMessage

__all__ = ["Call", "Calls", "Throttle", "ThrottlePolicy"]

_DOUBLINGS: Final = 30  # more would overflow, and exceed any longest wait


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottlePolicy:
    """A backend's response to throttling (HTTP 429).

    The wait before an invocation's k-th re-submission is uniform between 0 and
    ``min(longest_s, first_s * 2**(k - 1))`` seconds ("full jitter"), so that invocations that were
    refused together do not come back together. If the service asks for a wait (Retry-After), it
    comes first, but is no longer than ``longest_s``. A window limits the number of re-submissions
    on trial at once: each refusal halves it, each accepted invocation widens it by one, up to
    ``window``. At most as many invocations as there are workers are submitted again in a second.

    Parameters
    ----------
    max_resubmissions
        Largest number of re-submissions of an invocation, >= 0; the next refusal is its
        `seqgc.ports.Failure`.
    first_s, longest_s
        Bounds of the waits, seconds, ``0 < first_s <= longest_s``.
    window
        Largest number of re-submissions on trial at once, >= 1.
    trial_s
        Seconds after which a re-submission that was not refused counts as accepted, so that a
        function that computes, or hangs, does not delay others.
    seed
        Seed of the waits' generator.

    Raises
    ------
    ParameterError
        If a value is outside its range.

    Examples
    --------
    >>> ThrottlePolicy(first_s=0.1, longest_s=5.0).bound_s(3)
    0.4
    """

    max_resubmissions: int = 8
    first_s: float = 0.1
    longest_s: float = 5.0
    window: int = 64
    trial_s: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for argument, least in (("max_resubmissions", 0), ("window", 1)):
            value = require_int(argument, getattr(self, argument), least=least)
            object.__setattr__(self, argument, value)
        if not 0 < self.first_s <= self.longest_s < math.inf:
            got = (self.first_s, self.longest_s)
            raise ParameterError("first_s", "must satisfy 0 < first_s <= longest_s", got)
        if not 0 < self.trial_s < math.inf:
            raise ParameterError("trial_s", "must be > 0 seconds", self.trial_s)

    def bound_s(self, refusals: int) -> float:
        """Return the longest wait, seconds, after this many refusals of one invocation."""
        return min(self.longest_s, self.first_s * 2.0 ** min(refusals - 1, _DOUBLINGS))


class Throttle:
    """The throttled invocations of a backend, by their tags, and the window.

    At most ``per_s`` invocations are submitted again in a second.
    """

    def __init__(self, policy: ThrottlePolicy, *, per_s: float = math.inf) -> None:
        self._policy, self._per_s = policy, per_s
        self._latest: deque[float] = deque()  # times of re-submissions in the last second
        self._rng = np.random.default_rng(policy.seed)
        self._due: dict[int, float] = {}  # tag -> time of its next submission
        self._trials: dict[int, float] = {}  # tag on trial -> time when it counts as accepted
        self._window = float(policy.window)

    def __len__(self) -> int:
        return len(self._due)

    @property
    def wake_at(self) -> float:
        """Time at which `ready` may return something; infinity if nothing waits."""
        if not self._due:
            return math.inf
        due = min(self._due.values())
        if len(self._latest) >= self._per_s:
            due = max(due, self._latest[0] + 1.0)
        return due if self._room > 0 else max(due, min(self._trials.values()))

    def refused(self, tag: int, *, refusals: int, now: float, least_s: float = 0.0) -> float:
        """Record that ``tag`` was throttled for the ``refusals``-th time; return its next time.

        ``least_s`` is the wait that the service asks for, seconds.
        """
        self.abandoned(tag)
        begin = now + min(least_s, self._policy.longest_s)
        self._due[tag] = begin + self._rng.uniform(0.0, self._policy.bound_s(refusals))
        return self._due[tag]

    def accepted(self, tag: int) -> None:
        """Record that ``tag`` was answered, or failed in another way than by throttling."""
        self._trials.pop(tag, None)
        self._window = min(float(self._policy.window), self._window + 1)

    def abandoned(self, tag: int) -> None:
        """Record that ``tag`` was throttled and will not be submitted again."""
        self._trials.pop(tag, None)
        self._window = max(1.0, self._window / 2)

    def forget(self, tag: int) -> bool:
        """Take back a waiting invocation; return whether it was waiting."""
        return self._due.pop(tag, None) is not None

    def ready(self, *, now: float) -> list[int]:
        """Return the tags to be submitted now, those due first first; they are on trial then."""
        for tag in [tag for tag, until in self._trials.items() if until <= now]:
            self.accepted(tag)
        while self._latest and self._latest[0] + 1.0 <= now:
            self._latest.popleft()
        due = sorted((at, tag) for tag, at in self._due.items() if at <= now)
        room = min(self._room, self._per_s - len(self._latest))
        tags = [tag for _, tag in due[: int(max(0, room))]]
        for tag in tags:
            del self._due[tag]
            self._trials[tag] = now + self._policy.trial_s
            self._latest.append(now)
        return tags

    @property
    def _room(self) -> int:
        return int(self._window) - len(self._trials)


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """An unfinished invocation: its event has not been queued yet."""

    request: TaskMessage
    refusals: int = 0  # consecutive, by throttling
    cancelled: bool = False  # read by the thread that fetches its answer
    fetching: bool = False  # a thread fetches its answer from the store
    warm_up: bool = False


class Calls:
    """The unfinished invocations of a backend.

    At most ``per_s`` throttled invocations are submitted again in a second.
    """

    def __init__(self, policy: ThrottlePolicy, *, per_s: float = math.inf) -> None:
        self._policy, self._throttle = policy, Throttle(policy, per_s=per_s)
        self._tags = itertools.count()
        self._calls: dict[int, Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def under_way(self) -> int:
        """Number of invocations that were sent and not answered; throttled ones do not count."""
        return sum(not call.fetching for call in self._calls.values()) - len(self._throttle)

    @property
    def wake_at(self) -> float:
        """Time at which `due` may return something; infinity if nothing waits."""
        return self._throttle.wake_at

    def add(self, call: Call) -> int:
        """Add an invocation and return its tag."""
        tag = next(self._tags)
        self._calls[tag] = call
        return tag

    def due(self, *, now: float) -> list[tuple[int, Call]]:
        """Return the throttled invocations to submit again now, with their tags."""
        return [(tag, self._calls[tag]) for tag in self._throttle.ready(now=now)]

    def replied(self, reply: Reply) -> Call | None:
        """Return the invocation that ends with this reply.

        Return None if the tag is unknown, if there was a reply before, or if the invocation will be
        submitted again.
        """
        call = self._calls.get(reply.tag)
        if call is None or call.fetching:
            return None
        if not reply.throttled:
            self._throttle.accepted(reply.tag)
            return call
        call.refusals += 1
        if call.refusals > self._policy.max_resubmissions:
            self._throttle.abandoned(reply.tag)
            return call
        self._throttle.refused(
            reply.tag, refusals=call.refusals, now=reply.at, least_s=reply.retry_after_s
        )
        if call.cancelled:
            self.forget([reply.tag])
        return None

    def settled(self, tag: int) -> Call | None:
        """Remove and return an invocation whose outcome is known, or return None."""
        return self._calls.pop(tag, None)

    def cancel(self, round: int, workers: Collection[int]) -> None:
        """Mark these workers' tasks of a round as cancelled; remove the throttled ones."""
        for tag, call in list(self._calls.items()):
            task = call.request.task
            if task.round == round and task.worker in workers and not call.warm_up:
                call.cancelled = True
                if self._throttle.forget(tag):
                    del self._calls[tag]

    def forget(self, tags: Iterable[int]) -> None:
        """Remove these invocations; their replies will be ignored."""
        for tag in tags:
            self._throttle.forget(tag)
            self._calls.pop(tag, None)

    def clear(self) -> None:
        """Remove all invocations."""
        self.forget(tuple(self._calls))
