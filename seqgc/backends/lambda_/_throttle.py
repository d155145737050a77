"""When a throttled invocation is submitted again: full jitter, and few on trial at once."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from seqgc.errors import ParameterError

__all__ = ["Throttle", "ThrottlePolicy"]

_DOUBLINGS = 30  # beyond any longest wait, and no overflow


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottlePolicy:
    """How a backend meets throttling (HTTP 429).

    The wait before an invocation's k-th re-submission is uniform between 0 and
    ``min(longest_s, first_s * 2**(k - 1))`` seconds ("full jitter"), so that those which were
    refused together do not come back together. What the service asks for (Retry-After) is waited
    for before that, but no longer than ``longest_s``. How many may be on trial at once is a window:
    each refusal halves it, each accepted invocation widens it by one, never beyond ``window``.

    Parameters
    ----------
    max_resubmissions
        Of one invocation, >= 0; the next refusal is its `seqgc.ports.Failure`.
    first_s, longest_s
        The waits' bounds, seconds, ``0 < first_s <= longest_s``.
    window
        Most re-submissions on trial at once, >= 1.
    trial_s
        A re-submission that has not been refused for this long counts as accepted: a function
        that computes, or hangs, does not hold up others.
    seed
        Of the waits' generator.

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
        if self.max_resubmissions < 0:
            raise ParameterError("max_resubmissions", "must be >= 0", self.max_resubmissions)
        if not 0 < self.first_s <= self.longest_s < math.inf:
            got = (self.first_s, self.longest_s)
            raise ParameterError("first_s", "must satisfy 0 < first_s <= longest_s", got)
        if self.window < 1:
            raise ParameterError("window", "must be >= 1", self.window)
        if not 0 < self.trial_s < math.inf:
            raise ParameterError("trial_s", "must be > 0 seconds", self.trial_s)

    def bound_s(self, refusals: int) -> float:
        """Return the longest wait, seconds, after this many refusals of one invocation."""
        return min(self.longest_s, self.first_s * 2.0 ** min(refusals - 1, _DOUBLINGS))


class Throttle:
    """The waiting invocations and the window, for one backend; sans-I/O: times are arguments.

    Examples
    --------
    >>> throttle = Throttle(ThrottlePolicy(seed=1))
    >>> due = throttle.refused(7, refusals=1, now=10.0)
    >>> 10.0 <= due <= 10.1, throttle.ready(now=due), throttle.ready(now=due)
    (True, [7], [])
    """

    def __init__(self, policy: ThrottlePolicy) -> None:
        self._policy = policy
        self._rng = np.random.default_rng(policy.seed)
        self._due: dict[int, float] = {}  # waiting: tag -> when it may be submitted again
        self._trials: dict[int, float] = {}  # submitted again: tag -> when it counts as accepted
        self._window = float(policy.window)

    @property
    def wake_at(self) -> float:
        """When `ready` may return something; infinity if nothing waits."""
        if not self._due:
            return math.inf
        due = min(self._due.values())
        return due if self._room > 0 else max(due, min(self._trials.values()))

    def refused(self, tag: int, *, refusals: int, now: float, least_s: float = 0.0) -> float:
        """Take note that ``tag`` was throttled, the ``refusals``-th time; return when it is due.

        ``least_s``: what the service wants it to wait, seconds.
        """
        self.abandoned(tag)
        begin = now + min(least_s, self._policy.longest_s)
        self._due[tag] = begin + self._rng.uniform(0.0, self._policy.bound_s(refusals))
        return self._due[tag]

    def accepted(self, tag: int) -> None:
        """Take note that ``tag`` was answered, by whatever it is."""
        self._trials.pop(tag, None)
        self._window = min(float(self._policy.window), self._window + 1)

    def abandoned(self, tag: int) -> None:
        """Take note that ``tag`` was throttled and will not be submitted again."""
        self._trials.pop(tag, None)
        self._window = max(1.0, self._window / 2)

    def forget(self, tag: int) -> bool:
        """Take back a waiting invocation; return whether it was waiting."""
        return self._due.pop(tag, None) is not None

    def ready(self, *, now: float) -> list[int]:
        """Return the tags to be submitted now, those due first first; they are on trial then."""
        for tag in [tag for tag, until in self._trials.items() if until <= now]:
            self.accepted(tag)
        due = sorted((at, tag) for tag, at in self._due.items() if at <= now)
        tags = [tag for _, tag in due[: max(0, self._room)]]
        for tag in tags:
            del self._due[tag]
            self._trials[tag] = now + self._policy.trial_s
        return tags

    @property
    def _room(self) -> int:
        return int(self._window) - len(self._trials)
