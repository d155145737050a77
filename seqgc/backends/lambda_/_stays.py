"""Resident functions: their settings, states, invocations and billed time.

A resident function is billed from its invocation until it has ended. There are three signs of its
end:

- *The reply to its invocation says that it ran.* It has ended at the time of the reply.
- *The reply says that the service refused the invocation.* No function has run, and AWS bills
  nothing.
- *The connection to the master ends*, the function was ready, and the reply is missing or says
  neither. A function without its master ends by itself within `OUTLIVES_BEATS` heartbeats.

Before its end is certain, the rest of its lease is reserved (`Leases`).
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from seqgc.backends._events import Owed, TaskKey
from seqgc.backends.lambda_._calls import Throttle, ThrottlePolicy
from seqgc.backends.lambda_._switchboard import Address, Switchboard
from seqgc.backends.lambda_._transport import Reply, Transport
from seqgc.errors import ParameterError, require_int
from seqgc.ports import Clock, Leases
from seqgc.wire import StayMessage, TaskMessage, encode, to_json
from seqgc.worker._resident import GRACE_BEATS, OUTLIVES_BEATS

__all__ = ["ResidentWorker", "Starts", "Stay", "Staying", "task_key"]

_SPARE: Final = 1 / 60  # of the time-out. A function must end before the service ends it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Staying:
    """Settings of resident functions.

    Parameters
    ----------
    address
        The address at which functions connect to the master.
    limit_s
        The function's time-out in seconds, at most Lambda's 900.
    leave
        Smallest and largest share of the time-out after which a function announces that it will
        leave. The share is drawn with ``seed``, so that functions do not leave together. The
        default is 13 ± 1 minutes of Lambda's 15. If the time-out is short, functions leave earlier,
        because a last computation needs some heartbeats to end.
    beat_s
        Seconds between heartbeats. After 5 silent heartbeats the master assumes that a ready
        function is lost; after 30, a function assumes that its master is lost.
    start_timeout_s
        Time limit, in seconds, for an invoked function to become ready.
    start_s
        To inject slow starts, a function ``start_s(worker, number)`` that returns the shortest
        duration, in seconds, of the start of a worker's function with this number. None: no delay.
    throttling
        The rules for repeating an invocation after HTTP 429.
    leases
        Records the billed time. None: the time is not recorded.

    Raises
    ------
    ParameterError
        If a value is outside its range.
    """

    address: Address = field(default_factory=Address)
    limit_s: float = 900.0
    leave: tuple[float, float] = (12 / 15, 14 / 15)
    beat_s: float = 1.0
    start_timeout_s: float = 120.0
    seed: int = 0
    start_s: Callable[[int, int], float] | None = None
    throttling: ThrottlePolicy = field(default_factory=ThrottlePolicy)
    leases: Leases | None = None

    def __post_init__(self) -> None:
        require_int("seed", self.seed, least=0)
        for argument, most in (("limit_s", 900.0), ("beat_s", 60.0), ("start_timeout_s", math.inf)):
            if not 0 < (value := getattr(self, argument)) <= most:
                raise ParameterError(argument, f"must be in (0, {most:g}] seconds", value)

        if not 0 < self.leave[0] <= self.leave[1] < 1 - _SPARE:
            rule = f"must satisfy 0 < least <= most < {1 - _SPARE:.3f}"
            raise ParameterError("leave", rule, self.leave)
        if not self.end_s > 0:
            rule = f"must be longer than {GRACE_BEATS + 1} heartbeats of {self.beat_s:g} s"
            raise ParameterError("limit_s", rule, self.limit_s)

    def leave_s(self, worker: int, number: int) -> float:
        """Return the age, in seconds, at which a worker's function announces that it leaves."""
        rng = np.random.default_rng([self.seed, worker, number])
        return self.end_s / (1 - _SPARE) * float(rng.uniform(*self.leave))

    @property
    def end_s(self) -> float:
        """The age, in seconds, at which a function ends.

        A computation may continue for `GRACE_BEATS` heartbeats before the process ends.
        """
        return self.limit_s - max(self.limit_s * _SPARE, (GRACE_BEATS + 1) * self.beat_s)


