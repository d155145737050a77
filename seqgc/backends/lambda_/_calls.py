"""Which invocations are on their way, and what becomes of those that the service refuses."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from seqgc.backends.lambda_._throttle import Throttle, ThrottlePolicy
from seqgc.backends.lambda_._transport import Reply
from seqgc.wire import TaskMessage

__all__ = ["Call", "Calls"]


@dataclass(slots=True, kw_only=True, eq=False)
class Call:
    """An invocation that is no event yet."""

    request: TaskMessage
    refusals: int = 0  # in a row, by throttling
    cancelled: bool = False  # read by the thread that fetches its answer
    fetching: bool = False  # its answer, from the store
    warm_up: bool = False


class Calls:
    """The invocations of one backend that are no event yet; sans-I/O: times are arguments.

    Examples
    --------
    >>> from seqgc.ports import Task
    >>> calls = Calls(ThrottlePolicy())
    >>> request = TaskMessage(task=Task(round=0, worker=1, attempt=0, items=()))
    >>> tag = calls.add(Call(request=request))
    >>> calls.replied(Reply(tag=tag, at=5.0, throttled=True))  # None: it is submitted again
    >>> [again for again, _ in calls.due(now=6.0)] == [tag]
    True
    """

    def __init__(self, policy: ThrottlePolicy) -> None:
        self._policy, self._throttle = policy, Throttle(policy)
        self._tags = itertools.count()
        self._calls: dict[int, Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def wake_at(self) -> float:
        """When `due` may return something; infinity if nothing waits."""
        return self._throttle.wake_at

    def add(self, call: Call) -> int:
        """Return the tag of a new invocation."""
        tag = next(self._tags)
        self._calls[tag] = call
        return tag

    def due(self, *, now: float) -> list[tuple[int, Call]]:
        """Return the throttled invocations that are to be submitted again now, with their tags."""
        return [(tag, self._calls[tag]) for tag in self._throttle.ready(now=now)]

    def replied(self, reply: Reply) -> Call | None:
        """Return the invocation that a reply is the end of.

        None: nobody request, or it has been replied to, or it will be submitted again.
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
        """Return, and have no more, an invocation whose outcome is known."""
        return self._calls.pop(tag, None)

    def cancel(self, round: int, workers: Collection[int]) -> None:
        """Mark these workers' tasks of a round; what waits is not submitted any more."""
        for tag, call in list(self._calls.items()):
            task = call.request.task
            if task.round == round and task.worker in workers and not call.warm_up:
                call.cancelled = True
                if self._throttle.forget(tag):
                    del self._calls[tag]

    def forget(self, tags: Iterable[int]) -> None:
        """Have nothing to do with these any more, whatever is replied."""
        for tag in tags:
            self._throttle.forget(tag)
            self._calls.pop(tag, None)

    def clear(self) -> None:
        """Forget all."""
        self.forget(tuple(self._calls))
