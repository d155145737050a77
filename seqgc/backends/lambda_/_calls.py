"""The unfinished invocations of a backend, and the times at which throttled ones are sent again.

Waits have full jitter, and a window limits the number of simultaneous re-submissions. This module
does no I/O; times are arguments.
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

_DOUBLINGS: Final = 30  # more could overflow, and the wait is limited anyway


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottlePolicy:
    """The rules by which a backend repeats throttled invocations (HTTP 429).

    The wait before the k-th re-submission of an invocation is uniform between 0 and
    ``min(longest_s, first_s * 2**(k - 1))`` seconds ("full jitter"), so that invocations that were
    throttled together are not repeated together. If the service names a time to wait (Retry-After),
    this time comes first, but at most ``longest_s``.

    A re-submission is on trial until it is throttled again, answered, or ``trial_s`` seconds old. A
    window limits the number of re-submissions on trial. If an invocation is throttled, the window
    is halved; if it is accepted, the window grows by one, up to ``window``. In a second, at most as
    many invocations are submitted again as there are workers.

    Parameters
    ----------
    max_resubmissions
        Largest number of re-submissions of an invocation, >= 0. If the last one is also throttled,
        the task ends with a `seqgc.ports.Failure`.
    first_s, longest_s
        Bounds of the waits, in seconds, ``0 < first_s <= longest_s``.
    window
        Largest number of re-submissions on trial, >= 1.
    trial_s
        Seconds after which a re-submission counts as accepted, so that a function that computes or
        hangs does not delay other re-submissions.
    seed
        Seed of the random waits.

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
        """Return the longest wait, in seconds, after this many refusals of an invocation."""
        return min(self.longest_s, self.first_s * 2.0 ** min(refusals - 1, _DOUBLINGS))


class Throttle:
    """The throttled invocations of a backend, by their tags.

    The class decides when they are submitted again, by the rules of a `ThrottlePolicy`. At most
    ``per_s`` invocations are submitted again in a second.
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
        """The next time at which `ready` may return a tag, or infinity."""
        if not self._due:
            return math.inf
        due = min(self._due.values())
        if len(self._latest) >= self._per_s:
            due = max(due, self._latest[0] + 1.0)
        return due if self._room > 0 else max(due, min(self._trials.values()))

    def refused(self, tag: int, *, refusals: int, now: float, least_s: float = 0.0) -> float:
        """Record that ``tag`` was throttled for the ``refusals``-th time.

        Return the time of its next submission. ``least_s`` is the time to wait, in seconds, that
        the service has named.
        """
        self.abandoned(tag)
        begin = now + min(least_s, self._policy.longest_s)
        self._due[tag] = begin + self._rng.uniform(0.0, self._policy.bound_s(refusals))
        return self._due[tag]

    def accepted(self, tag: int) -> None:
        """Record that ``tag`` was answered, or failed for another reason than throttling."""
        self._trials.pop(tag, None)
        self._window = min(float(self._policy.window), self._window + 1)

    def abandoned(self, tag: int) -> None:
        """Record that ``tag`` was throttled and will not be submitted again."""
        self._trials.pop(tag, None)
        self._window = max(1.0, self._window / 2)

    def forget(self, tag: int) -> bool:
        """Remove a waiting invocation. Return True if it was waiting."""
        return self._due.pop(tag, None) is not None

    def ready(self, *, now: float) -> list[int]:
        """Return the tags to submit now, in the order of their times. They are then on trial."""
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
    """An unfinished invocation, whose event has not been queued."""

    request: TaskMessage
    refusals: int = 0  # how often it was throttled
    cancelled: bool = False  # also read by the thread that fetches its answer
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
        """The number of invocations that were sent and not answered, without throttled ones."""
        return sum(not call.fetching for call in self._calls.values()) - len(self._throttle)

    @property
    def wake_at(self) -> float:
        """The next time at which `due` may return an invocation, or infinity."""
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
        """Return the invocation that ends with this reply, or None.

        The result is None if the tag is unknown, if there was an earlier reply, or if the
        invocation will be submitted again.
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
        """Remove an invocation that has ended and return it; return None if the tag is unknown."""
        return self._calls.pop(tag, None)

    def cancel(self, round: int, workers: Collection[int]) -> None:
        """Mark these workers' tasks of a round as cancelled, and remove throttled invocations."""
        for tag, call in list(self._calls.items()):
            task = call.request.task
            if task.round == round and task.worker in workers and not call.warm_up:
                call.cancelled = True
                if self._throttle.forget(tag):
                    del self._calls[tag]

    def forget(self, tags: Iterable[int]) -> None:
        """Remove these invocations. Later replies to them are ignored."""
        for tag in tags:
            self._throttle.forget(tag)
            self._calls.pop(tag, None)

    def clear(self) -> None:
        self.forget(tuple(self._calls))