_MAX_FAILED_STARTS = 3  # after as many in a row, tasks without a function fail at once
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 30.0  # after failed starts
_LONGEST_VAIN_S = 10.0  # after functions that end without an answer


@dataclass(slots=True, kw_only=True, eq=False)
class Stay:
    """A resident function, from its invocation until its end."""

    tag: int
    worker: int
    call: bytes
    message: StayMessage
    began: float
    ready: bool = False
    answered: bool = False  # it has answered at least one task
    leaving: bool = False
    asked: bool = False
    handed_back: bool = False
    refusals: int = 0  # how often its invocation was throttled
    owed: Owed = field(default_factory=Owed)
    requests: dict[TaskKey, TaskMessage] = field(default_factory=dict)  # unanswered, or late

    def owe(self, request: TaskMessage) -> None:
        """Record that a task was sent."""
        key = task_key(request)
        self.owed.tasks.add(key)
        self.requests[key] = request

    def cancel(self, round: int) -> bool:
        """Cancel the tasks of a round. Return True if a task of the round had been sent."""
        sent = self.owed.cancel(round)
        keys = self.owed.tasks.union(self.owed.late)
        self.requests = {key: each for key, each in self.requests.items() if key in keys}
        return sent

    def hand_back(self, keeps: Sequence[TaskKey]) -> dict[TaskKey, TaskMessage]:
        """Remove all tasks except those in ``keeps``, and return the removed tasks in order."""
        self.handed_back = True
        back = sorted(self.owed.tasks.difference(map(tuple, keeps)))
        self.owed.tasks.difference_update(back)
        return {key: self.requests.pop(key) for key in back}


@dataclass(slots=True, kw_only=True, eq=False)
class ResidentWorker:
    """The state of a worker, which several functions serve one after the other."""

    coming: Stay | None = None
    serving: Stay | None = None
    asked: list[Stay] = field(default_factory=list)
    held: dict[TaskKey, TaskMessage] = field(default_factory=dict)  # wait for the next function
    invocations: int = 0
    failed_starts: int = 0  # in a row
    vain: int = 0  # functions in a row that became ready and ended without an answer
    cause: str = ""  # of the last failed start
    start_at: float = -math.inf  # earliest time of the next start

    @property
    def lacks(self) -> bool:
        """True if a function must be invoked."""
        return self.coming is None and (self.serving is None or self.serving.leaving)

    @property
    def hopeless(self) -> bool:
        """True if tasks should fail instead of waiting for the next function."""
        return self.serving is None and self.failed_starts >= _MAX_FAILED_STARTS

    def stays(self) -> list[Stay]:
        """Return the worker's functions. The serving function is the last one."""
        functions = (*self.asked, self.coming, self.serving)
        return [each for each in functions if each is not None]

    def due_at(self, patience_s: float) -> float:
        """Return the time of the next start, or the time limit of the present start."""
        if self.lacks:
            return self.start_at
        return math.inf if self.coming is None else self.coming.began + patience_s

    def start_failed(self, cause: str, *, at: float) -> None:
        """Record that a function ended before it was ready; set the time of the next start."""
        self.failed_starts += 1
        self.cause = cause
        self.start_at = at + _wait_s(self.failed_starts, _LONGEST_WAIT_S)

    def served_nobody(self, *, at: float) -> None:
        """Record that a function became ready and ended without an answer.

        After the first such function, the next one starts at once. Later starts wait, because each
        function costs money.
        """
        self.vain += 1
        if self.vain > 1:
            self.start_at = at + _wait_s(self.vain - 1, _LONGEST_VAIN_S)


def _wait_s(times: int, longest_s: float) -> float:
    return min(_FIRST_WAIT_S * 2.0 ** min(times - 1, 10), longest_s)


def task_key(request: TaskMessage) -> TaskKey:
    """Return the tuple (round, attempt) of a task."""
    return request.task.round, request.task.attempt


_FAREWELL_S: Final = 0.5


class Starts:
    """A sender of the invocations that start resident functions.

    ``message`` returns the `StayMessage` for the values that differ between functions. In a second,
    at most ``per_s`` throttled invocations are repeated.
    """

    def __init__(
        self,
        transport: Transport,
        switchboard: Switchboard,
        *,
        staying: Staying,
        message: Callable[..., StayMessage],
        run_id: str,
        per_s: float,
        clock: Clock,
    ) -> None:
        self._transport, self._switchboard, self._staying = transport, switchboard, staying
        self._message, self._run_id, self._clock = message, run_id, clock
        self._leases = staying.leases or Leases(longest_s=staying.limit_s)
        self._throttle = Throttle(staying.throttling, per_s=per_s)
        self._refused: dict[int, Stay] = {}  # throttled
        self._tags = itertools.count()

    @property
    def wake_at(self) -> float:
        """The next time at which `again` may repeat an invocation, or infinity."""
        return self._throttle.wake_at

    def invoke(self, worker: int, number: int) -> Stay:
        """Invoke a function for a worker; ``number`` counts the worker's invocations.

        If `Leases.admit` raises an error, no function is invoked.
        """
        self._leases.admit()
        tag, staying = next(self._tags), self._staying
        call, token = secrets.token_bytes(16), secrets.token_bytes(32)
        message = self._message(
            worker=worker,
            call=call.hex(),
            token=token.hex(),
            beat_s=staying.beat_s,
            leave_s=staying.leave_s(worker, number),
            end_s=staying.end_s,
            start_s=0.0 if staying.start_s is None else staying.start_s(worker, number),
        )
        now = self._clock.now()
        stay = Stay(tag=tag, worker=worker, call=call, message=message, began=now)
        self._switchboard.expect(tag, call=call, token=token)
        self._submit(stay, now=now)
        return stay

    def again(self) -> None:
        """Repeat the throttled invocations whose wait has ended. `Leases.admit` may raise."""
        now = self._clock.now()
        for tag in self._throttle.ready(now=now):
            self._leases.admit()
            self._submit(self._refused.pop(tag), now=now)

    def _submit(self, stay: Stay, *, now: float) -> None:
        self._leases.begin(stay.tag, at=now)
        frame = encode(stay.message, run_id=self._run_id)
        self._transport.submit(stay.tag, to_json(frame))

    def replied(self, stay: Stay | None, reply: Reply) -> bool:
        """Record the reply to an invocation. Return True if the invocation will be repeated."""
        if reply.ran:
            self._leases.end(reply.tag, at=reply.at)
        elif reply.ran is False and (stay is None or not stay.ready):
            self._leases.refuse(reply.tag)
        patience = self._staying.throttling.max_resubmissions
        if stay is None or not reply.throttled or stay.refusals >= patience:
            return False
        stay.refusals, stay.began = stay.refusals + 1, reply.at
        self._refused[stay.tag] = stay
        self._throttle.refused(
            stay.tag, refusals=stay.refusals, now=reply.at, least_s=reply.retry_after_s
        )
        return True

    def hang_up(self, stay: Stay) -> None:
        """Close a function's connection. Its time is billed until its end is certain."""
        self._throttle.forget(stay.tag)
        self._refused.pop(stay.tag, None)
        self._switchboard.hang_up(stay.tag, call=stay.call)
        self._ends_soon(stay)

    def _ends_soon(self, stay: Stay) -> None:
        if stay.ready:  # otherwise the function may not have begun
            outlives_s = OUTLIVES_BEATS * self._staying.beat_s
            self._leases.end_by(stay.tag, at=self._clock.now() + outlives_s)

    def close(self, stays: Collection[Stay]) -> None:
        """Close all connections. If time is recorded, wait shortly for the functions to end."""
        self._switchboard.close()
        for stay in stays:
            self._ends_soon(stay)
        wait_s = _FAREWELL_S if stays and self._staying.leases is not None else 0.0
        give_up_at = self._clock.now() + wait_s
        while self._leases.open and (left_s := give_up_at - self._clock.now()) > 0:
            for reply in self._transport.poll(left_s):
                self.replied(None, reply)
        self._transport.close()
